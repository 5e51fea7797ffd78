"""Code that Inductor generates: casts once, frozen weights."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_close
from helpers.compiled_functions import FUNCTIONS, IMAGE, M, N
from helpers.compiling import needs_compiler

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


def every_kernel(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """What Inductor calls as it is at run time, with casts and without."""

    def some(x: torch.Tensor) -> list[torch.Tensor]:
        image = IMAGE + x.float().mean()
        return [
            torch.mm(x, y.to(x.dtype)),
            torch.addmm(x, x, y.to(x.dtype)),
            torch.bmm(x[None], x[None]),
            F.conv2d(image, image[:, :, :3, :3]),
            F.conv_transpose2d(image, image[:1, :, :2, :2].expand(3, 3, 2, 2)),
            F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
            F.linear(x, y.to(x.dtype)),
        ]

    first = some(x)
    with hmp.disable_casts():
        return [*first, *some(x)]


@needs_compiler
def test_generated_code_casts_each_region_once() -> None:
    hmp.convert(preset="torch-cpu")
    expected = every_kernel(M, N)
    compiled = torch.compile(every_kernel, fullgraph=True)
    for _ in range(2):
        assert_close(compiled(M, N), expected)
    with hmp.disable_casts():
        quiet = every_kernel(M, N)
        assert_close(compiled(M, N), quiet)
    assert {one.dtype for one in quiet} == {FP32}
    assert {one.dtype for one in expected[:7]} == {BF16}
    hmp.restore()
    assert_close(compiled(M, N), quiet)


@needs_compiler
@pytest.mark.parametrize("name", ["in place", "mixed", "normalize", "number"])
def test_generated_code_is_right_within_the_lower_precision(name: str) -> None:
    function = FUNCTIONS[name]
    hmp.convert()
    assert_close(torch.compile(function, fullgraph=True)(M, N), function(M, N))


@needs_compiler
def test_generated_code_without_gradients_may_be_frozen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    hmp.convert()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        compiled = torch.compile(model)
        assert_close(compiled(IMAGE), model(IMAGE))
        with hmp.disable_casts():
            assert_close(compiled(IMAGE), model(IMAGE))
        assert_close(compiled(IMAGE), model(IMAGE))
    for name, one in model.state_dict().items():
        assert torch.equal(one, before[name])


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(64, 128, bias=False), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def frozen(model: nn.Module, x: torch.Tensor, state: AbstractContextManager[Any]) -> tuple[Counter[Any], set[str]]:
    """What Inductor makes code of: how often each operation and dtype, and what is still done to constants."""
    operations: Counter[Any] = Counter()
    to_constants: set[str] = set()

    def look(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                value = node.meta.get("val")
                name = getattr(node.target, "__name__", "fused")  # a fused one's target is a partial of its own
                operations[name, getattr(value, "dtype", None)] += 1
                if any(one.op == "get_attr" for one in node.all_input_nodes):
                    to_constants.add(name)

    torch._dynamo.reset()
    config = torch._inductor.config.patch(freezing=True, fx_graph_cache=False, post_grad_custom_post_pass=look)
    with torch.no_grad(), config, state:
        torch.compile(model, fullgraph=True)(x)
    return operations, to_constants


@needs_compiler
def test_frozen_weights_are_cast_and_packed_once_as_under_autocast() -> None:
    torch.manual_seed(0)
    model, x = FeedForward().eval(), torch.randn(64, 64)
    expected = frozen(model, x, torch.autocast("cpu", dtype=BF16))
    hmp.convert(preset="torch-cpu")
    operations, to_constants = frozen(model, x, nullcontext())
    # Where autocast leaves it to the addition to widen one side, ours is a cast of its own; both are in one loop.
    operations -= Counter({("convert_element_type.default", FP32): 1})
    assert (operations, to_constants) == expected
    assert to_constants
    assert not [name for name in to_constants if "convert_element_type" in name]
