"""Whole scripts in the style of Gaudi's model folders run unchanged, and train as they do in FP32."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"

#: Starts a script with the stand-in.
START = ("-m", "habana_mp", "run", "--gaudi=cpu", "--")


def started(folder: Path, name: str, *options: str, processes: int = 1, mapped: str = "hpu", lazy: str = "1") -> str:
    """Runs the script and returns what it prints. ``mapped`` is the device whose mapping must be logged."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PT_HPU_LAZY_MODE": lazy}
    launcher = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone") if processes > 1 else ()
    done = subprocess.run(
        [sys.executable, *launcher, *START, str(SCRIPTS / name), *options],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert f"{mapped} is cpu here" in done.stderr
    return done.stdout


def number(label: str, output: str) -> float:
    found = re.findall(rf"{label} ([\d.]+)", output)
    assert found, output
    return float(found[-1])


def test_a_classification_trains_alone_in_mixed_precision_as_in_fp32(tmp_path: Path) -> None:
    plain = started(tmp_path, "classification.py")
    mixed = started(tmp_path, "classification.py", "--hmp")
    assert number("accuracy", plain) > 0.95
    assert abs(number("accuracy", mixed) - number("accuracy", plain)) < 0.02
    assert abs(number("loss", mixed) - number("loss", plain)) < 0.02
    assert (tmp_path / "checkpoint.pt").exists()


def test_a_classification_trains_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "bf16.txt").write_text("addmm\navg_pool2d\nbmm\nconv2d\ndot\nmax_pool2d\nmm\nmv\nrelu\nt\nlinear\n")
    (tmp_path / "fp32.txt").write_text("cross_entropy\nlog_softmax\nsoftmax\nnll_loss\ntopk\n")
    lists = ("--hmp", "--hmp-bf16", "bf16.txt", "--hmp-fp32", "fp32.txt")
    plain = started(tmp_path, "classification.py", processes=2)
    mixed = started(tmp_path, "classification.py", *lists, processes=2)
    assert plain.count("accuracy") == mixed.count("accuracy") == 1
    assert abs(number("accuracy", mixed) - number("accuracy", plain)) < 0.02
    assert abs(number("loss", mixed) - number("loss", plain)) < 0.05


def test_a_pretraining_with_added_gradients_trains_in_mixed_precision_as_in_fp32(tmp_path: Path) -> None:
    plain, mixed = (started(tmp_path, "pretraining.py", *options) for options in ((), ("--use_hmp",)))
    other_seed = started(tmp_path, "pretraining.py", "--seed", "13")
    noise = abs(number("final loss", other_seed) - number("final loss", plain))
    assert number("final loss", plain) < 2.8 < number("step 0 loss", plain)
    assert abs(number("final loss", mixed) - number("final loss", plain)) < max(noise, 0.02)


def test_a_detector_trains_with_a_loss_in_float32_as_in_fp32(tmp_path: Path) -> None:
    (tmp_path / "bf16.txt").write_text("conv2d\nrelu\nmax_pool2d\n")
    (tmp_path / "fp32.txt").write_text("batch_norm\nsoftmax\ncross_entropy\nsmooth_l1_loss\n")
    lists = ("--hmp", "--hmp-bf16", "bf16.txt", "--hmp-fp32", "fp32.txt")
    plain, other_seed = (started(tmp_path, "detection.py", *options) for options in ((), ("--seed", "1")))
    noise = abs(number("final loss", other_seed) - number("final loss", plain))
    assert number("recall", plain) > 0.85
    for options in (("--hmp",), lists):
        mixed = started(tmp_path, "detection.py", *options)
        assert abs(number("recall", mixed) - number("recall", plain)) < 0.05
        assert abs(number("final loss", mixed) - number("final loss", plain)) < max(noise, 0.03)


@pytest.mark.parametrize("option", ["--hmp", pytest.param("--autocast", marks=pytest.mark.slow)])
def test_a_self_supervised_training_with_a_moving_average(option: str, tmp_path: Path) -> None:
    plain, mixed = started(tmp_path, "self_supervised.py"), started(tmp_path, "self_supervised.py", option)
    assert abs(number("final loss", mixed) - number("final loss", plain)) < 0.05


@pytest.mark.parametrize("script", ["lightning_classification.py", "trainer.py"])
def test_trainers_of_libraries_train_in_mixed_precision_as_in_fp32(script: str, tmp_path: Path) -> None:
    plain, mixed = started(tmp_path, script), started(tmp_path, script, "--hmp")
    assert number("final loss", plain) < 0.5
    assert abs(number("final loss", mixed) - number("final loss", plain)) < 0.05
