"""Lists decide alike on every device: benchmarks/device.py compares devices, here the pretended one and meta, and finds
what is wrong."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.late import module_of
from helpers.processes import python

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "device.py"


def test_the_table_of_the_device_has_nothing_wrong() -> None:
    device = ("--device", "pretended", "--import", "helpers.pretended.loaded")
    parts = ("--short", "--only", "calls,regions,training,weights")
    done = python(SCRIPT, *device, *parts, PYTHONPATH=str(ROOT / "tests"))
    assert done.returncode == 0, [line for line in done.stdout.splitlines() if "WRONG" in line] or done.stderr
    assert done.stdout.count("| ok |") > 300


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return module_of(SCRIPT)


#: What has no result without numbers, or has another kernel there.
NOT_ON_META = {"nn.GRU", "nn.LSTM", "func.vmap", "cross_entropy", "nll_loss", "autocast(enabled=False)"}


@pytest.mark.parametrize("preset", [None, "torch-cpu", "recommended"])
def test_meta_decides_as_the_cpu(script: ModuleType, preset: str | None) -> None:
    options: dict[str, Any] = {} if preset is None else {"preset": preset, "within": "everywhere"}
    for call in script.calls():
        if call.name in NOT_ON_META:
            continue
        rows = []
        for device in ("cpu", "meta"):
            hmp.convert(**options)
            hmp.reset_report()
            result = call.function(*(one.clone().to(device) for one in call.inputs))
            report = hmp.report(show=False)
            hmp.restore()
            rows.append((result.dtype, {(row.operation, row.precision, row.reason) for row in report}))
        assert rows[0][0] == rows[1][0], call.name
        assert rows[0][1] <= rows[1][1], call.name  # torch computes some sizes on meta by operations of Python


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
