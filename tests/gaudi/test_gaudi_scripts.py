"""Whole scripts in the style of Gaudi's model folders run unchanged, and train as they do in FP32."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from helpers import forked

SCRIPTS = Path(__file__).parent / "scripts"
LISTS = ("--hmp", "--hmp-bf16", "bf16.txt", "--hmp-fp32", "fp32.txt")

#: Starts a script with the stand-in.
START = ("-m", "habana_mp", "run", "--gaudi=cpu", "--")
TWO = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")


def started(folder: Path, script: Path, *options: str, processes: int = 1) -> str:
    """Runs the script and returns what it prints. It must log the mapping of its device."""
    words = [*START, str(script), *options]
    environment = forked.environment_with(GLOO_SOCKET_IFNAME="lo", PT_HPU_LAZY_MODE="1")
    if processes == 1:
        done = forked.run(words, cwd=folder, environment=environment, timeout=400)
    else:
        command = [sys.executable, *TWO, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=environment
        )
    assert done.returncode == 0, done.stderr
    device = "cuda" if script.name == "migrated_diffusion.py" else "hpu"
    assert f"{device} is cpu here" in done.stderr
    return done.stdout


def number(label: str, output: str) -> float:
    found = re.findall(rf"{label} ([\d.]+)", output)
    assert found, output
    return float(found[-1])


def test_a_classification_trains_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "bf16.txt").write_text("addmm\navg_pool2d\nbmm\nconv2d\ndot\nmax_pool2d\nmm\nmv\nrelu\nt\nlinear\n")
    (tmp_path / "fp32.txt").write_text("cross_entropy\nlog_softmax\nsoftmax\nnll_loss\ntopk\n")
    output = started(tmp_path, SCRIPTS / "classification.py", *LISTS, processes=2)
    assert output.count("accuracy") == 1
    assert number("accuracy", output) > 0.9
    assert (tmp_path / "checkpoint.pt").exists()


def test_a_whole_script_trains_in_mixed_precision_as_in_fp32(tmp_path: Path) -> None:
    script = SCRIPTS / "migrated_diffusion.py"
    exact, mixed = (number("final loss", started(tmp_path, script, *options)) for options in ((), ("--amp",)))
    assert exact < 0.5
    assert abs(mixed - exact) < 0.02


def test_a_script_of_lightning_trains_in_mixed_precision(tmp_path: Path) -> None:
    assert number("final loss", started(tmp_path, SCRIPTS / "lightning_plugin.py", "--hmp")) < 0.5
