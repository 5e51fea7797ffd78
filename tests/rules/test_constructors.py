"""Nothing is cast while a module is constructed (rule 11)."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import HmpWarning
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N, is_cast


class Made(nn.Module):
    """Computes its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.mm(M, N))


class Derived(Made):
    """A chain of classes, with more to compute at each end."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.mm(M, N)[0])
        self.child = Made()
        self.register_buffer("table", torch.mm(N, M))


class Nested(nn.Module):
    """Computes between and after its children."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Derived()
        self.between = nn.Parameter(torch.mm(M, N))
        self.rest = nn.ModuleList([Made(), nn.Linear(2, 2)])
        self.after = nn.Parameter(torch.mm(M, N))
        self.forwarded = nn.Parameter(self.rest[1](torch.ones(1, 2)).detach())


class OldStyle(nn.Module):
    """Names its base class and its first parameter in its own way."""

    def __init__(this, size: int = 4) -> None:  # noqa: N805
        nn.Module.__init__(this)
        this.weight = nn.Parameter(torch.mm(M, N)[:size])


@each("kind", [Nested, OldStyle])
def test_nothing_is_cast_while_a_module_is_constructed(converted: Converter, kind: type[nn.Module]) -> None:
    converted(bf16=["mm", "linear"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        module = kind()
    lowered = [name for name, value in module.state_dict().items() if value.dtype is not FP32]
    assert lowered == []
    assert is_cast()


def test_casts_are_back_after_a_construction_that_raised(converted: Converter) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Made()
            assert not is_cast()
            raise KeyError

    converted(bf16=["mm"])
    for _ in range(3):
        with pytest.raises(KeyError):
            Broken()
        assert is_cast()
        assert Made().weight.dtype is FP32
        assert is_cast()


def test_a_module_made_inside_of_forward_does_not_stop_the_casts_around_it(converted: Converter) -> None:
    class Lazy(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.dtype]:
            seen = [torch.mm(x, x).dtype]
            nn.Softmax(-1)
            Made()
            seen.append(torch.mm(x, x).dtype)
            return seen

    converted(bf16=["mm"])
    assert Lazy()(M) == [BF16, BF16]


def test_construction_in_one_thread_does_not_stop_the_casts_of_another(converted: Converter) -> None:
    inside, done, seen = threading.Event(), threading.Event(), []

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            inside.set()
            done.wait(10)
            seen.append(is_cast())

    converted(bf16=["mm"])
    thread = threading.Thread(target=Slow)
    thread.start()
    inside.wait(10)
    assert is_cast()
    done.set()
    thread.join()
    assert seen == [False]


def test_a_decorator_of_constructors_and_other_methods_does_not_make_these_constructors(converted: Converter) -> None:
    def decorated(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if isinstance(args[0], nn.Module) and function.__name__ == "__init__":
                args[0].after = nn.Parameter(torch.mm(torch.eye(4), torch.eye(4)))
            return result

        return wrapper

    class Module(nn.Module):
        @decorated
        def __init__(self) -> None:
            super().__init__()

        @decorated
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

    converted(bf16=["mm"])
    module = Module()
    assert module.after.dtype is torch.float32
    assert module(torch.eye(4)).dtype is torch.bfloat16


def test_a_finalizer_that_computes_while_a_construction_is_looked_for(converted: Converter) -> None:
    converted(bf16=["mm"])

    class Computes:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            torch.mm(M, N)

    def within(frames: int) -> bool:
        if frames:
            return within(frames - 1)
        made = nn.Module()
        Computes()
        return is_cast() and made.training

    before = gc.get_threshold()
    try:
        gc.set_threshold(3)
        assert all(within(number % 40) for number in range(300))
    finally:
        gc.set_threshold(*before)
