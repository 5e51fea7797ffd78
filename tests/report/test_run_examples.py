"""Scripts in the style of public examples: under ``habana-mp run`` each prints to the bit what it prints with
``hmp.convert()`` at its top.

Needs pytorch-lightning and accelerate.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from helpers.processes import RUN, python, split_lines

SCRIPTS = Path(__file__).parent / "scripts"
TOP = "from habana_mp import hmp\nhmp.convert(preset='recommended')\n"

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def with_convert_at_its_top(name: str, folder: Path) -> Path:
    made = folder / f"{name}.py"
    made.write_text(TOP + (SCRIPTS / made.name).read_text("utf-8"), "utf-8")
    return made


def launched(name: str, words: tuple[str, ...], path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The script by ``python``, or on two ranks; by these words of ours, if there are any."""
    if name == "ddp":
        for _ in range(4):
            done = python(*TORCHRUN, *words, path, "--keep-group", cwd=path.parent, GLOO_SOCKET_IFNAME="lo", **more)
            # A thread of gloo that lets go of a tensor while Python ends aborts the process, in plain torch too.
            if "terminate called without an active exception" not in done.stderr:
                break
        return done
    return python(*words, path, cwd=path.parent, with_dynamo=True, **more)


# tests/report/test_run_processes.py runs ranks in less time.
@pytest.mark.parametrize("name", [pytest.param(one, marks=[pytest.mark.slow] * (one == "ddp")) for one in NAMES])
def test_the_losses_are_those_with_a_convert_at_the_top(name: str, tmp_path: Path) -> None:
    by_hand = launched(name, (), with_convert_at_its_top(name, tmp_path))
    assert by_hand.returncode == 0, by_hand.stderr
    report = tmp_path / "report.json"
    ours = launched(name, (*RUN, "--require-lowered", "--report", str(report)), SCRIPTS / f"{name}.py")
    assert ours.returncode == 0, ours.stderr
    assert len(re.findall("loss", ours.stdout)) >= 1
    assert ours.stdout == by_hand.stdout
    data = json.loads(report.read_text("utf-8"))
    assert data["ranks"] == (2 if name == "ddp" else 1)
    assert data["totals"]["by_precision"]["bf16"]["calls"] > 0
    assert any(row["operation"] in ("linear", "addmm", "conv2d", "lstm") for row in data["rows"])
    line = split_lines(ours.stderr)[1][0]
    assert line.endswith(f"the report is in {report}")


def test_the_losses_are_not_those_of_float32(tmp_path: Path) -> None:
    """Else the comparison above would show nothing."""
    plain = launched("word_language_model", (), SCRIPTS / "word_language_model.py")
    assert plain.returncode == 0
    assert plain.stdout != launched("word_language_model", RUN, SCRIPTS / "word_language_model.py").stdout
