"""Weights, gradients and states that get other memory in the middle of a step.

A step looks at all tensors, has torch step the weights that the kernels do not take, and then runs the kernels. Code
that runs in between may give a tensor other memory. `Sly` stands for such code: it is a weight that torch steps.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from habana_mp import hmp, optim
from habana_mp.patches.torch import kernel_steps
from helpers.gaudi import gaudi
from helpers.optimizers import CLASSES

SHAPE = (8, 32)


class Sly(torch.nn.Parameter):
    """Calls a function once, in the first operation that writes it: torch's functions ask it other things before."""

    act: Callable[[], None] | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if Sly.act is not None and name.endswith("_") and not name.endswith("__"):
            act, Sly.act = Sly.act, None
            with torch._C.DisableTorchFunctionSubclass():
                act()
        return super().__torch_function__(func, types, args, kwargs or {})


def filled(seed: int, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assigned(tensor: torch.Tensor, other: torch.Tensor) -> None:
    tensor.data = other


def set_to(tensor: torch.Tensor, other: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.set_(other)


def resized_in_place(tensor: torch.Tensor, other: torch.Tensor) -> None:
    size = tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(size)
    tensor.detach().copy_(other)


def swapped(tensor: torch.Tensor, other: torch.Tensor) -> None:
    holder = torch.nn.Parameter(other.clone()) if isinstance(tensor, torch.nn.Parameter) else other.clone()
    tensor.data, holder.data = holder.data, tensor.data


def in_another_order(tensor: torch.Tensor, other: torch.Tensor) -> None:
    if tensor.dim() == 2:
        tensor.data = other.t().contiguous().t()
    else:
        tensor.data = other


CHANGES = [assigned, set_to, resized_in_place, swapped, in_another_order]


def of_gaudi() -> Any:
    """The optimizers of the stand-in, in a process where it is switched on."""
    from habana_frameworks.torch.hpex import optimizers

    return optimizers


def uncorrected(params: Any, **options: Any) -> Any:
    return of_gaudi().FusedAdamW(params, bias_correction=False, **options)


def lars(params: Any, **options: Any) -> Any:
    params = list(params)
    sgd = of_gaudi().FusedSGD(params, momentum=0.9, weight_decay=0.1, **options)
    return of_gaudi().FusedLars(sgd, [1] * len(params), eeta=0.1)


def lamb(params: Any, **options: Any) -> Any:
    # A maximum of the norm would be taken of all gradients, before the step.
    return of_gaudi().FusedLamb(params, max_grad_norm=None, **options)


def amsgrad(params: Any, **options: Any) -> Any:
    return optim.AdamW(params, amsgrad=True, **options)


def with_momentum(params: Any, **options: Any) -> Any:
    return optim.SGD(params, momentum=0.9, **options)


KINDS: dict[str, Callable[..., Any]] = {name: ours for name, (ours, _) in CLASSES.items()}
KINDS |= {"amsgrad": amsgrad, "momentum": with_momentum}
KINDS_OF_GAUDI: dict[str, Callable[..., Any]] = {"lamb": lamb, "lars": lars, "uncorrected": uncorrected}


def made(kind: str) -> tuple[Any, torch.nn.Parameter, torch.nn.Parameter]:
    """An optimizer after one step, a weight that our kernels step, and a sly one."""
    weight, other = torch.nn.Parameter(filled(1)), torch.nn.Parameter(filled(2))
    sly = Sly(filled(3))
    optimizer = (KINDS | KINDS_OF_GAUDI)[kind]([other, sly, weight], lr=0.1)
    set_gradients(optimizer, 4)
    optimizer.step()
    set_gradients(optimizer, 5)
    return optimizer, weight, other


def set_gradients(optimizer: Any, seed: int) -> None:
    for i, param in enumerate(optimizer.param_groups[0]["params"]):
        param.grad = filled(seed * 10 + i)


def tensors_of(optimizer: Any, weight: Any) -> dict[str, torch.Tensor]:
    state = {name: one for name, one in optimizer.state[weight].items() if isinstance(one, torch.Tensor)}
    return {"weight": weight, "grad": weight.grad, **state}


def all_of(optimizer: Any) -> list[torch.Tensor]:
    return [
        one.detach().clone()
        for param in optimizer.param_groups[0]["params"]
        for one in tensors_of(optimizer, param).values()
    ]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_that_gets_other_memory_during_a_step_is_stepped_once_and_in_that(
    kind: str, change: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    for name in tensors_of(*made(kind)[:2]):
        expected_optimizer, expected_weight, _ = made(kind)
        expected = tensors_of(expected_optimizer, expected_weight)[name]
        new = torch.tensor(7.0) if name == "step" else filled(9).abs()
        change(expected, new.clone())
        expected_optimizer.step()

        optimizer, weight, _ = made(kind)
        tensor = tensors_of(optimizer, weight)[name]
        formers = [tensor.detach()] if change is not resized_in_place else []
        before = [one.clone() for one in formers]
        Sly.act = lambda tensor=tensor, new=new: change(tensor, new.clone())  # type: ignore[misc]
        optimizer.step()
        assert Sly.act is None
        if change is set_to or change is assigned:
            assert torch.equal(formers[0], before[0]), f"the former memory of `{name}` was written"
        for one, other in zip(all_of(optimizer), all_of(expected_optimizer), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_that_gets_another_dtype_during_a_step_is_stepped_by_torch(kind: str) -> None:
    expected_optimizer, expected_weight, _ = made(kind)
    optimizer, weight, _ = made(kind)

    def change(weight: torch.nn.Parameter) -> None:
        weight.data = weight.data.double()

    change(expected_weight)
    error = outcome(expected_optimizer)
    Sly.act = lambda: change(weight)
    assert outcome(optimizer) == error
    assert weight.dtype == torch.float64
    torch.testing.assert_close(weight, expected_weight, rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS_OF_GAUDI)
def test_optimizers_for_gaudi_step_such_tensors_alike(kind: str) -> None:
    lines = gaudi(
        f"""
        import sys
        sys.path.insert(0, "optim")
        import test_memory_that_changes as changes
        for change in changes.CHANGES:
            changes.test_a_tensor_that_gets_other_memory_during_a_step_is_stepped_once_and_in_that({kind!r}, change)
        changes.test_a_weight_that_gets_another_dtype_during_a_step_is_stepped_by_torch({kind!r})
        print("equal")
        """
    )
    assert lines[-1] == "equal"


def outcome(optimizer: Any) -> type[Exception] | None:
    try:
        optimizer.step()
    except RuntimeError as error:
        return type(error)
    return None


def test_a_weight_that_changes_each_time_is_stepped_by_torch_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, weight, _ = made("AdamW")
    expected_optimizer, expected_weight, _ = made("AdamW")
    rounds = []
    left_out = kernel_steps.Stepping.left_out

    def changing(self: Any, column: Any) -> Any:
        rounds.append(0)
        if len(rounds) % 6 == 0:
            weight.data = weight.data.clone()
        return left_out(self, column)

    monkeypatch.setattr(kernel_steps.Stepping, "left_out", changing)
    optimizer.step()
    monkeypatch.undo()
    expected_optimizer.step()
    assert len(rounds) == 6 * kernel_steps._ATTEMPTS
    torch.testing.assert_close(weight, expected_weight)
    assert optimizer.state[weight]["step"] == expected_optimizer.state[expected_weight]["step"] == 2


def test_gradients_of_a_weight_that_changes_are_unscaled_once() -> None:
    def prepared() -> tuple[Any, torch.nn.Parameter]:
        optimizer, weight, _ = made("AdamW")
        optimizer.param_groups[0]["fused"] = False
        optimizer.param_groups[0]["foreach"] = False
        optimizer.param_groups[0]["params"] = [one for one in optimizer.param_groups[0]["params"] if one is not weight]
        optimizer.add_param_group({"params": [weight], "fused": True})
        return optimizer, weight

    optimizer, weight = prepared()
    group = optimizer.param_groups[1]
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(4.0), torch.tensor(0.0)
    grad, former = weight.grad, weight.detach()
    assert grad is not None
    before, values = grad.clone(), former.clone()
    write = kernel_steps.Stepping.run

    def changing(self: Any, kernel: str, **numbers: Any) -> None:
        if weight.data_ptr() == former.data_ptr():
            weight.data = weight.data.clone()
        write(self, kernel, **numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_steps.Stepping, "run", changing)
        optim._step_adam(optimizer, group)
    torch.testing.assert_close(grad, before / 4, rtol=0, atol=0)
    assert torch.equal(former, values)
    assert not torch.equal(weight, values)


def test_the_kept_cast_of_a_weight_that_changes_is_that_of_the_stepped_weight() -> None:
    hmp.convert()
    try:
        layer = torch.nn.Linear(64, 64)
        sly = Sly(torch.ones(1))
        optimizer = optim.AdamW([sly, *layer.parameters()], lr=0.1)
        inputs = filled(1, (4, 64))
        for step in range(4):
            layer(inputs).float().sum().backward()
            sly.grad = torch.ones(1)
            if step == 2:
                Sly.act = lambda: assigned(layer.weight, filled(5, (64, 64)))
            optimizer.step()
            optimizer.zero_grad()
            result = layer(inputs)
            expected = torch.nn.functional.linear(inputs.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
            assert torch.equal(result, expected)
    finally:
        hmp.restore()


@pytest.mark.parametrize("change", [assigned, resized_in_place], ids=lambda change: change.__name__)
def test_threads_may_replace_memory_while_a_step_runs(change: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    weights = [torch.nn.Parameter(torch.ones(1 << 20)) for _ in range(4)]
    optimizer = optim.AdamW(weights, lr=0.1)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    ended = threading.Event()
    # Threads change places where one lets go of the GIL, and nowhere else: torch needs the memory between two resizes.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)

    def replace() -> None:
        while not ended.is_set():
            for weight in weights:
                change(weight, torch.ones(1 << 20))

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(20):
            optimizer.step()
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()
    assert all(optimizer.state[weight]["step"] == 20 for weight in weights)
