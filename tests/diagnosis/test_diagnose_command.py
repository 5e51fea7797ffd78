"""``habana-mp diagnose`` runs an unmodified script, and names the line that harms it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from habana_mp import cli
from helpers import forked

TRAINS = """
import torch, torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.1, 1.0, 16))
        self.body = nn.Linear(16, 8)

    def forward(self, t):
        angles = t[:, None] * self.scale  # planted
        return self.body(angles.sin())

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(3):
    loss = F.mse_loss(net(torch.empty(128).uniform_(0, 1000)), torch.randn(128, 8))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step)
"""
LINE = next(number for number, text in enumerate(TRAINS.splitlines(), 1) if "# planted" in text)

INFERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 8)

    def forward(self, t):
        angles = t[:, None] * torch.linspace(0.1, 1.0, 16)  # planted
        return self.body(angles.sin())

net = Net()
with torch.no_grad():
    print(net(torch.empty(64).uniform_(0, 1000)).sum())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("habana_mp.run.processes.subprocess", forked.IN_PLACE_OF_SUBPROCESS)
    path = tmp_path / "script.py"
    path.write_text(TRAINS)
    return path


def _diagnosed(*words: str) -> int:
    return cli.main(["diagnose", *words])


HEALTHY = """
import torch, torch.nn.functional as F
from torch import nn
from habana_mp import hmp

torch.manual_seed(1)
for size in (256, 64, 16):  # memory with these values is used again
    torch.full((size,), 1e4)
net = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.LayerNorm(64), nn.Linear(64, 16))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = F.mse_loss(net(torch.randn(64, 16)), torch.randn(64, 16))
    optimizer.zero_grad()
    loss.backward()
    with hmp.disable_casts():
        optimizer.step()
"""


def test_a_healthy_script_has_no_finding_in_a_later_step(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(HEALTHY)
    assert _diagnosed("--preset", "hmp-default", "--step", "3", "--report", "found.json", str(script)) == 0
    assert capsys.readouterr().out.startswith("Healthy")
    assert not [one for one in json.loads((script.parent / "found.json").read_text())["excess"] if "(weight" in one]


def test_the_line_is_named_and_the_report_is_written(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _diagnosed("--preset", "hmp-default", "--step", "2", "--report", "found.json", str(script)) == 1
    shown = capsys.readouterr().out
    assert f"1. `__mul__` at script.py:{LINE} in Net: of inputs from " in shown
    assert 'write `mul @ Net` into the float32 list, or give `rules={"mul @ Net": "fp32"}`' in shown
    assert "step" not in shown.split("\n")[-2]
    data = json.loads((script.parent / "found.json").read_text())
    assert data["findings"][0]["line"] == LINE
    assert data["findings"][0]["step"] == 1


def test_without_an_optimizer_the_outputs_are_compared(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(INFERS)
    assert _diagnosed("--preset", "hmp-default", "--report", "found.html", str(script)) == 1
    shown = capsys.readouterr().out
    assert "1. `__mul__` at script.py:" in shown
    assert "the returned value is wrong by" in shown
    assert "<table>" in (script.parent / "found.html").read_text()


def test_a_script_that_fails_is_told_with_what_it_printed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(TRAINS.replace("loss.backward()", "raise KeyError('no weights')"))
    assert _diagnosed(str(script)) == 1
    shown = capsys.readouterr().err
    assert "the script failed (exit status 1); the last lines that it printed:" in shown
    assert "KeyError: 'no weights'" in shown
    script.write_text(INFERS)
    assert _diagnosed("--step", "9", str(script)) == 1
    assert "the script ended before that step began" in capsys.readouterr().err


def test_a_script_that_does_other_things_each_time_is_refused(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("import os, torch\ntorch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\n" + INFERS)
    assert _diagnosed(str(script)) == 1
    assert "the script must do the same each time it runs; set its seeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "cannot open the script"),
        ([], "a SCRIPT to diagnose is missing"),
        (["--step", "0", "script.py"], "it must be a whole number of at least 1; got 0"),
        (["--report", "found.txt", "script.py"], "--report must be a file that ends in .html or .json; got found.txt"),
    ],
)
def test_wrong_usage_is_told(script: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        _diagnosed(*words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
