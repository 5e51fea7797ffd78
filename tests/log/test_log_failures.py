"""A log that cannot be written never harms the call that it reports."""

from __future__ import annotations

import io
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from habana_mp import _core
from habana_mp.reporting.log import close_log, open_log
from helpers.log_lines import MUL, emit, line_of, read

# Destinations that fail


def test_a_path_that_cannot_be_opened_raises_and_leaves_the_previous_destination(tmp_path: Path) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "a-file").touch()
    open_log(tmp_path / "good.log")
    emit("before")
    for where, error in {
        "missing/casts.log": FileNotFoundError,
        "folder.jsonl": IsADirectoryError,
        "a-file/casts.jsonl": NotADirectoryError,
        "x" * 300: OSError,
    }.items():
        with pytest.raises(error) as caught:
            open_log(tmp_path / where)
        assert caught.value.filename == str(tmp_path / where)
        assert str(tmp_path / where) in str(caught.value)
    emit("after")
    assert not (tmp_path / "missing").exists()
    assert read(tmp_path / "good.log").splitlines() == [line_of("before"), line_of("after")]


def test_a_failing_console_never_fails_the_call_and_is_reported_once_until_it_works_again(
    monkeypatch: pytest.MonkeyPatch, unraisable: list[BaseException]
) -> None:
    open_log("console")
    closed = io.StringIO()
    closed.close()
    working = io.StringIO()
    for stream in (closed, working, closed):
        monkeypatch.setattr(sys, "stdout", stream)
        for _ in range(3):
            emit()
    assert [type(e) for e in unraisable] == [ValueError, ValueError]
    assert working.getvalue() == (line_of(MUL) + "\n") * 3


def test_a_failing_logger_never_fails_the_call_and_is_reported(
    collected: SimpleNamespace, unraisable: list[BaseException]
) -> None:
    def fail() -> None:
        raise RuntimeError("no room")

    open_log(collected.logger)
    collected.handler.during = fail
    emit("lost")
    collected.handler.during = lambda: None
    emit("kept")
    assert [str(e) for e in unraisable] == ["no room"]
    assert collected.handler.lines[-1] == line_of("kept")


@pytest.mark.parametrize("kind", ["file", "json"])
def test_a_full_disk_is_reported_and_never_fails_the_call(kind: Any, unraisable: list[BaseException]) -> None:
    _core.log_to(kind, "/dev/full")
    for _ in range(5000):
        emit()
    close_log()
    assert [type(e) for e in unraisable] == [OSError]
    assert "/dev/full" in str(unraisable[0])
    assert "No space left" in str(unraisable[0])


def test_an_interrupt_inside_a_line_still_reaches_the_script(
    monkeypatch: pytest.MonkeyPatch, unraisable: list[BaseException]
) -> None:
    def interrupted(_text: str) -> None:
        signal.raise_signal(signal.SIGINT)

    def loop() -> None:
        emit()
        for _ in range(1000):
            time.sleep(0)

    open_log("console")
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=interrupted, flush=lambda: None))
    # a shell starts what runs in its background with this signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            loop()
    finally:
        signal.signal(signal.SIGINT, before)
    assert unraisable == []


# Lines within lines


def test_a_line_caused_by_a_sink_is_dropped(collected: SimpleNamespace) -> None:
    def compute() -> None:
        emit("nested")
        _core._log_event("nested")

    open_log(collected.logger)
    collected.handler.during = compute
    emit("outer")
    emit("next")
    assert collected.handler.lines == [line_of("outer"), line_of("next")]
