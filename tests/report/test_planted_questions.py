"""What is odd in a script stands in the first lines of its report, with the line of the script."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from helpers.processes import run_script

PLANTED = Path(__file__).parent / "planted"

#: Of each script the words that tell of its oddity. They stand in one line, together with the place.
TELLS = {
    "all_outside_of_modules": "no operation was called in a module, and convert(within=...)",
    "angles_of_a_layer": "made by linear at angles_of_a_layer.py:",
    "attention_follows_its_query": "first input, rule 4, made by add at attention_follows_its_query.py:",
    "average_carried": "gives what a module keeps from step to step in bf16",
    "casts_of_one_line": "% of that is matmul",
    "compared_positions": "is given whole numbers up to 1,200",
    "disabled_block": "(Model.second) is left alone under disable_casts",
    "dtype_given": "is left alone: dtype= was given",
    "float64_slips_in": "an input is float64",
    "index_in_lower_precision": "is given whole numbers up to ",
    "loss_by_hand": "gives the loss in bf16",
    "loss_in_a_function": "is a loss, and runs in bf16",
    "mask_beyond_the_range": "is given a number beyond the range of fp16",
    "no_kernel": "runs in float32: no kernel for the lower precision",
    "not_converted": "call hmp.convert()",
    "positions_times_frequencies": "rounds whole numbers up to 9",
    "probabilities_before_a_logarithm": "gives probabilities in bf16 to log at probabilities_before_a_logarithm.py:",
    "product_in_a_backward": "matmul in a backward",
    "products_listed_in_float32": "linear at products_listed_in_float32.py:",
    "protected_block": "is left alone inside of torch.autocast(enabled=False)",
    "statistics_in_lower_precision": "keeps its running statistics in bf16",
    "softmax_between_products": "between matmul and matmul in bf16",
    "weight_in_numpy": "casts a weight in each call, since no cast is kept: NumPy or DLPack may have its memory",
    "weight_written_in_each_step": "something computes it or writes to it",
}

#: Oddities that no line of the script stands for.
WITHOUT_A_LINE = {"all_outside_of_modules", "not_converted"}

#: Runs a script as it stands, and prints the kinds of what was found and the first lines.
ASK = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
from habana_mp import hmp
report = hmp.report(show=False)
print("kinds:", *dict.fromkeys(one.kind.replace(" ", "-") for one in report.findings))
print("\\n".join(str(report).splitlines()[:10]))
"""


def answers(name: str, folder: Path) -> tuple[list[str], list[str]]:
    """The kinds of what is found in a script, and the first ten lines of its report."""
    shutil.copy(PLANTED / f"{name}.py", folder)
    done = run_script(ASK, f"{name}.py", cwd=folder, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("kinds:"))
    return lines[first].split()[1:], lines[first + 1 :]


def odd_place(name: str) -> str:
    lines = (PLANTED / f"{name}.py").read_text("utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith("# <- odd")]
    return f"{name}.py:{number}"


def test_each_script_is_asked() -> None:
    assert {path.stem for path in PLANTED.glob("*.py")} == {*TELLS, "nothing_odd"}


@pytest.mark.parametrize("name", TELLS)
def test_the_first_lines_tell_what_is_odd_and_where(name: str, tmp_path: Path) -> None:
    kinds, lines = answers(name, tmp_path)
    place = "" if name in WITHOUT_A_LINE else odd_place(name)
    assert [line for line in lines if TELLS[name] in line and re.search(rf"{re.escape(place)}(?!\d)", line)], lines
    # Whoever reads it shall not have to choose among many.
    assert len(kinds) <= 2, lines


def test_the_file_and_line_of_a_list_are_named(tmp_path: Path) -> None:
    _, lines = answers("products_listed_in_float32", tmp_path)
    assert [line for line in lines if "(Linear) runs in float32: listed at own_fp32.txt:3" in line], lines


def test_nothing_is_found_where_nothing_is_odd(tmp_path: Path) -> None:
    kinds, lines = answers("nothing_odd", tmp_path)
    assert kinds == []
    assert re.match(r"bf16 took \d+ % of the operations' time, fp32 \d+ %", lines[0])
