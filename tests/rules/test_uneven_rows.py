"""Products of inputs whose rows do not lie evenly, as attention has them: made of a copy, with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import profile

from habana_mp import _core, hmp
from helpers.each import each
from helpers.lists import Converter

PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "linear": F.linear,
    "matmul": lambda x, weight, bias: torch.matmul(x, weight.t()),
    "@": lambda x, weight, bias: x @ weight.t(),
}


def sequence_first(dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(seed)).to(dtype).transpose(0, 1)


@st.composite
def inputs(draw: st.DrawFn) -> torch.Tensor:
    sizes = [*draw(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=4)), draw(st.sampled_from([4, 16, 64]))]
    order = draw(st.permutations(range(len(sizes))))
    gaps = [draw(st.sampled_from([1, 1, 1, 2])) for _ in sizes]
    whole = torch.randn([sizes[i] * gaps[i] for i in order]).permute([order.index(i) for i in range(len(sizes))])
    x = whole[tuple(slice(None, None, gap) for gap in gaps)]
    if draw(st.booleans()) and len(sizes) > 1:
        x = x.narrow(0, 0, 1).expand(sizes)
    return x.bfloat16() if draw(st.booleans()) else x


@settings(max_examples=50)
@given(inputs(), st.sampled_from([1, 8, 48]), st.booleans(), st.booleans(), st.sampled_from(list(PRODUCTS)))
def test_a_row_has_the_same_bits_wherever_it_is_stored(
    x: torch.Tensor, width: int, bias: bool, frozen: bool, product: str
) -> None:
    layer = nn.Linear(x.shape[-1], width, bias=bias).requires_grad_(not frozen)
    hmp.convert(preset="torch-cpu")
    try:
        with torch.no_grad():
            result = PRODUCTS[product](x, layer.weight, layer.bias)
            expected = PRODUCTS[product](x.contiguous(), layer.weight, layer.bias)
            if x.dim() > 1 and _core.kernels_path() != "scalar":
                assert torch.equal(result, expected)
            assert result.stride() == expected.stride()
    finally:
        hmp.restore()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, None])
def test_in_every_lower_precision(converted: Converter, dtype: torch.dtype, given: torch.dtype | None) -> None:
    layer, x = nn.Linear(64, 32), sequence_first(given or dtype)
    with torch.no_grad():
        rounded = [one.to(dtype).double() for one in (x, layer.weight, layer.bias)]
        expected = F.linear(*rounded)
        converted(bf16=["linear"], dtype=dtype)
        result = layer(x)
    assert result.dtype is dtype
    torch.testing.assert_close(result.double(), expected, rtol=torch.finfo(dtype).eps / 2, atol=1e-4)


@pytest.mark.parametrize("product", PRODUCTS)
def test_torch_is_asked_for_one_product(converted: Converter, product: str) -> None:
    layer, x = nn.Linear(64, 32).requires_grad_(False), sequence_first()

    def operations() -> set[str]:
        with torch.no_grad(), profile() as watched:
            PRODUCTS[product](x, layer.weight, layer.bias)
        return {event.name for event in watched.events()}

    converted(bf16=["linear", "matmul"])
    assert "aten::bmm" not in operations()
    hmp.restore()
    layer.bfloat16()
    x = x.bfloat16()
    assert "aten::bmm" in operations()  # what it is about: torch alone multiplies one by one


@each("product, dynamic", [("linear", False), ("@", True)])
def test_compiled_code_asks_for_one_product_too(converted: Converter, product: str, dynamic: bool) -> None:
    # Imported here, because they take seconds.
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[set[str]] = []

    def note(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return make_boxed_func(graph.forward)

    layer = nn.Linear(64, 32)
    converted(bf16=["linear", "matmul"])
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: PRODUCTS[product](x, layer.weight, layer.bias),
        backend=aot_autograd(fw_compiler=note),
        fullgraph=True,
        dynamic=dynamic,
    )
    with torch.no_grad():
        for rows in (6, 7):
            for x in (torch.randn(rows, 5, 64).transpose(0, 1), torch.randn(5, rows, 64)):
                expected = PRODUCTS[product](x, layer.weight, layer.bias)
                # A graph adds the bias before it rounds.
                torch.testing.assert_close(compiled(x), expected, atol=0.01, rtol=0.02)
    assert len(graphs) == (2 if dynamic else 4)
    assert not any("aten.bmm.default" in graph for graph in graphs)
    # What lies in rows is not copied.
    assert ["aten.clone.default" in graph for graph in graphs] == [True, False] * (len(graphs) // 2)
