"""Every operation of torch's own database: mixed inputs by the rules, float32 inputs under the default lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from habana_mp import hmp
from habana_mp import ops as operations
from helpers.comparing import tensors
from helpers.each import each
from helpers.lists import Converter
from helpers.operation_database import (
    BF16,
    Call,
    calls_of,
    cast_by_hand,
    entries,
    entries_of_several_inputs,
    mixtures,
    name_of,
    operation_of,
)


def assert_same(result: Any, expected: Any) -> None:
    mine, theirs = tensors(result), tensors(expected)
    assert [one.dtype for one in mine] == [one.dtype for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=False)


def runs(call: Call, function: Any) -> bool:
    """Does plain torch take the call?"""
    try:
        call.copied().run(function)
    except Exception:
        return False
    return True


def by_hand_of(op: Any, mixed: Call, function: Any) -> Any:
    """What somebody gets who casts the inputs; of a sum by index, who rounds its result."""
    if operation_of(op) not in ("index_add", "index_put", "put"):
        return cast_by_hand(op, mixed).copied().run(function)
    return mixed.mapped(lambda t, _: t.float()).copied().run(function).to(mixed.arguments[0].dtype)


def assert_is_by_hand(op: Any, mixed: Call, function: Any, result: Any, expected: Any) -> None:
    """Asserts the result of inputs that are cast by hand. A product may also be rounded once, from a float32 sum."""
    try:
        assert_same(result, expected)
    except AssertionError:
        if not operations.row_of(operation_of(op) or "").product_form:
            raise
        wide = cast_by_hand(op, mixed).mapped(lambda t, _: t.float()).copied().run(function)
        assert_same(result, wide.to(expected.dtype))


def groups(of: Callable[[], list[Any]]) -> Callable[[], list[list[Any]]]:
    """Returns a function that divides the entries into groups for one conversion each."""
    return lambda: [of()[first::40] for first in range(40)]


@each("ops", groups(entries_of_several_inputs), parts=4)
def test_mixed_inputs_run_as_cast_by_hand(converted: Converter, ops: list[Any]) -> None:
    given = []
    for op in ops:
        calls = [mixed for plain, mixed in mixtures(op, limit=3) if runs(plain, op.op)]
        assert calls, name_of(op)
        by_hand = [None if operation_of(op) is None else by_hand_of(op, mixed, op.op) for mixed in calls]
        given += [(op, *both) for both in zip(calls, by_hand, strict=True)]
    converted()
    results = [mixed.copied().run(op.op) for op, mixed, _ in given]
    hmp.restore()
    for (op, mixed, expected), result in zip(given, results, strict=True):
        try:
            assert_is_by_hand(op, mixed, op.op, result, result if expected is None else expected)
        except AssertionError as error:
            raise AssertionError(name_of(op)) from error


VARIANTS = ("method_variant", "operator_variant")
IN_PLACE_VARIANTS = ("inplace_variant", "inplace_operator_variant")


def test_mixed_inputs_run_as_cast_by_hand_in_every_form(converted: Converter) -> None:
    """Methods and operators give what the function gives."""
    wrong = []
    for op in entries_of_several_inputs():
        operation = operation_of(op)
        functions = [getattr(op, form, None) for form in VARIANTS]
        calls = [
            (mixed, function)
            for _, mixed in mixtures(op, limit=1)
            for function in functions
            if function is not None and operation is not None and runs(mixed.mapped(lambda t, _: t.float()), function)
        ]
        by_hand = [by_hand_of(op, mixed, function) for mixed, function in calls]
        converted()
        results = [mixed.copied().run(function) for mixed, function in calls]
        hmp.restore()
        for (mixed, function), result, expected in zip(calls, results, by_hand, strict=True):
            try:
                assert_is_by_hand(op, mixed, function, result, expected)
            except AssertionError as error:
                wrong.append((name_of(op), function, str(error)))
    assert wrong == []


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def wrong_in_place(function: Any, calls: list[tuple[Call, Call]], convert: Callable[[], None]) -> list[str]:
    """What of the in-place calls differs from the same calls as cast by hand: identity, dtype, storage, values."""
    wrong = []
    if not calls:
        return wrong
    prepared = []
    for call, by_hand in calls:
        expected = by_hand.copied()
        before = storage(expected.arguments[0])
        expected.run(function)
        # addbmm_ takes new memory in plain torch too
        prepared.append((call.copied(), expected.arguments[0], storage(expected.arguments[0]) == before))
    convert()
    for call, expected, keeps_storage in prepared:
        target = call.arguments[0]
        dtype, before = target.dtype, storage(target)
        result = call.run(function)
        if result is not target or target.dtype is not dtype or (keeps_storage and storage(target) != before):
            wrong.append("identity, dtype or storage")
        elif not torch.equal(target.nan_to_num(7.0), expected.nan_to_num(7.0)):
            wrong.append(f"{target} instead of {expected}")
    hmp.restore()
    return wrong


@pytest.mark.parametrize("lists", ["no lists", "default lists"])
@pytest.mark.parametrize("form", IN_PLACE_VARIANTS)
def test_in_place_operations_cast_the_others_to_their_target(converted: Converter, form: str, lists: str) -> None:
    wrong = {}
    for op in entries_of_several_inputs():
        function = getattr(op, form, None)
        calls = []
        for _, mixed in mixtures(op, limit=1) if function is not None else ():
            by_hand = mixed.mapped(lambda tensor, _, of=mixed: tensor.to(of.arguments[0].dtype))
            if isinstance(mixed.arguments[0], torch.Tensor) and runs(by_hand, function):
                calls.append((mixed, by_hand))
        if found := wrong_in_place(function, calls, converted if lists == "no lists" else hmp.convert):
            wrong[name_of(op)] = found
    assert wrong == {}


#: Results that say nothing about precision, and why.
NOT_COMPARED = {
    **dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        "memory that nobody has written",
    ),
    "linalg.pinv.singular": "a matrix is singular only as long as the product that makes it is exact",
}


def results_and_gradients(call: Call, function: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """The floating results of a call, and the gradients of a weighted sum of them."""
    leaves = []

    def leaf(tensor: torch.Tensor, _: int | str) -> torch.Tensor:
        leaves.append(tensor.detach().clone().requires_grad_())
        return leaves[-1]

    results = [one for one in tensors(call.mapped(leaf).run(function)) if one.is_floating_point()]
    recorded = [one for one in results if one.requires_grad and one.layout is torch.strided]
    if recorded:
        with hmp.disable_casts():
            weights = [torch.linspace(0.5, 1.5, one.numel()).reshape(one.shape) for one in recorded]
            loss = sum((one.float() * weight).sum() for one, weight in zip(recorded, weights, strict=True))
        loss.backward()
    return [one.detach() for one in results], [one.grad for one in leaves]


def without_gradients(call: Call, function: Any) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    results = [one for one in tensors(call.copied().run(function)) if one.is_floating_point()]
    return results, []


def distance(mine: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """How far apart two tensors are, as a part of the second one's size."""
    if mine is None or other is None:
        return 0.0 if mine is other else float("inf")
    mine, other = (one.to_dense().double() for one in (mine, other))
    if mine.shape != other.shape or not torch.equal(mine.isfinite(), other.isfinite()):
        return float("inf")
    finite = other.isfinite()
    size = other[finite].norm() + 0.02 * finite.sum().sqrt()
    return float((mine - other)[finite].norm() / size) if finite.any() else 0.0


