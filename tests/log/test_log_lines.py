"""The lines of the cast log, as text and as JSON."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from habana_mp import _core
from habana_mp.reporting.log import open_log
from habana_mp.reporting.records import PRECISIONS, REASONS
from helpers.log_lines import MUL, emit, line_of, read, records

# The text of a line


def test_a_cast_is_one_line_of_the_function_and_the_precision(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.log")
    emit(precision="fp32")
    assert read(tmp_path / "casts.log") == "casting  <method '__mul__' of 'torch._C.TensorBase' objects>  to  to_fp32\n"


def test_a_cast_names_its_reason_only_where_the_precision_was_not_free_and_a_call_left_alone_always(
    tmp_path: Path,
) -> None:
    open_log(tmp_path / "casts.log")
    expected = []
    for reason, words in ((name, one.description) for name, one in REASONS.items()):
        emit(precision="bf16", reason=reason)
        emit(precision="unchanged", reason=reason, casts=0)
        expected += [f"{line_of(MUL)}  ({words})" if reason in ("no_kernel", "scalar") else line_of(MUL)]
        expected += [f"leaving  {MUL}  as it is: {words}"]
    assert read(tmp_path / "casts.log").splitlines() == expected


# JSON lines


@pytest.mark.parametrize("name", ["casts.jsonl", "casts.json", "casts.JSONL"])
def test_the_suffix_of_the_path_asks_for_json_lines(tmp_path: Path, name: str) -> None:
    open_log(tmp_path / name)
    emit(casts=3)
    now = datetime.now(UTC)
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
    assert abs(now - moment) < timedelta(minutes=1)


def test_json_names_precision_and_reason_by_their_words(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.jsonl")
    expected = [(precision, name, one.description) for precision in PRECISIONS for name, one in REASONS.items()]
    for precision, reason, _ in expected:
        emit(precision=precision, reason=reason)
    found = records(tmp_path / "casts.jsonl")
    assert [(one["precision"], one["reason"], one["description"]) for one in found] == expected


def test_an_event_is_a_json_line_of_its_own_kind(tmp_path: Path) -> None:
    open_log(tmp_path / "casts.jsonl")
    _core._log_event('left "casts"')
    (record,) = records(tmp_path / "casts.jsonl")
    assert sorted(record) == ["kind", "text", "thread", "time"]
    assert (record["kind"], record["text"]) == ("event", 'left "casts"')
