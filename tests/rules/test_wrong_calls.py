"""A call that is wrong raises what torch raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import is_cast

BF16 = torch.bfloat16
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7


WRONG: dict[str, Callable[[], Any]] = {
    "shapes": lambda: torch.mm(M, N[:3]),
    "too few": lambda: torch.mm(M),  # type: ignore[call-overload]
    "an unknown keyword": lambda: torch.mm(M, N, nonsense=1),  # type: ignore[call-overload]
    "a string": lambda: torch.mm(M, "x"),  # type: ignore[arg-type]
    "a method of a number": lambda: torch.Tensor.mm(3, M),  # type: ignore[arg-type]
    "an empty list": lambda: torch.cat([]),
    "a dimension": lambda: torch.softmax(M, 7),
    "an assignment": lambda: M.clone().__setitem__(0, torch.ones(7, dtype=BF16)),
    "a linear": lambda: F.linear(M, torch.ones(3, 3)),
}


@each("name", WRONG)
def test_a_wrong_call_raises_what_torch_raises(name: str) -> None:
    with pytest.raises(Exception) as expected:  # noqa: PT011  whatever torch raises
        WRONG[name]()
    hmp.convert()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        WRONG[name]()
    assert type(caught.value) is type(expected.value)
    assert str(caught.value) == str(expected.value)
    assert is_cast()


def test_an_interrupt_is_not_swallowed_by_a_second_attempt(converted: Converter) -> None:
    class Interrupting(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.mm:
                cls.calls += 1
                raise KeyboardInterrupt
            return super().__torch_function__(func, types, args, kwargs or {})

    converted(bf16=["mm"])
    with pytest.raises(KeyboardInterrupt):
        torch.mm(M.as_subclass(Interrupting), M)
    assert Interrupting.calls == 1
