"""``habana-mp run --gaudi``: the stand-in is there, and the script itself converts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import torch
import habana_frameworks.torch.core as htcore
from habana_frameworks.torch.hpex import hmp

model = torch.nn.Linear(8, 8).to("hpu")
x = torch.ones(2, 8, device="hpu")
before = model(x).dtype
hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
print(before, model(x).dtype)
htcore.mark_step()
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "habana_mp", "run", *words, "script.py"]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("option", ["--gaudi", "--gaudi=cpu"])
def test_the_script_alone_converts(tmp_path: Path, option: str) -> None:
    done = run(tmp_path, option)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.float32 torch.bfloat16\n"
    assert "habana-mp: calls: 1 in bf16" in done.stderr


def test_a_script_that_does_not_convert_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "import torch\ntorch.ones(2, 2, device='hpu') @ torch.ones(2, 2, device='hpu')\n"
    )
    command = [sys.executable, "-m", "habana_mp", "run", "--gaudi=cpu", "plain.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "habana-mp: `hmp.convert` was not called"


def test_its_report_is_as_fine_as_was_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, "--gaudi=cpu", "--detail", "lines", "--report", "out.json")
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in json.loads((tmp_path / "out.json").read_text())["rows"] if row["operation"] == "linear"]
    assert (row["module"], row["line"], row["precision"]) == ("Linear", 10, "bf16")


@pytest.mark.parametrize("word", ["--bf16=a.txt", "--preset=torch-cpu", "--opt-level=O2", "--verbose"])
def test_what_only_the_script_can_say_is_refused(tmp_path: Path, word: str) -> None:
    (tmp_path / "a.txt").write_text("mm\n")
    done = run(tmp_path, "--gaudi=cpu", word)
    assert done.returncode == 2
    assert "does not go with --gaudi: the script's own `hmp.convert` decides" in done.stderr


def test_a_device_that_is_not_here_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "--gaudi=nothing")
    assert done.returncode == 2
    assert "nothing" in done.stderr
