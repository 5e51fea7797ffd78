"""A call that is wrong raises what torch raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, M, N, is_cast

WRONG: dict[str, Callable[[], Any]] = {
    "shapes": lambda: torch.mm(M, N[:3]),
    "too few": lambda: torch.mm(M),  # type: ignore[call-overload]  # wrong on purpose
    "an unknown keyword": lambda: torch.mm(M, N, nonsense=1),  # type: ignore[call-overload]  # wrong on purpose
    "a string": lambda: torch.mm(M, "x"),  # type: ignore[arg-type]  # wrong on purpose
    "a method of a number": lambda: torch.Tensor.mm(3, M),  # type: ignore[arg-type]  # wrong on purpose
    "an empty list": lambda: torch.cat([]),
    "a dimension": lambda: torch.softmax(M, 7),
    "an assignment": lambda: M.clone().__setitem__(0, torch.ones(7, dtype=BF16)),
    "a linear": lambda: F.linear(M, torch.ones(3, 3)),
    "a number beyond float32": lambda: M.bfloat16().masked_fill(M > 0.5, 1e300),
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


H = M.bfloat16()
WRONG_OF_LOWERED: dict[str, tuple[Callable[[], Any], str]] = {
    "a linear": (lambda: nn.Linear(5, 3)(H), "mat1 and mat2 shapes cannot be multiplied (4x4 and 5x3)"),
    "a convolution": (lambda: nn.Conv2d(3, 4, 2)(H[None, None]), "expected input[1, 1, 4, 4] to have 3 channels"),
    "an attention": (lambda: F.scaled_dot_product_attention(H[None], M[None, :, :3], M[None]), "must match|Expected"),
    "no kernel": (lambda: torch.linalg.inv(H[:3]), "must be batches of square matrices"),
    "no kernel, singular": (lambda: torch.linalg.inv(torch.zeros_like(H)), "the input matrix is singular"),
    "a layer of norm": (lambda: nn.LayerNorm(5)(H), "expected input with shape [*, 5]"),
    "an LSTM": (lambda: nn.LSTM(3, 2)(H), "Expected 3, got 4"),
    "no kernel for any": (lambda: torch.bitwise_and(H, H), "not implemented for 'BFloat16'"),
}


@each("name", WRONG_OF_LOWERED)
def test_a_refusal_of_a_dtype_hides_no_other_error(name: str) -> None:
    call, expected = WRONG_OF_LOWERED[name]
    hmp.convert()
    with pytest.raises(Exception) as caught:  # noqa: PT011  of any class: the words count
        call()
    assert any(words in str(caught.value) for words in expected.split("|"))


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
