"""The lines of the cast log, as text and as JSON."""

from __future__ import annotations

import io
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from habana_mp import _core
from habana_mp.reporting.log import open_log
from habana_mp.reporting.records import PRECISIONS, REASONS
from helpers.log_lines import MUL, emit, line_of, read, records

# The text of a line


def test_a_cast_reads_as_in_the_seeds(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.log")
    emit(precision="fp32")
    assert read(tmp_path / "casts.log") == "casting  <method '__mul__' of 'torch._C.TensorBase' objects>  to  to_fp32\n"


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("reason", list(REASONS))
def test_a_cast_names_its_reason_only_where_the_precision_was_not_free(
    tmp_path: Path, precision: str, reason: str
) -> None:
    open_log(tmp_path / "casts.log")
    emit(precision=precision, reason=reason)
    suffix = f"  ({REASONS[reason].description})" if reason in ("no_kernel", "scalar") else ""
    assert read(tmp_path / "casts.log") == f"{line_of(MUL, precision)}{suffix}\n"


@pytest.mark.parametrize("reason", list(REASONS))
def test_a_call_that_is_left_alone_says_why(tmp_path: Path, reason: str) -> None:
    open_log(tmp_path / "casts.log")
    emit(precision="unchanged", reason=reason, casts=0)
    assert read(tmp_path / "casts.log") == f"leaving  {MUL}  as it is: {REASONS[reason].description}\n"


def test_an_event_is_written_as_given(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.log")
    _core._log_event("casts are off: 100% {of} them")
    assert read(tmp_path / "casts.log") == "casts are off: 100% {of} them\n"


def test_lines_keep_their_order(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.log")
    for i in range(5000):
        if i % 7:
            emit(f"f{i}")
        else:
            _core._log_event(f"f{i}")
    expected = [line_of(f"f{i}") if i % 7 else f"f{i}" for i in range(5000)]
    assert read(tmp_path / "casts.log").splitlines() == expected


# JSON lines


@pytest.mark.parametrize("name", ["casts.jsonl", "casts.json", "casts.JSONL"])
def test_the_suffix_of_the_path_asks_for_json_lines(tmp_path: Path, name: str) -> None:
    open_log(tmp_path / name)
    emit(casts=3)
    before = datetime.now(timezone.utc)
    (record,) = records(tmp_path / name)
    moment = datetime.fromisoformat(record.pop("time"))
    assert record == {
        "thread": threading.get_native_id(),
        "kind": "operation",
        "function": MUL,
        "operation": "mul",
        "precision": "bf16",
        "reason": "list",
        "description": "in the list",
        "casts": 3,
    }
    assert moment.utcoffset() == timedelta(0)
    assert abs(before - moment) < timedelta(minutes=1)


def test_json_times_have_six_digits_and_never_run_backwards(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.jsonl")
    for _ in range(3):
        emit()
        time.sleep(0.4)
    times = [record["time"] for record in records(tmp_path / "casts.jsonl")]
    assert [len(t) for t in times] == [len("2024-05-01T12:34:56.123456+00:00")] * 3
    assert times == sorted(times)
    elapsed = datetime.fromisoformat(times[2]) - datetime.fromisoformat(times[0])
    assert timedelta(seconds=0.8) <= elapsed < timedelta(seconds=30)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reason", list(REASONS))
def test_json_names_precision_and_reason_by_their_words(tmp_path: Path, precision: str, reason: str) -> None:
    open_log(tmp_path / "casts.jsonl")
    emit(precision=precision, reason=reason)
    (record,) = records(tmp_path / "casts.jsonl")
    assert (record["precision"], record["reason"], record["description"]) == (
        precision,
        reason,
        REASONS[reason].description,
    )


def test_an_event_is_a_json_line_of_its_own_kind(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.jsonl")
    _core._log_event('left "casts"')
    (record,) = records(tmp_path / "casts.jsonl")
    assert sorted(record) == ["kind", "text", "thread", "time"]
    assert (record["kind"], record["text"]) == ("event", 'left "casts"')


# Strange text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text())
def test_json_gives_any_text_back(tmp_path: Path, text: str) -> None:
    open_log(tmp_path / "casts.jsonl")
    emit(text)
    _core._log_event(text)
    operation, event = records(tmp_path / "casts.jsonl")
    assert operation["function"] == event["text"] == text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(st.characters(exclude_categories=())))
def test_lone_surrogates_are_spelled_out_and_never_make_a_file_unreadable(tmp_path: Path, text: str) -> None:
    readable = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    open_log(tmp_path / "casts.jsonl")
    emit(text)
    (record,) = records(tmp_path / "casts.jsonl")
    open_log(tmp_path / "casts.log")
    emit(text)
    _core.log_flush()
    assert record["function"] == readable
    assert (tmp_path / "casts.log").read_bytes().decode("utf-8") == line_of(_core.printable(readable)) + "\n"


@pytest.mark.parametrize("text", ["a\"b\\c'", "a\nb\r\nc\td", "\x00\x1f\x7f", "größe 日本 🙂", "\ud800", "a\udfffb"])
@pytest.mark.parametrize("destination", ["console", "logger"])
def test_python_destinations_take_strange_text(
    text: str,
    destination: str,
    collected: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    unraisable: list[BaseException],
) -> None:
    stream = io.StringIO(newline="")
    monkeypatch.setattr(sys, "stdout", stream)
    open_log(collected.logger if destination == "logger" else None)
    emit(text)
    readable = _core.printable(text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace"))
    if destination == "logger":
        assert collected.handler.lines == [line_of(readable)]
    else:
        assert stream.getvalue() == line_of(readable) + "\n"
    assert unraisable == []
