"""torch's own cases for autocast: each gives the dtype that torch's lists say, as a function and as a method alike, and
the bits that casting by hand gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

from habana_mp import hmp
from helpers.each import each

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

#: Of torch's cases, those that only cuDNN computes.
NEED_CUDNN = {"cudnn_convolution", "cudnn_convolution_transpose"}
#: A case that torch never runs, since its arguments do not fit; here they are other ones.
EINSUM = ("ij,jk->ik", torch.linspace(-1, 1, 64).reshape(8, 8), torch.linspace(0, 3, 64).reshape(8, 8))


@dataclass(frozen=True)
class Case:
    """One call; ``runs_in`` is the precision of its inputs (None for as they are) and ``gives`` the result's dtype."""

    list_name: str
    operation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    modules: tuple[Any, ...]
    runs_in: torch.dtype | None
    gives: torch.dtype

    def __str__(self) -> str:
        return f"{self.list_name}-{self.operation}"


def with_precision(value: Any, of: Callable[[torch.Tensor], torch.dtype]) -> Any:
    """Casting by hand."""
    if isinstance(value, torch.Tensor):
        return value.to(of(value)) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(with_precision(one, of) for one in value)
    return value


#: By the list's name: where its functions live, and what its operations run in (the lower precision is FP16 here).
LISTS: dict[str, tuple[tuple[Any, ...], torch.dtype | None]] = {
    "torch_expect_builtin_promote": ((torch,), None),
    "methods_expect_builtin_promote": ((), None),
    "torch_fp16": ((torch,), FP16),
    "torch_16": ((torch,), FP16),
    "torch_fp32": ((torch,), FP32),
    "torch_need_autocast_promote": ((torch,), FP32),
    "nn_fp16": ((torch._C._nn,), FP16),
    "nn_16": ((torch._C._nn,), FP16),
    "nn_fp32": ((torch._C._nn,), FP32),
    "linalg_fp16": ((torch.linalg, torch._C._linalg), FP16),
    "methods_fp16": ((), FP16),
    "methods_fp32": ((), FP32),
}


def cases(source: Any, lower: torch.dtype) -> Iterator[Case]:
    """All cases of one of torch's classes, its half precision inputs exchanged for ``lower`` ones."""
    torch.manual_seed(0)
    lists = source("cpu")
    unknown = [name for name in vars(lists) if name not in LISTS and name != "banned"]
    assert unknown == []
    for name, (modules, precision) in LISTS.items():
        for operation, arguments, *more in getattr(lists, name, ()):
            if operation in NEED_CUDNN:
                continue
            keywords = more[0] if more and isinstance(more[0], dict) else {}
            given = EINSUM if operation == "einsum" else arguments
            given = with_precision(given, lambda one: lower if one.dtype in (BF16, FP16) else one.dtype)
            runs_in = lower if precision is FP16 else precision
            yield Case(name, operation, given, keywords, modules, runs_in, more[-1] if runs_in is None else runs_in)


def all_cases() -> Iterator[tuple[str, torch.dtype, Case]]:
    for preset, source, lower in (
        ("torch-cpu", AutocastCPUTestLists, BF16),
        ("torch-cuda", AutocastTestLists, BF16),
        ("torch-cuda", AutocastTestLists, FP16),
    ):
        for case in cases(source, lower):
            yield preset, lower, case


def dtypes(value: Any) -> set[torch.dtype]:
    if isinstance(value, torch.Tensor):
        return {value.dtype}
    return set().union(*map(dtypes, value)) if isinstance(value, (list, tuple)) else set()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype is other.dtype
    if isinstance(one, (list, tuple)):
        return all(map(same, one, other))
    return bool(one == other)


@each("preset, lower, case", all_cases, parts=2)
def test_a_case_of_torchs_runs_in_the_precision_of_its_list(preset: str, lower: torch.dtype, case: Case) -> None:
    ways: list[Callable[[tuple[Any, ...]], Any]] = []
    for module in case.modules:
        if hasattr(module, case.operation):
            ways.append(lambda given, module=module: getattr(module, case.operation)(*given, **case.keywords))
    if hasattr(torch.Tensor, case.operation) and isinstance(case.arguments[0], torch.Tensor):
        ways.append(lambda given: getattr(given[0], case.operation)(*given[1:], **case.keywords))
    assert ways

    def wanted(one: torch.Tensor) -> torch.dtype:
        return one.dtype if case.runs_in is None else case.runs_in

    by_hand = [way(with_precision(case.arguments, wanted)) for way in ways]
    with hmp.autocast("cpu", lower, preset=preset):
        results = [way(case.arguments) for way in ways]
    for result, expected in zip(results, by_hand, strict=True):
        assert dtypes(result) <= {case.gives}
        assert same(result, expected)
        assert same(result, results[0])


@pytest.mark.parametrize("lower", [BF16, FP16])
def test_what_torch_bans_under_cuda_is_refused_in_float16(lower: torch.dtype) -> None:
    lists: Any = AutocastTestLists("cpu")
    for operation, arguments, module in lists.banned:
        with hmp.autocast("cpu", lower, preset="torch-cuda"):
            if lower is FP16:
                with pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
                    getattr(module, operation)(*arguments)
            else:
                assert getattr(module, operation)(*arguments).dtype is FP32
