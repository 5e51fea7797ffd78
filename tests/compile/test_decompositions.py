"""An operation that a tracer takes apart is cast once, and its parts are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.compiling import needs_compiler

FP32 = torch.float32

X = torch.linspace(0.5, 1.5, 2 * 4 * 6).reshape(2, 4, 6)
GRID, MASK = torch.full((1, 3, 3, 2), 0.3), torch.cos(X[:, :, :4]).requires_grad_()
TAKEN_APART: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "softmax": lambda x: F.softmax(x, -1),
    "grid_sample": lambda x: F.grid_sample(x[None], GRID, align_corners=False),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2.0, mode="bicubic"),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=MASK),
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
}


pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


def with_gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    x = X.clone().requires_grad_()
    out = function(x)
    out.backward(torch.linspace(-1, 1, out.numel()).reshape(out.shape))
    assert x.grad is not None
    return [out.detach(), x.grad]


def assert_taken_apart_once(name: str, backend: Any) -> None:
    """Compiled, it is as precise as uncompiled, with casts and in a region without them."""

    def guarded(x: torch.Tensor) -> torch.Tensor:
        with hmp.disable_casts():
            return TAKEN_APART[name](x)

    hmp.convert()
    for function in (TAKEN_APART[name], guarded):
        expected = with_gradient(function)
        assert expected[0].dtype is FP32
        got = with_gradient(torch.compile(function, backend=backend, fullgraph=True))
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TAKEN_APART)
def test_an_operation_is_not_cast_again_inside_of_its_decomposition(name: str) -> None:
    # Imported here, because they take seconds.
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    # It traces what Inductor traces, and generates no code. Generated code calls nothing of torch that is written in
    # Python, so nothing is cast while the graph runs: what counts are the casts in the graph.
    decomposed = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(hmp.disable_casts()(graph.forward)),
        decompositions=select_decomp_table(),
    )
    assert_taken_apart_once(name, decomposed)


@needs_compiler
def test_generated_code_of_a_decomposition_is_not_cast_again() -> None:
    assert_taken_apart_once("gelu", "inductor")
