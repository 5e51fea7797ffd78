"""The environment's variables that name lists for hpu."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.lists import write_list
from helpers.processes import run_script

_ASK = """
import torch
from habana_mp import hmp
x = torch.ones(4, 4)
with hmp.autocast("cpu", preset="hpu"):
    print(torch.mm(x, x).dtype, torch.exp(x).dtype, torch.tan(x.bfloat16()).dtype, torch.erf(x.bfloat16()).dtype)
with hmp.autocast("cpu"):
    print(torch.mm(x, x).dtype, torch.exp(x).dtype)
"""


_OF_TODAY = {
    "LOWER_LIST": "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST",
    "FP32_LIST": "PT_HPU_AUTOCAST_FP32_OPS_LIST",
}
_FP32 = _OF_TODAY["FP32_LIST"]


@pytest.mark.parametrize("names", [("LOWER_LIST", "FP32_LIST"), (*_OF_TODAY.values(),), ("LOWER_LIST", _FP32)])
def test_lists_from_the_environment_replace_those_of_hpu(names: tuple[str, str], tmp_path: Path) -> None:
    lower = write_list(tmp_path / "lower.txt", ["exp"])
    fp32 = write_list(tmp_path / "fp32.txt", ["erf"])
    done = run_script(_ASK, **dict(zip(names, (lower, fp32), strict=True)))
    assert done.stdout.splitlines() == [
        "torch.float32 torch.bfloat16 torch.bfloat16 torch.float32",
        "torch.bfloat16 torch.float32",
    ], done.stderr


def test_one_list_from_the_environment_leaves_the_other_of_the_preset(tmp_path: Path) -> None:
    done = run_script(_ASK, FP32_LIST=write_list(tmp_path / "fp32.txt", ["erf"]))
    assert done.stdout.splitlines()[0] == "torch.bfloat16 torch.float32 torch.bfloat16 torch.float32", done.stderr


@pytest.mark.parametrize("variable", _OF_TODAY)
def test_two_names_of_the_environment_that_disagree_are_refused_with_both(tmp_path: Path, variable: str) -> None:
    one, other = write_list(tmp_path / "one.txt", ["exp", "erf"]), write_list(tmp_path / "other.txt", ["exp"])
    done = run_script(_ASK, **{variable: one, _OF_TODAY[variable]: other})
    assert done.returncode != 0
    assert (
        f"{variable} and {_OF_TODAY[variable]} are two names for one list, and must name the same operations; got "
        f"{one} and {other}: unset one of the two"
    ) in done.stderr


def test_two_names_of_the_environment_may_name_the_same_operations(tmp_path: Path) -> None:
    one, other = write_list(tmp_path / "one.txt", ["exp", "mm"]), write_list(tmp_path / "other.txt", ["mm", "exp"])
    done = run_script(_ASK, **{"LOWER_LIST": one, _OF_TODAY["LOWER_LIST"]: other})
    assert done.stdout.splitlines()[0].startswith("torch.bfloat16 torch.bfloat16"), done.stderr


@pytest.mark.parametrize("variable", ["LOWER_LIST", "FP32_LIST", *_OF_TODAY.values()])
def test_an_error_in_a_list_from_the_environment_names_variable_file_and_line(tmp_path: Path, variable: str) -> None:
    path = write_list(tmp_path / "own.txt", ["mm", "sofmax"])
    done = run_script(_ASK, **{variable: path})
    assert done.returncode != 0
    assert f"{variable}: {path}:2: unknown operation `sofmax`; did you mean `softmax`?" in done.stderr


def test_a_missing_file_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    done = run_script(_ASK, cwd=tmp_path, LOWER_LIST=str(tmp_path / "none.txt"))
    told = f"the operation list of LOWER_LIST does not exist (looked in the working directory {tmp_path})"
    assert f"{told}: '{tmp_path / 'none.txt'}'" in done.stderr
