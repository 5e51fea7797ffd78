"""Ctrl-C at every moment in which a record, a watch or a diagnosis begins or ends: the next one works, and torch is as
before after it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from habana_mp import _core, hmp
from habana_mp.common.blocks import ProcessBlock
from habana_mp.diagnosis.diagnosis import diagnosed_process
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.notes import no_notes
from habana_mp.reporting.guard import unguarded
from habana_mp.reporting.watch import unwatched, watching
from helpers.each import each
from helpers.interrupts import interrupted_at
from helpers.probes import BF16, FP32, dtype_of_product
from helpers.recorded import rows_of

_numbers = itertools.count()
PURE = ("ops", "policy")


def assert_nothing_observes() -> None:
    assert installation._observers == {}
    assert watching.detail == "operations"


def run(make: Callable[[], AbstractContextManager[Any]]) -> None:
    with make():
        dtype_of_product()


def moments(make: Callable[[], AbstractContextManager[Any]], count: int = 20) -> Iterator[AbstractContextManager[Any]]:
    """Interrupts blocks at so many moments, from the first to the last, and yields each of them afterwards."""
    run(make)
    last = interrupted_at(None, lambda: run(make), PURE)
    assert last > 20
    for part in range(count):
        block = make()
        interrupted_at(1 + (last - 1) * part // (count - 1), partial(run, lambda block=block: block), PURE)
        yield block


def next_record(folder: Path) -> int:
    """Returns the number of calls in a new record."""
    folder = folder / f"next {next(_numbers)}"
    with hmp.record(folder):
        torch.exp(torch.ones(2))
    return len(rows_of(folder))


def test_an_interrupted_record_lets_the_next_one_run(tmp_path: Path) -> None:
    for _ in moments(lambda: hmp.record(tmp_path / "interrupted"), 60):
        assert dtype_of_product() is FP32
        assert next_record(tmp_path) == 1
        assert_nothing_observes()
        assert _core.installed_count() == 0


@each("around", ["convert", "region"])
def test_an_interrupted_record_leaves_what_is_around_it(around: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        if around == "convert":
            hmp.convert(preset="recommended", within="everywhere")
        else:
            stack.enter_context(hmp.autocast("cpu"))
        for _ in moments(lambda: hmp.record(tmp_path / around / "interrupted")):
            assert dtype_of_product() is BF16
            assert next_record(tmp_path / around) == 1
            assert_nothing_observes()
            assert hmp.is_converted() == (around == "convert")
            assert dtype_of_product() is BF16


def test_the_same_record_goes_on_after_it_was_interrupted(tmp_path: Path) -> None:
    record, count = hmp.record(tmp_path), 0
    for _ in moments(lambda: record):
        with record:
            torch.exp(torch.ones(2))
        count += 1
    assert [row["operation"] for row in rows_of(tmp_path)].count("exp") == count
    assert _core.installed_count() == 0


def test_an_interrupted_watch_ends() -> None:
    hmp.convert()
    for _ in moments(lambda: hmp.watch("lines")):
        assert_nothing_observes()
        with hmp.watch("modules"):
            assert watching.detail == "modules"


@each("block", [diagnosed_process, unwatched, unguarded])
def test_what_a_diagnosis_changes_in_the_process_ends_when_it_is_interrupted(block: ProcessBlock) -> None:
    hmp.convert(report="lines", guard=True)
    for _ in moments(lambda: block):
        assert block.entrances == 0
        assert set(installation._observers.values()) == {"watch"}


def test_a_diagnosis_that_is_interrupted_lets_the_next_one_and_a_record_run(tmp_path: Path) -> None:
    hmp.convert(preset="recommended", within="everywhere")
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)

    def diagnose() -> None:
        hmp.diagnose(lambda: model(x).sum())

    diagnose()
    last = interrupted_at(None, diagnose, PURE)
    for moment in (*range(1, 130), *range(130, last + 1, last // 10)):  # each one while it begins
        interrupted_at(moment, diagnose, PURE)
        assert_nothing_observes()
        assert torch._dynamo.eval_frame._stance.stance == "default"
        assert no_notes.entrances == 0
        assert next_record(tmp_path) == 1
    diagnose()