def farthest(mine: Any, other: Any) -> float:
    pairs = [pair for both in zip(mine, other, strict=True) for pair in zip(*both, strict=True)]
    return max((distance(*pair) for pair in pairs), default=0.0)


@each("ops", groups(entries), parts=4)
def test_float32_inputs_stay_near_float32(ops: list[Any]) -> None:
    """No error that plain torch does not raise; results and gradients within bfloat16's reach of float32's."""
    plain = []
    for op in ops:
        for call in calls_of(op, 2):
            for way in (results_and_gradients, without_gradients):
                try:
                    plain.append((op, call, way, way(call, op.op)))
                except Exception:
                    continue  # some have no gradient, and some samples are meant to fail
                break
    hmp.convert()
    converted = [way(call, op.op) for op, call, way, _ in plain]
    hmp.restore()
    for (op, call, way, expected), result in zip(plain, converted, strict=True):
        for mine, other in zip(result[1], expected[1], strict=True):
            assert (mine is None) == (other is None), name_of(op)
            assert mine is None or mine.dtype is other.dtype, name_of(op)
        if name_of(op) in NOT_COMPARED or (found := farthest(result, expected)) < 0.05:
            continue
        with torch.autocast("cpu", dtype=BF16):
            autocast = way(call, op.op)
        assert found <= 1.1 * farthest(autocast, expected), name_of(op)


@pytest.mark.parametrize("form", IN_PLACE_VARIANTS)
def test_in_place_operations_on_float32_stay_what_they_are(form: str) -> None:
    """Under the default lists an operation in place is made in the precision of its target."""
    wrong = {}
    for op in entries():
        function = getattr(op, form, None)
        calls = [call for call in calls_of(op, 1) if isinstance(call.arguments[0], torch.Tensor)] if function else []
        if found := wrong_in_place(function, [(call, call) for call in calls if runs(call, function)], hmp.convert):
            wrong[name_of(op)] = found
    assert wrong == {}
