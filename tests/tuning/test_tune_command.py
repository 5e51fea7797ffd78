"""``habana-mp tune`` finds the lists for an unmodified script, and ``--lists`` and ``preset`` take them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from habana_mp import cli, hmp
from helpers import forked

SCRIPT = """
import argparse, json, os
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED", "0")))
torch.manual_seed(parser.parse_args().seed)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.1, 1.0, 16))
        self.body = nn.Linear(16, 1)

    def forward(self, t):
        angles = t[:, None] * self.scale
        return self.body(angles.sin())


t = torch.empty(256).uniform_(0, 1000)
with torch.no_grad():
    value = float(Net()(t).float().square().mean())
with open("metrics.json", "w") as file:
    json.dump({"mse": value}, file)
print("done, mse:", value)
"""
CHECK = "abs(value - exact) <= 0.002 * exact"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("habana_mp.run.processes.subprocess", forked.IN_PLACE_OF_SUBPROCESS)
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def _tuned(*words: str) -> int:
    return cli.main(["tune", *words])


def test_the_lists_are_found_and_used(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--metric", "mse", "--check", CHECK, "--seeds", "0,1", "--seed-argument", "seed", str(script)]
    assert _tuned("--state", "state.json", "--write", "lists", "--workers", "2", *words) == 0
    assert (script.parent / "state.json").exists()
    shown = capsys.readouterr().out
    assert "1 line is needed in float32" in shown
    assert "  mul @ Net: in float32 for accuracy" in shown
    assert "`habana-mp run --lists lists` uses them." in shown
    assert "mul @ Net\n" in (script.parent / "lists" / "fp32.txt").read_text()
    hmp.convert(preset="./lists")
    assert torch.mul(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16
    assert str(hmp.explain("mul", "Net")) == "mul in Net runs in fp32: `mul @ Net` at ./lists/fp32.txt:3"


def test_the_metric_may_stand_in_a_file_and_the_seed_in_a_variable(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--metric", "mse", "--metric-file", "metrics.json", "--seed-variable", "SEED", "--seeds", "3"]
    assert _tuned(*words, "--check", "value <= 2 * exact", str(script)) == 0
    assert "No line is needed in float32" in capsys.readouterr().out


def test_a_script_without_the_value_is_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for code, check, words in (
        ("print('rmse: 1.0')", CHECK, "the script printed no line that ends in `mse: value`"),
        ("raise KeyError('no data')", CHECK, "the script failed (exit status 1)"),
        (
            *("print('mse: 1.0')", "(value - exact) / (1 - exact) < 0.1"),
            "has no result for the value 1.0, in float32 1.0: float division by zero",
        ),
    ):
        script.write_text(code)
        assert _tuned("--metric", "mse", "--check", check, "--seeds", "0", str(script)) == 1
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--check", CHECK, "script.py"], "--metric"),
        (["--metric", "mse", "--check", "value <", "script.py"], "--check must be an expression over `value` and"),
        (["--metric", "mse", "--check", "valu < 1", "script.py"], "name 'valu' is not defined"),
        (["--metric", "mse", "--check", CHECK, "--seeds", "a", "script.py"], "it must be whole numbers and commas"),
        (["--metric", "mse", "--check", CHECK, "--workers", "0", "script.py"], "a whole number of at least 1; got 0"),
        (
            ["--metric", "mse", "--metric-file", "m.json", "--check", CHECK, "--workers", "2", "script.py"],
            "would write the same --metric-file",
        ),
        (["--metric", "mse", "--check", CHECK, "--budget", "-1", "script.py"], "it must be seconds above 0; got -1"),
        (["--metric", "mse", "--check", CHECK, "--preset", "none", "script.py"], "`preset` must be one of"),
        (["--metric", "mse", "--check", CHECK], "a SCRIPT to tune is missing"),
    ],
)
def test_wrong_usage_is_told(script: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        _tuned(*words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_lists_is_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (script.parent / "empty").mkdir()
    for words in (["--lists", "empty"], ["--lists", "empty", "--fp32", "own.txt"]):
        with pytest.raises(SystemExit):
            cli.main(["run", *words, str(script)])
    shown = capsys.readouterr().err
    assert "--lists must be a folder with list files; empty/bf16.txt is not there" in shown
    assert "--lists names all lists; leave out --bf16, --fp32 and --preset" in shown
    with pytest.raises(FileNotFoundError, match=r"empty/bf16\.txt"):
        hmp.convert(preset="./empty")
