"""A call of convert: levels, parameters, switches, and what a call that fails leaves in force."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from habana_mp.policy import options
from helpers.cases import CASES, Case
from helpers.comparing import tensors
from helpers.each import each
from helpers.lists import Converter, warned_by_convert, write_list
from helpers.processes import run_script
from helpers.state_of_torch import assert_torch_is_restored

MATRIX = torch.eye(3) + 1
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


# ---- the call ------------------------------------------------------------------------------------------------------


def test_all_four_parameters_work_by_position_and_by_keyword(tmp_path: Path) -> None:
    lower, upper = write_list(tmp_path / "a.txt", ["exp"]), write_list(tmp_path / "b.txt", ["mm"])
    hmp.convert("O1", lower, upper, False)
    assert torch.exp(MATRIX).dtype is BF16
    hmp.restore()
    hmp.convert(opt_level="O1", bf16_file_path=lower, fp32_file_path=upper, isVerbose=False)
    assert torch.exp(MATRIX).dtype is BF16
    assert torch.mm(MATRIX.bfloat16(), MATRIX.bfloat16()).dtype is FP32


@each("level", ["O3", "o3", "O 1", "", "1", 1, None, True])
def test_an_unknown_level_is_refused_with_the_names_of_all(level: object) -> None:
    with pytest.raises(ValueError, match="opt_level") as caught:
        hmp.convert(level)  # type: ignore[arg-type]  # wrong on purpose
    for known in ("O0", "O1", "O2"):
        assert known in str(caught.value)
    assert repr(level) in str(caught.value)
    assert_torch_is_restored()


#: The cases whose operation O2 lowers. Operations that only move values have the precision of their input.
O2_LOWER = {
    *("mm", "bmm", "mv", "dot", "matmul", "__matmul__", "addmm", "addbmm", "baddbmm", "_grouped_mm", "linear"),
    *("chain_matmul", "multi_dot", "linalg_multi_dot", "einsum", "tensordot", "inner", "gather"),
    *(one.name for one in CASES if one.name.startswith(("conv", "_conv")) and one.name != "conv_tbc"),
}


@pytest.fixture
def under_o2() -> None:
    hmp.convert("O2")


@pytest.mark.usefixtures("under_o2")
@each("case", CASES)
def test_o2_runs_gemm_and_convolutions_in_lower_precision_and_other_floating_operations_in_float32(case: Case) -> None:
    is_lower = case.name in O2_LOWER and str(case) != "convolution-torch"  # a function that O2 does not name
    result = case.run() if is_lower and case.name != "gather" else case.run(case.cast(BF16))
    found = {one.dtype for one in tensors(result) if one.is_floating_point()}
    assert found <= {BF16 if is_lower else FP32}, case


@each("level", ["O0", "O2"])
@each("side", [0, 1, 2])
def test_list_files_are_ignored_with_one_warning_where_the_level_has_no_lists(
    tmp_path: Path, level: str, side: int
) -> None:
    path, other = write_list(tmp_path / "a.txt", ["exp"]), write_list(tmp_path / "b.txt", ["cosh"])
    files = [(path, ""), ("", path), (path, other)][side]
    assert len(warned_by_convert(level, *files)) == 1
    assert torch.exp(MATRIX.bfloat16()).dtype is (FP32 if level == "O2" else BF16)


@each("dtype", [torch.float32, torch.float64, torch.int8, "fp32", "int8", "bf", None])
def test_only_the_two_lower_precisions_are_taken(dtype: object) -> None:
    with pytest.raises(ValueError, match="dtype"):
        hmp.convert(dtype=dtype)  # type: ignore[arg-type]  # wrong on purpose
    assert_torch_is_restored()


@each(
    "spelling, meant",
    [
        *[(one, BF16) for one in ("bfloat16", "bf16", "BF16", "torch.bfloat16")],
        *[(one, FP16) for one in ("float16", "fp16", "half", "torch.half")],
    ],
)
def test_the_lower_precision_may_be_named(spelling: str, meant: torch.dtype) -> None:
    hmp.convert(dtype=spelling)
    assert torch.mm(MATRIX, MATRIX).dtype is meant
    hmp.restore()
    with hmp.autocast("cpu", dtype=spelling):
        assert torch.mm(MATRIX, MATRIX).dtype is meant
    assert hmp.autocast("cpu", spelling)._number == hmp.autocast("cpu", meant)._number


def models_and_optimizers() -> list[tuple[Any, Any, str]]:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return [
        ((model,), {}, "Linear"),
        ((model, optimizer), {}, "Linear, SGD"),
        ((model, optimizer), {"opt_level": "O1"}, "Linear, SGD"),  # as apex.amp.initialize is called
        (([model, torch.nn.ReLU()], [optimizer]), {"opt_level": "O2"}, "Linear, ReLU, SGD"),
        ((), {"models": model, "optimizers": optimizer}, "Linear, SGD"),
        (("O1",), {"preset": model}, "Linear"),
        ((optimizer,), {"within": model}, "SGD"),
    ]


@each("arguments, options, got", models_and_optimizers)
def test_a_model_is_refused_with_what_would_be_right(arguments: Any, options: Any, got: str) -> None:
    with pytest.raises(TypeError) as caught:
        hmp.convert(*arguments, **options)
    message = str(caught.value)
    assert message.startswith("`hmp.convert` takes no model and no optimizer: it works on all of torch")
    assert "`hmp.convert(within=model)`" in message
    assert message.endswith(f"; got {got}")
    assert_torch_is_restored()


@pytest.mark.parametrize("given", [0, 1, None])
def test_the_switch_of_the_log_takes_what_scripts_give_it(given: int | None, capfd: pytest.CaptureFixture[str]) -> None:
    hmp.convert("O1", "", "", given)
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    hmp.restore()
    captured = capfd.readouterr()
    assert ("casting" in captured.out + captured.err) is bool(given)


SWITCHES = ["isVerbose", "weight_cache", "reuse_memory"]


@each("name", SWITCHES)
def test_a_switch_is_true_or_false_and_a_wrong_one_changes_nothing(name: str) -> None:
    hmp.convert(dtype=torch.float16)
    options: dict[str, Any] = {name: "no"}
    with pytest.raises(ValueError, match=rf"`{name}` must be True(, False)? or (False|\"why\"); got 'no'"):
        hmp.convert(**options)
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16


# ---- replacing -----------------------------------------------------------------------------------------------------


@each(
    "broken",
    [
        lambda folder: hmp.convert("O9"),
        lambda folder: hmp.convert("O1", str(folder / "missing.txt")),
        lambda folder: hmp.convert("O1", "", str(folder / "missing.txt")),
        lambda folder: hmp.convert("O1", str(folder)),
        lambda folder: hmp.convert("O1", write_list(folder / "x.txt", ["nonsense"])),
        lambda folder: hmp.convert("O1", write_list(folder / "x.txt", ["mm"]), write_list(folder / "y.txt", ["mm"])),
        lambda folder: hmp.convert(preset="nothing"),
        lambda folder: hmp.convert(dtype=torch.int8),
        lambda folder: hmp.convert(log=folder / "no" / "such" / "folder" / "x.log"),
        lambda folder: hmp.convert(log=3),
    ],
)
def test_a_failing_convert_leaves_the_former_configuration_in_force(
    tmp_path: Path, converted: Converter, broken: object
) -> None:
    converted(bf16=["exp", "softmin"], fp32=["normalize"])
    with pytest.raises((OSError, ValueError, TypeError)):
        broken(tmp_path)  # type: ignore[operator]  # wrong on purpose
    assert hmp.is_converted()
    assert torch.exp(MATRIX).dtype is BF16
    assert F.softmin(MATRIX, 0).dtype is BF16
    assert F.normalize(MATRIX.bfloat16()).dtype is FP32
    assert torch.mm(MATRIX, MATRIX).dtype is FP32


# ---- the environment, and the convert before ------------------------------------------------------------------------

CONVERTS_TWICE = "from habana_mp import hmp\nhmp.convert()\nhmp.convert()\nwith hmp.autocast('cpu'):\n    pass\n"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("HABANA_MP_OPTLEVEL", "HABANA_MP_OPT_LEVEL"), ("HABANA_MP_KERNEL", "HABANA_MP_KERNELS")],
)
def test_an_unknown_variable_is_warned_of_once_with_the_nearest_one(given: str, nearest: str) -> None:
    said = run_script(CONVERTS_TWICE, **{given: "O0"}).stderr
    assert said.count(f"habana_mp has no environment variable {given}; the nearest one is {nearest}") == 1
    assert said.count("HmpWarning") == 1


def test_a_plain_import_reads_no_variable() -> None:
    done = run_script("import habana_mp\nfrom habana_mp import hmp\n", HABANA_MP_TRASE="mm")
    assert not done.stderr


def test_the_known_variables_are_those_that_the_source_reads() -> None:
    root = Path(__file__).parents[2]
    source = "\n".join(
        path.read_text("utf-8") for top in ("src", "habana_mp") for path in (root / top).rglob("*.[ch]pp")
    ) + "\n".join(path.read_text("utf-8") for path in (root / "habana_mp").rglob("*.py"))
    read = set(re.findall(r'(?:getenv\(|environ\.get\(|VARIABLE = |variable = )"(HABANA_MP_\w+)"', source))
    assert read == set(options._VARIABLES)


def test_a_second_convert_without_the_rules_of_the_first_says_once_that_they_are_gone(
    recwarn: pytest.WarningsRecorder,
) -> None:
    hmp.convert(rules={"gelu": "fp32", "linear @ head": "fp32"})
    hmp.convert(rules={"gelu": "fp32"})  # says what it wants
    assert not recwarn
    hmp.convert(report="modules")
    assert [str(one.message) for one in recwarn] == [
        "the rules of the earlier convert are gone (gelu): pass them again, or `rules={}`"
    ]
    hmp.convert()
    hmp.restore()
    assert len(recwarn) == 1


def test_rules_that_are_given_up_on_purpose_are_not_missed(recwarn: pytest.WarningsRecorder) -> None:
    hmp.convert(rules={"gelu": "fp32"})
    hmp.convert(rules={})
    hmp.convert(rules={"gelu": "fp32"})
    hmp.restore()
    hmp.convert()
    assert not recwarn
