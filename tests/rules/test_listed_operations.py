"""Operations that a list names: what is cast, to what, and that the values are those of casting by hand (rule 1)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F

from habana_mp import ops
from habana_mp.policy import presets
from helpers.cases import ADDED_UP, CASES, LATE_KERNELS, NO_KERNEL, VIEWS, WITHOUT_CASE, Case, cast, differing
from helpers.comparing import assert_same
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32


def test_every_shipped_name_has_a_case_or_a_reason() -> None:
    named = {case.name for case in CASES + VIEWS}
    here = {name for name in presets.shipped_names() if ops.resolve(name) is not None}
    assert here <= named | set(WITHOUT_CASE)


def groups(cases: list[Case]) -> list[list[Case]]:
    """Returns the cases of every eighth name: a list of operations that are not parts or spellings of each other."""
    names = list(dict.fromkeys(case.name for case in cases))
    return [[case for case in cases if case.name in names[first::8]] for first in range(8)]


@each("cases", groups([case for case in CASES if case.name not in NO_KERNEL]))
@each("dtype", [BF16, FP16])
def test_an_operation_of_the_lower_list_equals_casting_by_hand(
    converted: Converter, cases: list[Case], dtype: torch.dtype
) -> None:
    given = []
    for case in cases:
        try:
            expected = case.run(case.cast(dtype))
        except RuntimeError:
            is_known = dtype is FP16 or case.name in LATE_KERNELS
            assert is_known, "an operation without a bfloat16 kernel belongs to NO_KERNEL"
            expected = case.run()
        given.append((case, case.inputs, cast(case.run(), dtype) if case.name in ADDED_UP else expected))
    converted(bf16=[case.name for case in cases], dtype=dtype)
    assert differing(given) == {}


@each("cases", groups([case for case in CASES if case.name in NO_KERNEL]))
def test_an_operation_without_a_kernel_runs_in_float32_whatever_the_list_says(
    converted: Converter, cases: list[Case]
) -> None:
    given = [(case, case.inputs, case.run()) for case in cases]
    converted(bf16=[case.name for case in cases])
    assert differing(given) == {}


@each("cases", groups(CASES))
def test_an_operation_of_the_float32_list_equals_casting_by_hand(converted: Converter, cases: list[Case]) -> None:
    given = []
    for case in cases:
        lowered = case.cast(BF16, everything=case.name != "batch_norm")
        given.append((case, lowered, case.run(Case("", "", case.call, lowered).cast(FP32))))
    converted(fp32=[case.name for case in cases])
    assert differing(given) == {}


def test_operations_in_no_list_are_left_to_their_inputs(converted: Converter) -> None:
    given = [(case, case.inputs, case.run()) for case in CASES]
    converted()
    assert differing(given) == {}


def test_lower_inputs_of_operations_in_no_list_give_what_torch_gives(converted: Converter) -> None:
    given = []
    for case in CASES:
        if case.name not in NO_KERNEL:
            with contextlib.suppress(RuntimeError) if case.name in LATE_KERNELS else contextlib.nullcontext():
                given.append((case, case.cast(BF16), case.run(case.cast(BF16))))
    converted()
    assert differing(given) == {}


@each("name", ["clamp", "pow", "masked_fill", "pad", "hardtanh", "threshold", "scatter"])
def test_infinities_in_a_tensor_stay_infinite_where_scalars_saturate(converted: Converter, name: str) -> None:
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "clamp": lambda x: torch.clamp(x, min=0),
        "pow": lambda x: x**3,
        "masked_fill": lambda x: x.masked_fill(x == 0, 1.0),
        "pad": lambda x: F.pad(x, (1, 1)),
        "hardtanh": lambda x: F.hardtanh(x, 0, float("inf")),
        "threshold": lambda x: F.threshold(x, -float("inf"), 1),
        "scatter": lambda x: x.scatter(0, torch.tensor([1]), 5.0),
    }
    x = torch.tensor([float("inf"), 0.0, -float("inf"), 2.0])
    expected = calls[name](x.bfloat16())
    converted(bf16=[name])
    assert_same(calls[name](x), expected)
