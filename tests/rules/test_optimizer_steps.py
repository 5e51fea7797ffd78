"""Nothing is cast in an optimizer's step, but in the closure that it calls (rule 11)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_unchanged
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import M, is_cast


class Probing(torch.optim.SGD):
    """Notes whether casts are on inside its step."""

    def __init__(self, parameters: Any, fail: bool = False) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen: list[bool] = []
        self.fail = fail

    def step(self, closure: Any = None) -> Any:
        self.seen.append(is_cast())
        if closure is not None:
            with torch.enable_grad():
                closure()
        self.seen.append(is_cast())
        if self.fail:
            raise KeyError
        return None


def parameter() -> nn.Parameter:
    made = nn.Parameter(torch.ones(4, 4))
    made.grad = torch.full((4, 4), 0.5)
    return made


@pytest.mark.parametrize("keyword", [False, True])
def test_a_closure_is_the_models_and_is_cast(converted: Converter, keyword: bool) -> None:
    converted(bf16=["mm"])
    optimizer = Probing([parameter()])
    inside: list[bool] = []

    def closure() -> None:
        inside.append(is_cast())

    if keyword:
        optimizer.step(closure=closure)
    else:
        optimizer.step(closure)
    assert inside == [True]
    assert optimizer.seen == [False, False]
    assert is_cast()


def test_a_step_that_raises_leaves_casts_on(converted: Converter) -> None:
    converted(bf16=["mm"])
    for _ in range(2):
        optimizer = Probing([parameter()], fail=True)
        with pytest.raises(KeyError):
            optimizer.step()
        assert optimizer.seen == [False, False]
        assert is_cast()


def methods_in_front() -> Any:
    """Of optimizers that stand in front of another one, and do not call torch's constructor."""

    class InFront:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            self.seen: list[bool] = []

        @property
        def param_groups(self) -> Any:
            return self.inner.param_groups

        def step(self, closure: Any = None) -> Any:
            self.seen.append(is_cast())
            for group in self.param_groups:
                for one in group["params"]:
                    one.grad = one.grad * (1.3 / (one.grad.norm(2) + 1e-6)) + 0.001
            loss = self.inner.step(closure)
            self.seen.append(is_cast())
            return loss

    return InFront


def class_in_front(**others: Any) -> Any:
    methods = {
        name: one for name, one in vars(methods_in_front()).items() if name in ("__init__", "param_groups", "step")
    }
    return type("InFront", (torch.optim.Optimizer,), methods | others)


def derived_class_in_front() -> Any:
    class Derived(class_in_front()):  # type: ignore[misc]  # made anew
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner)

        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            self.seen.append(is_cast())
            return super().step(closure)

    return Derived


IN_FRONT: dict[str, Callable[[], Any]] = {
    "of its own": class_in_front,
    "derived and decorated": derived_class_in_front,
    "of a mixin": lambda: type("Mixed", (methods_in_front(), torch.optim.Optimizer), {}),
    "of a base class": lambda: type("Derived", (class_in_front(),), {}),
}


@each("name", IN_FRONT)
@each("when", ["before convert", "after convert"])
@each("closed", ["no closure", "a closure", "a closure by its name"])
def test_the_step_of_an_optimizer_that_torchs_constructor_never_saw_is_one(name: str, when: str, closed: str) -> None:
    def stepped(make: Any) -> torch.Tensor:
        weight = parameter()
        optimizer = make(torch.optim.SGD([weight], lr=0.1))
        for _ in range(3):
            given = () if closed == "no closure" else (closure,)
            named = {"closure": given[0]} if closed == "a closure by its name" else {}
            optimizer.step(*(() if named else given), **named)
        assert not any(optimizer.seen)
        assert len(optimizer.seen) > 5
        return weight.detach()

    def closure() -> float:
        inside.append(is_cast())
        return 1.0

    inside: list[bool] = []
    expected = stepped(IN_FRONT[name]())
    make = IN_FRONT[name]() if when == "before convert" else None
    inside.clear()
    hmp.convert()
    result = stepped(make or IN_FRONT[name]())
    assert torch.equal(result, expected)
    assert all(inside)
    assert len(inside) == (0 if closed == "no closure" else 3)
    assert is_cast()


def test_the_step_of_a_mixin_is_no_step_in_a_class_that_is_no_optimizer() -> None:
    class Steps:
        def __init__(self, *_: Any) -> None: ...

        def step(self) -> bool:
            return is_cast()

    mixed: Any = type("Mixed", (Steps, torch.optim.Optimizer), {})
    hmp.convert()
    assert mixed().step() is False
    assert Steps().step() is True


def test_restore_leaves_nothing_of_ours_in_such_optimizers() -> None:
    made = class_in_front()
    code = made.step.__code__
    hmp.convert()
    assert made.step.__code__ is not code
    later = class_in_front()
    hmp.restore()
    assert made.step.__code__ is code
    assert later.step.__code__ is code
    assert "__init_subclass__" not in vars(torch.optim.Optimizer)
    alive = [weakref.ref(made), weakref.ref(later)]
    del made, later
    gc.collect()
    assert [one() for one in alive] == [None, None]


OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "NAdam", "RAdam", "Rprop", "ASGD", "Adamax"]


@each("name", [*OPTIMIZERS, "LBFGS"])
def test_an_optimizer_steps_in_float32_bit_by_bit(name: str) -> None:
    def train(closure_too: bool) -> list[torch.Tensor]:
        weight = nn.Parameter(M.clone())
        optimizer = getattr(torch.optim, name)([weight])

        def closure() -> torch.Tensor:
            weight.grad = torch.cos(weight.detach())
            return torch.tensor(1.0)

        for _ in range(3):
            closure()
            optimizer.step(closure) if closure_too else optimizer.step()
        state = optimizer.state[weight]
        return [weight.detach(), *(one for one in state.values() if isinstance(one, torch.Tensor))]

    assert_unchanged(lambda: train(name == "LBFGS"))
