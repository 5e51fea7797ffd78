"""benchmarks/device.py: one table that shows how a device does beside the CPU; here the device is the CPU itself."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch

from habana_mp import hmp
from helpers.processes import python

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location("device_table", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "device_table", module)  # dataclasses look for it there
    specification.loader.exec_module(module)
    return module


def test_the_table_of_the_cpu_has_the_parts_asked_for_and_nothing_wrong() -> None:
    done = python(SCRIPT, "--device", "cpu", "--short", "--only", "regions,weights")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ") and line.count(" | ") == 4]
    parts = {row[0].strip("| ").split(",")[0] for row in rows}
    assert parts >= {"regions", "streams", "graphs", "weights"}
    assert {row[-1].strip("| ") for row in rows} == {"verdict", "ok", "not here"}
    assert f"torch {torch.__version__}" in done.stdout


def test_a_result_that_is_off_is_wrong(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right, errors = script.on, iter([0.0, 0.0, 1.0, 0.0])  # in float32 on both, then with casts on the device

    def off(device: torch.device, call: object) -> object:
        found, decisions = right(device, call)
        error = next(errors)
        return [one + error for one in found], decisions

    table = script.Table()
    monkeypatch.setattr(script, "calls", lambda: [script.Call("mm", torch.mm, (script.normal(4, 4),) * 2)])
    script.compare_calls(table, torch.device("cpu"), torch.bfloat16, {})
    assert (len(table.rows), table.wrong) == (1, 0)
    monkeypatch.setattr(script, "on", off)
    script.compare_calls(table, torch.device("cpu"), torch.bfloat16, {})
    assert (len(table.rows), table.wrong) == (2, 1)


def test_another_decision_than_on_the_cpu_is_wrong(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    right, lowered = script.on, iter([True, True, True, False])

    def differs(device: torch.device, call: object) -> object:
        with nullcontext() if next(lowered) else hmp.disable_casts():
            return right(device, call)

    monkeypatch.setattr(script, "calls", lambda: [script.Call("mm", torch.mm, (script.normal(4, 4),) * 2)])
    monkeypatch.setattr(script, "on", differs)
    table = script.Table()
    script.compare_calls(table, torch.device("cpu"), torch.bfloat16, {})
    assert table.wrong == 1


ONE_PART_FAILS = f"""
import sys

sys.path.insert(0, {str(SCRIPT.parent)!r})
import device

def fails(*_):
    raise RuntimeError("no kernel image is available")

device.compare_regions = fails
device.compare_calls = lambda table, *_: table.add("calls", "mm", "", "", "ok")
sys.argv = ["device.py", "--device", "cpu", "--only", "calls,regions"]
sys.exit(device.main())
"""


def test_an_error_in_one_part_is_a_row_and_the_others_run() -> None:
    done = python("-c", ONE_PART_FAILS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "RuntimeError: no kernel image is available | WRONG" in done.stdout
    assert "| calls | mm |" in done.stdout
    assert "two streams at once" in done.stdout
