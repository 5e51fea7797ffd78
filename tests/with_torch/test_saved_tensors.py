"""What is saved for the backward, and hooks that pack it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.gradients import leaf
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M, N

Loss = Callable[..., torch.Tensor]


def test_saved_tensors_are_packed_in_the_precision_of_the_operation(converted: Converter) -> None:
    packed: list[torch.dtype] = []

    def pack(one: torch.Tensor) -> tuple[torch.Tensor]:
        packed.append(one.dtype)
        return (one.clone(),)

    plain, hooked = leaf(M), leaf(M)
    converted(bf16=["mm"], fp32=["softmax"])
    torch.softmax(torch.mm(plain, N), -1).pow(2).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda given: given[0]):
        out = torch.softmax(torch.mm(hooked, N), -1).pow(2).sum()
    out.backward()
    assert packed == [BF16, FP32, FP32]
    assert_same(hooked.grad, plain.grad)


@each("error", [RuntimeError, ValueError])
@each("name", ["mm", "conv2d", "gru", "softmax"])
def test_an_error_of_a_hook_of_saved_tensors_is_not_taken_for_one_of_torch(name: str, error: type[Exception]) -> None:
    layer = nn.GRU(4, 4)
    calls: dict[str, Callable[[], Any]] = {
        "mm": lambda: torch.mm(leaf(M), N),
        "conv2d": lambda: F.conv2d(leaf(torch.randn(1, 2, 5, 5)), torch.randn(3, 2, 3, 3)),
        "gru": lambda: layer(leaf(torch.randn(3, 2, 4))),
        "softmax": lambda: torch.softmax(leaf(M.bfloat16()), -1),
    }
    packed = []

    def pack(one: torch.Tensor) -> torch.Tensor:
        packed.append(one)
        raise error("no room")

    hmp.convert(preset="torch-cpu")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one), pytest.raises(error, match="no room"):
        calls[name]()
    assert len(packed) == 1


class Checking(TorchDispatchMode):
    """Raises where a value is not finite."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point() and not result.isfinite().all():
            raise RuntimeError("not finite")
        return result


def test_an_error_of_a_mode_is_not_taken_for_one_of_torch_and_torchs_own_is(converted: Converter) -> None:
    converted(bf16=["mm"], dtype=FP16)
    with Checking():
        assert torch.mm(M, N).dtype is torch.float16
        with pytest.raises(RuntimeError, match="not finite"):
            torch.mm(M * 1e4, N * 1e4)
    converted(bf16=["mm"])
    lowered, on_meta = torch.mm(M, N), torch.mm(M.to("meta"), N.to("meta"))
    with torch.autocast("cpu", enabled=False):
        with Checking():  # whose kernel wants one precision, as `torch._check` of the function for meta tensors does
            assert torch.lerp(lowered, M, 0.5).dtype is FP32
        assert torch.lerp(on_meta, M.to("meta"), 0.5).dtype is FP32


def compressed(tensor: torch.Tensor) -> Any:
    """The usual eight bits, by arithmetic that the default lists lower."""
    if not tensor.is_floating_point():
        return tensor, None
    scale = tensor.abs().max() / 127
    return (tensor / scale).round().to(torch.int8), scale


def expanded(kept: Any) -> torch.Tensor:
    value, scale = kept
    return value if scale is None else value.float() * scale


@each("backend", [None, "aot_eager"])
@each(
    "call",
    [
        lambda x: F.softmax(x, -1),
        lambda x: F.cross_entropy(x, torch.arange(4)),
        lambda x: torch.cdist(x, x + 1),
        lambda x: F.prelu(x - 0.5, torch.full((1,), 0.25)),
        torch.linalg.svdvals,
        lambda x: torch.mm(x, N),
    ],
)
def test_what_a_hook_computes_is_unpacked_in_the_precision_that_was_packed(call: Loss, backend: str | None) -> None:
    expected, hooked = leaf(M), leaf(M)
    call(expected).sum().backward()
    hmp.convert()
    call = torch.compile(call, backend=backend) if backend else call
    with torch.autograd.graph.saved_tensors_hooks(pack_hook=compressed, unpack_hook=expanded):
        out = call(hooked)
    out.sum().backward()
    torch.testing.assert_close(hooked.grad, expected.grad, rtol=0.05, atol=0.05)
    assert hooked.grad.dtype is FP32


def normalised(gradients: Any) -> tuple[torch.Tensor]:
    return (gradients[0] / (gradients[0].norm() + 1e-6),)


GradientOf = Callable[[Any], tuple[torch.Tensor]]


@each("before", [False, True])
@each(
    "hook",
    [
        normalised,
        lambda gradients: (torch.softmax(gradients[0], -1),),
    ],
)
def test_a_modules_hooks_may_compute_gradients(hook: GradientOf, before: bool) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    if before:
        hmp.convert()
    module[2].register_full_backward_hook(lambda _, inputs, outputs: hook(inputs))
    module[0].register_full_backward_pre_hook(lambda _, outputs: hook(outputs))
    module[2].register_full_backward_hook(lambda _, inputs, outputs: None)
    if not before:
        module(leaf(M)).pow(2).sum().backward()
        hmp.convert()
    plain = [one.grad.clone() if one.grad is not None else None for one in module.parameters()]
    module.zero_grad()
    module(leaf(M)).float().pow(2).sum().backward()
    for one, expected in zip(module.parameters(), plain, strict=True):
        assert one.grad.dtype is FP32
        if expected is not None:
            torch.testing.assert_close(one.grad, expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_a_modules_hook_that_is_wrong_raises_what_torch_raises(converted: Converter) -> None:
    module = nn.Linear(4, 4)
    module.register_full_backward_hook(lambda _, inputs, outputs: (None, None))
    converted(bf16=["linear"])
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2, but expected 1"):
        module(leaf(M)).sum().backward()
