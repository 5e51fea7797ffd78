"""Sums by index, and gradients of lookups, add up in float32 (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter

BF16, FP16 = torch.bfloat16, torch.float16


_FIRST_PLACE = torch.zeros(1000, dtype=torch.long)
#: What picks the first of three rows, or its first value, a thousand times.
_PICKS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "[index]": lambda e: e[_FIRST_PLACE],
    "[index, 0]": lambda e: e[_FIRST_PLACE, 0],
    "[:, index]": lambda e: e[:, _FIRST_PLACE],
    "[list]": lambda e: e[[0] * 1000],
    "[array]": lambda e: e[_FIRST_PLACE.numpy()],
    "__getitem__": lambda e: e.__getitem__(_FIRST_PLACE),
    "[index] of a view": lambda e: e[:, 0][_FIRST_PLACE],
    "[index] of [index]": lambda e: e[_FIRST_PLACE[:1]][_FIRST_PLACE],
    "torch.index_select": lambda e: torch.index_select(e[:, 0], 0, _FIRST_PLACE),
    "Tensor.index_select": lambda e: e[:, 0].index_select(dim=0, index=_FIRST_PLACE),
    "take": lambda e: e.take(_FIRST_PLACE),
    "gather": lambda e: e[:, 0].gather(0, _FIRST_PLACE),
    "repeat_interleave": lambda e: e[:, 0].repeat_interleave(torch.tensor([1000, 1, 1])),
    "embedding": lambda e: F.embedding(_FIRST_PLACE, e),
    "embedding_bag": lambda e: F.embedding_bag(_FIRST_PLACE[:, None], e, mode="sum"),
}


@each("name", _PICKS)
def test_the_gradient_of_a_lookup_of_what_was_lowered_adds_up_in_float32(converted: Converter, name: str) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 8))
    converted(bf16=["mul"])
    lowered = weight * 1
    picked = _PICKS[name](lowered)
    picked.float().sum().backward()
    assert picked.dtype is BF16
    assert weight.grad.max() == 1000


#: These look up what is no Parameter, or torch adds up in no fixed order.
_PICKS_OF_OTHERS = ("[index] of [index]", "gather", "embedding_bag")


@each("name", [name for name in _PICKS if name not in _PICKS_OF_OTHERS])
def test_the_gradient_of_a_lookup_of_a_bfloat16_parameter_is_torchs(converted: Converter, name: str) -> None:
    def gradient() -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(3, 8, dtype=BF16))
        picked = _PICKS[name](weight)
        picked.float().sum().backward()
        assert weight.grad is not None
        return weight.grad

    expected = gradient()
    converted(bf16=["mul"])
    assert_same(gradient(), expected)


@pytest.mark.parametrize("name", ["embedding", "embedding_bag"])
@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_the_gradient_of_a_weight_that_a_list_lowers_for_a_lookup_adds_up_in_float32(
    converted: Converter, name: str, lower: torch.dtype
) -> None:
    weight = torch.nn.Parameter(torch.rand(3, 8))
    converted(bf16=[name], dtype=lower)
    picked = _PICKS[name](weight)
    assert picked.dtype is lower
    assert torch.equal(picked, weight.detach()[_FIRST_PLACE].to(lower))
    picked.float().sum().backward()
    assert weight.grad.max() == 1000


_SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "torch.index_add": lambda zeros, ones: torch.index_add(zeros, 0, _FIRST_PLACE, ones),
    "Tensor.index_add": lambda zeros, ones: zeros.index_add(0, _FIRST_PLACE, source=ones),
    "index_put": lambda zeros, ones: zeros.index_put((_FIRST_PLACE,), ones, accumulate=True),
    "torch.index_put": lambda zeros, ones: torch.index_put(zeros, (_FIRST_PLACE,), ones, True),
    "put": lambda zeros, ones: zeros.put(_FIRST_PLACE, ones, accumulate=True),
    "scatter_add": lambda zeros, ones: zeros.scatter_add(0, _FIRST_PLACE, ones),
}


@each("name", _SUMS)
@each("recorded", [False, True])
def test_what_was_lowered_is_summed_by_index_in_float32(converted: Converter, name: str, recorded: bool) -> None:
    ones = torch.ones(1000, requires_grad=recorded)
    zeros = torch.zeros(3, dtype=BF16)
    converted(bf16=["mul"])
    for source in (ones * 1, ones):  # lowered by a list, and to be lowered by rule 4
        if name == "scatter_add" and source is ones:
            continue
        result = _SUMS[name](zeros, source)
        assert result.dtype is BF16
        assert result[0] == 1000


@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_ones_own_lower_precision_is_summed_by_index_in_float32(converted: Converter, lower: torch.dtype) -> None:
    zeros, ones = torch.zeros(3, dtype=lower), torch.ones(1000, dtype=lower)
    converted(bf16=["mul"])
    for call in _SUMS.values():
        result = call(zeros, ones)
        assert result.dtype is lower
        assert result[0] == 1000
    with hmp.disable_casts():
        assert zeros.index_add(0, _FIRST_PLACE, ones)[0] == (256 if lower is BF16 else 1000)  # as torch sums


def test_bfloat16_parameters_are_summed_by_index_as_torch_does(converted: Converter) -> None:
    zeros, ones = (torch.nn.Parameter(make(1000, dtype=BF16)) for make in (torch.zeros, torch.ones))
    expected = {name: call(zeros, ones) for name, call in _SUMS.items()}
    converted(bf16=["mul"])
    for name, call in _SUMS.items():
        assert_same(call(zeros, ones), expected[name])


def test_indexing_that_picks_nothing_twice_is_not_cast(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.jsonl"
    weight = torch.nn.Parameter(torch.ones(4, 4))
    converted(bf16=["mul"], log=log)
    lowered = weight * 1
    _ = lowered[0], lowered[1:], lowered[..., 0], lowered[None], lowered[0, 1], lowered[torch.tensor(1)]
    _ = lowered[lowered > 2], lowered[:, [True, False, True, False]], lowered.detach()[_FIRST_PLACE]
    hmp.restore()
    assert '"getitem"' not in log.read_text("utf-8")


def test_a_lookup_of_what_was_lowered_is_differentiated_twice(converted: Converter) -> None:
    weight = torch.nn.Parameter(torch.full((3, 2), 2.0))
    converted(bf16=["mul"])
    picked = (weight * weight)[_FIRST_PLACE]
    (first,) = torch.autograd.grad(picked.float().sum(), weight, create_graph=True)
    assert first[0, 0] == 4000
    first.sum().backward()
    assert weight.grad[0, 0] == 2000


def test_a_compiled_lookup_of_what_was_lowered_adds_up_in_float32(converted: Converter) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 8))
    converted(bf16=["mul"])
    compiled = torch.compile(lambda w: (w * 1)[_FIRST_PLACE].float().sum(), backend="aot_eager")
    compiled(weight).backward()
    assert weight.grad.max() == 1000
