"""What is odd in a script stands in the first lines of its report, with the line of the script."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from helpers.each import each
from helpers.processes import printed_by_each

PLANTED = Path(__file__).parent / "planted"

#: Of each script the words that tell of its oddity. They stand in one line, together with the place.
TELLS = {
    "attention_follows_its_query": "first input, rule 4, made by add at attention_follows_its_query.py:",
    "average_in_a_variable": "keeps an average in bf16, where small changes get lost",
    "average_carried": "gives what a module keeps from step to step in bf16",
    "casts_of_one_line": "% of that is matmul",
    "distances_of_a_lowered_product": "leaves little of matmul",
    "disabled_block": "(Model.second) is left alone under disable_casts",
    "float64_slips_in": "an input is float64",
    "index_in_lower_precision": "is given whole numbers up to ",
    "loss_in_a_function": "is a loss, and runs in bf16",
    "no_kernel": "runs in float32: no kernel for the lower precision",
    "positions_times_frequencies": "rounds whole numbers up to 9",
    "probabilities_before_a_logarithm": "gives probabilities in bf16 to log at probabilities_before_a_logarithm.py:",
    "product_in_a_backward": "In float32: matmul in a backward",
    "softmax_between_products": "between matmul and matmul in bf16",
    "weight_in_numpy": "casts a weight in each call, since no cast is cached: NumPy or DLPack may have its memory",
    "weight_written_in_each_step": "something computes it or writes to it",
}

#: The beginning of the report of each script without an oddity. A line in a list of the user's is no oddity.
EXPECTED = {
    "nothing_odd": r"All 40 products ran in bf16\. bf16 took \d+ % of the operations' time, fp32 \d+ %",
    "products_in_the_users_float32_list": r"None of 10 products ran in lower precision\..*\n"
    r"In float32: linear \d+ % \(listed at own_fp32\.txt:3, ",
}

#: Runs a script as it stands, and prints the kinds of what was found and the first lines. Times are made by hand: each
#: call takes a millisecond, and its casts up to half of it, whatever else the machine does.
ASK = """
import os, runpy
from dataclasses import replace
os.chdir(FOLDER)
runpy.run_path(NAME + ".py", run_name="__main__")
from habana_mp import hmp
report = hmp.report(show=False)
rows = [replace(row, seconds=1e-3 * row.calls, cast_seconds=min(5e-4 * row.calls, 1e-9 * row.bytes)) for row in report]
report = replace(report, rows=tuple(rows))
print(*dict.fromkeys(one.kind.replace(" ", "-") for one in report.findings))
print("\\n".join(str(report).splitlines()[:10]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Of each script the kinds of what is found in it, in one line, and the first ten lines of its report."""
    folder, names = str(tmp_path_factory.mktemp("planted")), [*TELLS, *EXPECTED]
    for path in PLANTED.glob("*.py"):
        shutil.copy(path, folder)
    asked = [("", ASK.replace("FOLDER", repr(folder)).replace("NAME", repr(name))) for name in names]
    return dict(zip(names, map(str.splitlines, printed_by_each(asked)), strict=True))


def odd_place(name: str) -> str:
    lines = (PLANTED / f"{name}.py").read_text("utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith("# <- odd")]
    return f"{name}.py:{number}"


def test_the_first_lines_tell_what_is_odd_and_where(answers: dict[str, list[str]]) -> None:
    assert {path.stem for path in PLANTED.glob("*.py")} == answers.keys()
    for name, words in TELLS.items():
        kinds, *lines = answers[name]
        place = rf"{re.escape(odd_place(name))}(?!\d)"
        assert [line for line in lines if words in line and re.search(place, line)], lines
        # Whoever reads it shall not have to choose among many.
        assert len(kinds.split()) <= 2, lines


@each("name", EXPECTED)
def test_nothing_is_found_where_nothing_is_odd(name: str, answers: dict[str, list[str]]) -> None:
    kinds, *lines = answers[name]
    assert kinds == ""
    assert re.match(EXPECTED[name], "\n".join(lines)), lines
