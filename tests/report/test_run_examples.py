"""Scripts in the style of public examples: under ``habana-mp run`` each prints to the bit what it prints with
``hmp.convert()`` at its top.

Needs transformers, pytorch-lightning and accelerate.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import RUN, python, split_lines

SCRIPTS = Path(__file__).parent / "scripts"
TOP = "from habana_mp import hmp\nhmp.convert(preset='recommended')\n"

#: The arguments of a script that takes some.
ARGUMENTS = {
    "regression": ["4", "--lr", "0.05", "-v"],
}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def with_convert_at_its_top(name: str, folder: Path) -> Path:
    made = folder / f"{name}.py"
    made.write_text(TOP + (SCRIPTS / made.name).read_text("utf-8"), "utf-8")
    return made


def launched(name: str, words: tuple[str, ...], path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The script by ``python``, or on two ranks; by these words of ours, if there are any."""
    arguments = ARGUMENTS.get(name, [])
    if name == "ddp":
        for _ in range(4):
            done = python(*TORCHRUN, *words, path, *arguments, cwd=path.parent, GLOO_SOCKET_IFNAME="lo", **more)
            # A thread of gloo that lets go of a tensor while Python ends aborts the process, in plain torch too.
            if "terminate called without an active exception" not in done.stderr:
                break
        return done
    return python(*words, path, *arguments, cwd=path.parent, **more)


@pytest.mark.parametrize("name", NAMES)
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
    plain = launched("resnet", (), SCRIPTS / "resnet.py")
    assert plain.returncode == 0
    assert plain.stdout != launched("resnet", RUN, SCRIPTS / "resnet.py").stdout


def test_a_report_of_two_ranks_does_not_need_the_group_to_be_gone(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = Path(sys.executable).with_name("habana-mp")
    words = [*TORCHRUN, "--no-python", str(command), "run", "--report", str(report)]
    script = str(SCRIPTS / "ddp.py")
    done = python(*words, script, "--keep-group", cwd=tmp_path, GLOO_SOCKET_IFNAME="lo")
    assert done.returncode == 0, done.stderr
    rows = json.loads(report.read_text("utf-8"))["rows"]
    linear = [row["calls"] for row in rows if (row["operation"], row["precision"]) == ("linear", "bf16")]
    assert sum(linear) == 16  # of both ranks
