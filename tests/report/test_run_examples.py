"""Scripts in the style of public examples: under ``habana-mp run`` each prints to the bit what it prints with
``hmp.convert()`` at its top.

Needs pytorch-lightning.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.processes import RUN, python, split_lines

SCRIPTS = Path(__file__).parent / "scripts"
TOP = "from habana_mp import hmp\nhmp.convert(preset='recommended')\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_the_losses_are_those_with_a_convert_at_the_top(name: str, tmp_path: Path) -> None:
    script, converts, report = SCRIPTS / f"{name}.py", tmp_path / f"{name}.py", tmp_path / "report.json"
    converts.write_text(TOP + script.read_text("utf-8"), "utf-8")
    by_hand = python(converts, cwd=tmp_path, with_dynamo=True)
    assert by_hand.returncode == 0, by_hand.stderr
    ours = python(*RUN, "--require-lowered", "--report", report, script, cwd=SCRIPTS, with_dynamo=True)
    assert ours.returncode == 0, ours.stderr
    assert "loss" in ours.stdout
    assert ours.stdout == by_hand.stdout
    data = json.loads(report.read_text("utf-8"))
    assert data["totals"]["by_precision"]["bf16"]["calls"] > 0
    assert any(row["operation"] in ("linear", "addmm", "conv2d", "lstm") for row in data["rows"])
    assert split_lines(ours.stderr)[1][0].endswith(f"the report is in {report}")
    if name == "word_language_model":  # else the comparison would show nothing
        assert python(script, cwd=SCRIPTS, with_dynamo=True).stdout != ours.stdout
