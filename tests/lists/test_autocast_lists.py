"""torch's own cases for autocast: each gives the dtype that torch's lists say, as a function and as a method alike, and
the bits that casting by hand gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

from habana_mp import hmp, ops
from habana_mp.policy.presets import Preset, presets
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
        if one.dtype is not other.dtype or one.shape != other.shape:
            return False
        # A processor without instructions for the precision sums products in another order than torch's library.
        if not one.is_floating_point() or one.numel() == 0:
            return torch.equal(one, other)
        rounding = torch.finfo(one.dtype).eps
        least = rounding * other.double().nan_to_num(0, 0, 0).abs().max().item()
        return torch.allclose(one.double(), other.double(), rounding, least, equal_nan=True)
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

    given = with_precision(case.arguments, wanted)
    if "conv_transpose" in case.operation:  # without instructions, torch rounds each part of a sum
        rounded_once = with_precision(given, lambda _: FP32)
        by_hand = [way(rounded_once).to(case.gives) for way in ways]
    else:
        by_hand = [way(given) for way in ways]
    with hmp.autocast("cpu", lower, preset=preset):
        results = [way(case.arguments) for way in ways]
    for result, expected in zip(results, by_hand, strict=True):
        assert dtypes(result) <= {case.gives}
        assert same(result, expected)
        assert same(result, results[0])


# ---- the lists of a release of torch --------------------------------------------------------------------------------

DEVICES = ["cpu", "cuda", "xpu"]

#: What torch registers and no preset names: kernels that its own operations call, and what `hmp.autocast` refuses.
NOT_LISTED = {
    "_scaled_dot_product_flash_attention", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "binary_cross_entropy",
    "cudnn_convolution", "cudnn_convolution_transpose", "_cudnn_rnn",
}  # fmt: skip
#: What presets name beside the names that torch registers: Python's names, and what consists of registered operations.
ALSO_LISTED = {"__matmul__", "__rdiv__", "__rtruediv__", "cross_entropy", "normalize", "softmin"}

#: The list of each policy in torch's header.
POLICIES = {"LOWER_PRECISION_FP": "lower", "FP32": "fp32", "FP32_SET_OPT_DTYPE": "fp32", "PROMOTE": "widest"}


def meant_by(name: str) -> set[str]:
    resolved = ops.resolve(name)
    return {name} if resolved is None else {name, *resolved.exact, *resolved.family}


def listed(preset: Preset) -> Iterator[tuple[str, str]]:
    """The names and their lists. An operation of which only the products are lowered is not registered itself."""
    for part in ("lower", "fp32", "widest"):
        yield from ((one.name, part) for one in getattr(preset, part) if not one.products_only)


@pytest.mark.parametrize("device", DEVICES)
def test_a_preset_names_what_this_torch_registers(device: str) -> None:
    """With a torch that is newer than the releases of the preset, the newest one is compared. If they differ, the new
    release is missing in `lists/presets/`."""
    key = f"Autocast{device.upper()}"
    registered = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key(key)
        if name.startswith("aten::")
    }
    names = {name for name, _ in listed(presets()[f"torch-{device}"]) if ops.resolve(name) is not None}
    assert registered - set().union(*map(meant_by, names)) <= NOT_LISTED
    assert {name for name in names if not registered & meant_by(name)} <= ALSO_LISTED


@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_a_preset_has_each_name_in_the_list_of_torchs_policy(device: str) -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    macros = re.findall(r"#define AT_FORALL_(\w+)\(_\) *((?:.*\\\n)*.*)", header.read_text("utf-8"))
    policy = {
        name: POLICIES[macro] for macro, body in macros if macro in POLICIES for name in re.findall(r"_\((\w+)", body)
    }
    assert len(policy) > 90
    for name, part in listed(presets()[f"torch-{device}"]):
        assert {policy[one] for one in meant_by(name) & policy.keys()} <= {part}, name


def test_a_preset_without_a_release_is_that_of_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    releases = [name for name in presets() if name.startswith("torch-cuda@")]
    assert releases[0] == "torch-cuda@2.8"
    for version, release in (("2.8.0", "2.8"), ("2.11.1+cu128", "2.11"), ("2.14.0", "2.14"), ("3.0.0", "2.14")):
        monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
        presets.cache_clear()
        here, pinned = presets()["torch-cuda"], presets()[f"torch-cuda@{release}"]
        assert (here.fp32, here.description) == (pinned.fp32, pinned.description)
    presets.cache_clear()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("release", "has_rms_norm"), [("2.8", False), ("2.11", False), ("2.12", True), ("2.14", True)])
def test_norms_run_as_under_torch_autocast_in_that_release(device: str, release: str, has_rms_norm: bool) -> None:
    """CUDA and XPU have had layers' norms in float32 in all releases, RMSNorm since 2.12; the CPU has neither."""
    x = torch.randn(4, 8, dtype=BF16)
    hmp.convert(preset=f"torch-{device}@{release}")
    assert torch.nn.RMSNorm(8, dtype=BF16)(x).dtype is (FP32 if has_rms_norm and device != "cpu" else BF16)
    assert torch.nn.LayerNorm(8, dtype=BF16)(x).dtype is (BF16 if device == "cpu" else FP32)
    assert torch.nn.RMSNorm(8)(x.float()).dtype is FP32
