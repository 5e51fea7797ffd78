"""Whole scripts in the style of Gaudi's model folders run unchanged, and train as they do in FP32."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import forked

SCRIPTS = Path(__file__).parent / "scripts"
LISTS = ("--hmp", "--hmp-bf16", "bf16.txt", "--hmp-fp32", "fp32.txt")

#: Starts a script with the stand-in.
START = ("-m", "habana_mp", "run", "--gaudi=cpu", "--")
TWO = ("-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")

#: What these scripts need and map, other than the rest.
LAZY = {"compiled.py": "0"}
MAPPED = {"migrated_diffusion.py": "cuda", "speech_ctc.py": "hpu:0"}


def started(folder: Path, script: Path, *options: str, processes: int = 1) -> str:
    """Runs the script and returns what it prints. It must log the mapping of its device."""
    words = [*START, str(script), *options]
    environment = forked.environment_with(GLOO_SOCKET_IFNAME="lo", PT_HPU_LAZY_MODE=LAZY.get(script.name, "1"))
    if processes == 1:
        done = forked.run(words, cwd=folder, environment=environment, timeout=400)
    else:
        command = [sys.executable, *TWO, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=environment
        )
    assert done.returncode == 0, done.stderr
    assert f"{MAPPED.get(script.name, 'hpu')} is cpu here" in done.stderr
    return done.stdout


def number(label: str, output: str) -> float:
    found = re.findall(rf"{label} ([\d.]+)", output)
    assert found, output
    return float(found[-1])


def test_a_classification_trains_in_two_processes_as_alone_in_fp32(tmp_path: Path) -> None:
    (tmp_path / "bf16.txt").write_text("addmm\navg_pool2d\nbmm\nconv2d\ndot\nmax_pool2d\nmm\nmv\nrelu\nt\nlinear\n")
    (tmp_path / "fp32.txt").write_text("cross_entropy\nlog_softmax\nsoftmax\nnll_loss\ntopk\n")
    plain = started(tmp_path, SCRIPTS / "classification.py")
    mixed = started(tmp_path, SCRIPTS / "classification.py", *LISTS, processes=2)
    assert plain.count("accuracy") == mixed.count("accuracy") == 1
    assert number("accuracy", plain) > 0.95
    assert abs(number("accuracy", mixed) - number("accuracy", plain)) < 0.05
    assert (tmp_path / "checkpoint.pt").exists()


def test_a_detector_trains_with_a_loss_in_float32_as_in_fp32(tmp_path: Path) -> None:
    (tmp_path / "bf16.txt").write_text("conv2d\nrelu\nmax_pool2d\n")
    (tmp_path / "fp32.txt").write_text("batch_norm\nsoftmax\ncross_entropy\nsmooth_l1_loss\n")
    plain, mixed = (started(tmp_path, SCRIPTS / "detection.py", *options) for options in ((), LISTS))
    assert number("recall", plain) > 0.85
    assert abs(number("recall", mixed) - number("recall", plain)) < 0.05
    assert abs(number("final loss", mixed) - number("final loss", plain)) < 0.05


@pytest.mark.parametrize(
    ("script", "option"),
    [
        ("compiled.py", "--autocast"),
        ("fused_decoder.py", "--hmp"),
        ("inference_graphs.py", "--bf16"),
        ("lightning_plugin.py", "--hmp"),
        ("migrated_diffusion.py", "--amp"),
        ("mixture_of_experts.py", "--autocast"),
        ("self_supervised.py", "--hmp"),
        ("speech_ctc.py", "--autocast"),
        ("trainer.py", "--hmp"),
        ("trainer_loop.py", "--bf16"),
        pytest.param("fused_decoder.py", "--autocast", marks=pytest.mark.slow),
        pytest.param("lightning_plugin.py", "--bf16", marks=pytest.mark.slow),
        pytest.param("mixture_of_experts.py", "--hmp", marks=pytest.mark.slow),
        pytest.param("self_supervised.py", "--autocast", marks=pytest.mark.slow),
    ],
)
def test_whole_scripts_train_in_mixed_precision_as_in_fp32(script: str, option: str, tmp_path: Path) -> None:
    exact, mixed = (number("final loss", started(tmp_path, SCRIPTS / script, *options)) for options in ((), (option,)))
    assert exact < 0.5 or script == "self_supervised.py"  # the loss of its two views has no such bound
    assert abs(mixed - exact) < (0.05 if script in ("self_supervised.py", "trainer.py") else 0.02)


def test_weights_in_bfloat16_with_a_master_copy(tmp_path: Path) -> None:
    assert number("final loss", started(tmp_path, SCRIPTS / "deepspeed_like.py", "--deterministic")) < 0.5
