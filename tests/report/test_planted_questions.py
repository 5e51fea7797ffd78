"""What is odd in a script stands in the first lines of its report, with the line of the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helpers.lists import write_list
from helpers.odd_lines import SCRIPTS
from helpers.processes import printed_by_each

#: Runs a script, and prints the kinds of what was found and the first lines. Times are made by hand: each call takes a
#: millisecond, and its casts up to half of it, whatever else the machine does.
ASK = """
import os
from dataclasses import replace
from helpers.odd_lines import SCRIPTS
os.chdir(FOLDER)
SCRIPTS[NAME].run()
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
    folder = tmp_path_factory.mktemp("planted")
    write_list(Path(folder, "own_fp32.txt"), ["softmax", "matmul", "linear"])
    write_list(Path(folder, "own_bf16.txt"), ["relu"])
    asked = [("", ASK.replace("FOLDER", repr(str(folder))).replace("NAME", repr(name))) for name in SCRIPTS]
    return dict(zip(SCRIPTS, map(str.splitlines, printed_by_each(asked)), strict=True))


def test_the_first_lines_tell_what_is_odd_and_where(answers: dict[str, list[str]]) -> None:
    for name, script in SCRIPTS.items():
        kinds, *lines = answers[name]
        if script.place is None:
            assert kinds == ""
            assert re.match(script.tells, "\n".join(lines)), lines
        else:
            place = rf"{re.escape(script.place)}(?!\d)"
            assert [line for line in lines if script.tells in line and re.search(place, line)], lines
            # Whoever reads it shall not have to choose among many.
            assert len(kinds.split()) <= 2, lines
