"""Gradients of products can be differentiated again, with and without a float32 result, on every processor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from helpers.each import each
from helpers.models import Calls

pytestmark = pytest.mark.usefixtures("with_and_without_instructions")
Call = Callable[..., torch.Tensor]
Tensors = Sequence[torch.Tensor]


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with sdpa_kernel(SDPBackend.MATH):  # torch differentiates no other one twice
        return F.scaled_dot_product_attention(q, k, v)


#: Calls, the sizes of their tensors, and the position of the one that is added. The sizes
#: depend on a number.
CALLS: dict[str, tuple[Call, Callable[[int], Sequence[tuple[int, ...]]], int | None]] = {
    "linear": (F.linear, lambda n: [(n, 40), (n, 40), (n,)], 2),
    "linear of batches": (F.linear, lambda n: [(2, n, 40), (n, 40)], None),
    "linear of a vector": (F.linear, lambda n: [(n,), (60, n), (60,)], 2),
    "linear, one number for all": (F.linear, lambda n: [(n, 40), (n, 40), (1,)], 2),
    "mm": (torch.mm, lambda n: [(n, 40), (40, n)], None),
    "mm of a view": (lambda x, w: x.mm(w.t()), lambda n: [(n, 40), (n, 40)], None),
    "@": (lambda x, w: x @ w, lambda n: [(2, n, 40), (40, n)], None),
    "matmul of batches": (torch.matmul, lambda n: [(2, 3, n, 40), (1, 3, 40, n)], None),
    "matmul of a vector": (torch.matmul, lambda n: [(n, n), (n,)], None),
    "addmm": (torch.addmm, lambda n: [(n,), (n, 40), (40, n)], 0),
    "addmm, scaled": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
        lambda n: [(n, n), (n, 40), (40, n)],
        0,
    ),
    "mv": (torch.mv, lambda n: [(n, n), (n,)], None),
    "addmv": (torch.addmv, lambda n: [(n,), (n, n), (n,)], 0),
    "dot": (torch.dot, lambda n: [(n * n,), (n * n,)], None),
    "bmm": (torch.bmm, lambda n: [(2, n, 40), (2, 40, n)], None),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w, alpha=2.0), lambda n: [(2, n, n), (2, n, 40), (2, 40, n)], 0),
    "addbmm": (torch.addbmm, lambda n: [(n, n), (2, n, 40), (2, 40, n)], 0),
    "einsum": (lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), lambda n: [(2, n, 40), (2, n, 40)], None),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), lambda n: [(n, 40), (40, n)], None),
    "inner": (torch.inner, lambda n: [(n, 40), (n, 40)], None),
    "multi_dot": (lambda *x: torch.linalg.multi_dot(x), lambda n: [(n, 40), (40, 30), (30, n)], None),
    "bilinear": (F.bilinear, lambda n: [(n, 30), (n, 30), (7, 30, 30), (7,)], 3),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding="same"), lambda n: [(2, 16, n), (n, 16, 3)], None),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), lambda n: [(2, 4, n, 8), (6, 4, 3, 3), (6,)], 2),
    "conv2d, in groups": (lambda x, w: F.conv2d(x, w, groups=2), lambda n: [(2, 4, n, 8), (6, 2, 3, 3)], None),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), lambda n: [(2, 3, 4, n, 5), (4, 3, 3, 3, 3), (4,)], 2),
    "conv_transpose1d": (F.conv_transpose1d, lambda n: [(4, 16, n), (16, 6, 3), (6,)], 2),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
        lambda n: [(2, 4, n, 8), (4, 6, 3, 3), (6,)],
        2,
    ),
    "conv_transpose3d": (F.conv_transpose3d, lambda n: [(2, 3, 3, n, 4), (3, 4, 3, 3, 3)], None),
    "attention": (_attention, lambda n: [(1, 2, n, 16)] * 3, None),
}
LISTED = [
    *["linear", "mm", "matmul", "addmm", "mv", "addmv", "dot", "bmm", "baddbmm", "addbmm", "einsum", "tensordot"],
    *["inner", "multi_dot", "bilinear", "conv1d", "conv2d", "conv3d"],
    *["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
]
#: With the large one, no call is left to torch for its size where the processor has no instructions.
SMALL, LARGE = 6, 160
#: A lost term is off by its whole length, a third gradient in bfloat16 by a few roundings; a sum of
#: both signs may be short.
NEAR = 0.05


def convert(result: str, **more: str) -> None:
    hmp.convert(preset="recommended", within="everywhere", rules=dict.fromkeys(LISTED, f"lower{result}") | more)


def operands(name: str, size: int) -> tuple[Call, list[torch.Tensor], list[torch.Tensor]]:
    """Returns a call, its tensors, and the same rounded and in float64."""
    call, sizes, added = CALLS[name]
    values = [torch.randn(one) / (one[-1] ** 0.5 if place else 1) for place, one in enumerate(sizes(size))]
    rounded = [(one if place == added else one.bfloat16()).double() for place, one in enumerate(values)]
    return call, values, rounded


def loss_of(made: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    values = made.to(dtype).sin()
    return (values * torch.linspace(-1, 1, values.numel(), dtype=dtype).reshape(values.shape)).sum()


def directions(values: Tensors) -> list[torch.Tensor]:
    chosen = torch.Generator().manual_seed(1)
    return [torch.randn(one.shape, generator=chosen).to(one.dtype) for one in values]


def derivatives(call: Call, values: Tensors, order: int) -> Iterator[torch.Tensor]:
    """Yields the gradients of a loss, then those of each gradient in some direction, and so on: zeros where torch has
    none. So no term hides a lost one."""
    losses = [loss_of(call(*values), values[0].dtype)]
    for _ in range(order):
        found = []
        for loss in losses:
            if loss.requires_grad:
                found += torch.autograd.grad(loss, values, create_graph=True, materialize_grads=True)
            else:
                found += map(torch.zeros_like, values)
        yield from found
        losses = [(one * to).sum() for one, to in zip(found, directions(values) * len(losses), strict=True)]


def assert_near(made: Tensors, wanted: Tensors) -> None:
    assert len(made) == len(wanted)
    for place, (one, other) in enumerate(zip(made, wanted, strict=True)):
        assert (one.double() - other).norm() <= NEAR * max(other.norm().item(), 0.5), place


def parameters(values: Tensors) -> list[nn.Parameter]:
    return [nn.Parameter(one.clone()) for one in values]


@each("result", ["", " -> fp32"])
@each("name", CALLS)
def test_first_second_and_third_gradients_are_those_of_rounded_operands(name: str, result: str) -> None:
    for size, order in ((SMALL, 3), (LARGE, 2)):
        call, values, rounded = operands(name, size)
        wanted = [*derivatives(call, parameters(rounded), order)]
        convert(result if name != "attention" else "")
        assert_near([*derivatives(call, parameters(values), order)], wanted)
        hmp.restore()


@each("result", ["", " -> fp32"])
@each("name", ["linear", "addmm", "@", "bmm", "einsum", "conv2d", "conv_transpose1d"])
def test_transforms_and_forward_mode_go_through_gradients(name: str, result: str) -> None:
    call, values, rounded = operands(name, SMALL)
    numbers = tuple(range(len(values)))

    def derived(values: Tensors) -> list[torch.Tensor]:
        def loss(*given: torch.Tensor) -> torch.Tensor:
            return loss_of(call(*given), given[0].dtype)

        def along(*given: torch.Tensor) -> torch.Tensor:
            first = torch.func.grad(loss, numbers)(*given)
            return torch.stack([(one * to).sum() for one, to in zip(first, directions(values), strict=True)]).sum()

        found = [one for some in torch.func.hessian(loss, numbers)(*values) for one in some]
        found += torch.func.grad(along, numbers)(*values)
        with forward_ad.dual_level():
            duals = [*map(forward_ad.make_dual, parameters(values), directions(values))]
            gradients = torch.autograd.grad(loss(*duals), duals)
            return found + [forward_ad.unpack_dual(one).tangent for one in gradients]

    wanted = derived(rounded)
    convert(result)
    assert_near(derived(values), wanted)


@each("way", ["plain", "checkpoint", "op_wrap"])
def test_a_gradient_penalty_reaches_all_weights_of_layers_with_a_float32_result(way: str) -> None:
    class Critic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(one, other) for one, other in ((48, 96), (96, 96), (96, 1)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                call = partial(wrapped, part) if way == "op_wrap" else part
                x = torch.tanh(checkpoint(call, x, use_reentrant=False) if way == "checkpoint" else call(x))
            return x

    def penalty(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (gradient.norm(dim=-1) - 1).square().sum().backward()
        return [one.grad for one in model.parameters() if one.grad is not None]

    def wrapped(part: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return linear(x, part.weight, part.bias)

    model, x, linear = Critic(), torch.randn(64, 48), F.linear
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for part in exact.parts:
            part.weight.copy_(part.weight.bfloat16())
    wanted = penalty(exact, x.detach().bfloat16().double())
    if way == "op_wrap":
        hmp.convert(preset="torch-cpu", within=nn.Linear(1, 1))
        linear = hmp.op_wrap(F.linear, to="bf16 -> fp32")
    else:
        convert(" -> fp32")
    assert_near(penalty(model, x), wanted)


def test_what_a_product_with_a_float32_result_saves_is_in_lower_precision() -> None:
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    convert(" -> fp32")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        F.linear(torch.randn(64, 96, requires_grad=True), nn.Parameter(torch.randn(96, 96)))
    assert [one.dtype for one in saved] == [torch.bfloat16] * 2


@each("result", ["", " -> fp32"])
@each("name", CALLS)
def test_backwards_have_no_rows_although_a_line_is_for_all_operations(counted: None, name: str, result: str) -> None:
    call, values, _ = operands(name, LARGE)
    given, part = parameters(values), nn.ReLU()
    model = Calls(lambda *given: part(call(*given)), part=part)
    rules = dict.fromkeys(LISTED, f"lower{result}") if name != "attention" else {}
    hmp.convert(preset="recommended", rules={**rules, "* @ part": "fp32"}, report="modules")
    made = model(*given)
    before = [row.operation for row in hmp.report(show=False).rows]
    gradients = torch.autograd.grad(made, given, torch.ones_like(made), create_graph=True)
    second = [one for one in gradients if one.requires_grad]
    torch.autograd.grad(second, given, [*map(torch.ones_like, second)], allow_unused=True)
    assert [row.operation for row in hmp.report(show=False).rows] == before
