"""The cast log: its lines, its destinations, and that it never harms the call that it reports."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from habana_mp import _core, hmp
from habana_mp._log import close_log, open_log

MUL = "<method '__mul__' of 'torch._C.TensorBase' objects>"

# In the order of Precision and Reason in src/engine/decision.hpp.
PRECISIONS = ["bf16", "fp16", "fp32", "unchanged"]
REASONS = {
    "list": "in the list",
    "widest": "widest input",
    "in_place": "in-place target keeps its precision",
    "first_input": "first input",
    "no_kernel": "no kernel for the lower precision",
    "scalar": "scalar brought into the lower precision's range",
    "ineligible": "inputs are never cast",
    "explicit_out": "out= was given",
    "explicit_dtype": "dtype= was given",
    "view": "the result may be a view of the input",
    "no_product": "it makes no matrix product",
    "construction": "a module is being constructed",
    "optimizer_step": "inside an optimizer's step",
    "worker": "in a DataLoader worker",
    "distributed": "in the code of torch.distributed",
    "library": "in the code of a library that computes in float32",
    "slower": "slower in the lower precision",
    "other_device": "the region is for another device",
    "op_wrap": "wrapped by op_wrap",
    "parts": "listed by its parts, or as a part",
    "sums": "added up in float32, the result rounded",
}


def emit(
    representation: str = MUL, operation: str = "mul", precision: str = "bf16", reason: str = "list", casts: int = 2
) -> None:
    _core._log_operation(representation, operation, PRECISIONS.index(precision), list(REASONS).index(reason), casts)


def line_of(representation: str, precision: str = "bf16") -> str:
    return f"casting  {representation}  to  to_{precision}"


def read(path: Path) -> str:
    _core.log_flush()
    return path.read_text(encoding="utf-8")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read(path).split("\n")[:-1]]


@pytest.fixture(autouse=True)
def _log_is_off_afterwards() -> Iterator[None]:
    yield
    close_log()


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The exceptions that the log reported, instead of raising them."""
    seen: list[BaseException] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: seen.append(report.exc_value))
    return seen


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.during: Callable[[], object] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.during()

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def collected() -> Iterator[SimpleNamespace]:
    logger = logging.getLogger("tests.casts")
    handler = Collector()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield SimpleNamespace(logger=logger, handler=handler)
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


# The core alone: importing the package imports torch, which takes a second or two for each of these scripts.
LOAD_CORE = f"""
import importlib.util
_spec = importlib.util.spec_from_file_location("_core", {_core.__file__!r})
_core = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_core)
"""


def script(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOAD_CORE + source, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


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
    suffix = f"  ({REASONS[reason]})" if reason in ("no_kernel", "scalar") else ""
    assert read(tmp_path / "casts.log") == f"{line_of(MUL, precision)}{suffix}\n"


@pytest.mark.parametrize("reason", list(REASONS))
def test_a_call_that_is_left_alone_says_why(tmp_path: Path, reason: str) -> None:
    open_log(tmp_path / "casts.log")
    emit(precision="unchanged", reason=reason, casts=0)
    assert read(tmp_path / "casts.log") == f"leaving  {MUL}  as it is: {REASONS[reason]}\n"


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


# The console


def test_the_console_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    open_log()
    emit()
    assert capsys.readouterr().out == line_of(MUL) + "\n"


@pytest.mark.parametrize("how", ["console", "stdout"])
def test_the_console_has_three_names(capsys: pytest.CaptureFixture[str], how: str) -> None:
    open_log(sys.stdout if how == "stdout" else how)
    emit()
    assert capsys.readouterr().out == line_of(MUL) + "\n"


def test_the_console_is_whatever_stdout_is_when_the_line_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    open_log()
    inner = io.StringIO()
    emit("before")
    with contextlib.redirect_stdout(inner):
        emit("inside")
    emit("after")
    assert inner.getvalue() == line_of("inside") + "\n"
    assert capsys.readouterr().out.splitlines() == [line_of("before"), line_of("after")]


def test_console_lines_and_printed_lines_keep_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    open_log()
    print("one")
    emit("two")
    print("three")
    assert capsys.readouterr().out.splitlines() == ["one", line_of("two"), "three"]


def test_the_console_gets_one_write_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(write=writes.append))
    open_log("console")
    emit("f")
    emit("g")
    assert writes == [line_of("f") + "\n", line_of("g") + "\n"]


def test_a_process_without_a_console_loses_the_lines_quietly(
    monkeypatch: pytest.MonkeyPatch, unraisable: list[BaseException]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    open_log("console")
    emit()
    monkeypatch.delattr(sys, "stdout")
    emit()
    assert unraisable == []


def test_a_console_that_cannot_show_a_character_gets_it_spelled_out(
    monkeypatch: pytest.MonkeyPatch, unraisable: list[BaseException]
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict", newline="\n"))
    open_log("console")
    emit("größe")
    sys.stdout.flush()
    assert raw.getvalue() == line_of(r"gr\xf6\xdfe").encode() + b"\n"
    assert unraisable == []


# A file


@pytest.mark.parametrize("as_text", [True, False])
def test_a_path_may_be_text_or_a_path_object(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / "casts.log"
    open_log(str(path) if as_text else path)
    emit()
    assert read(path) == line_of(MUL) + "\n"


def test_a_relative_path_is_resolved_when_the_log_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_log("casts.log")
    monkeypatch.chdir("/")
    emit()
    assert read(tmp_path / "casts.log") == line_of(MUL) + "\n"


@pytest.mark.parametrize("name", ["größe.log", "日本.jsonl", "a b.log", os.fsdecode(b"\xff.log")])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    open_log(tmp_path / name)
    emit()
    assert MUL in read(tmp_path / name)


def test_a_file_is_emptied_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "casts.log"
    path.write_text("old\n")
    open_log(path)
    assert path.read_text() == ""


@pytest.mark.parametrize("name", ["casts.log", "casts.jsonl"])
def test_a_file_that_is_appended_to_keeps_what_it_has(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("old\n")
    open_log(path, append=True)
    emit()
    lines = read(path).splitlines()
    assert lines[0] == "old"
    assert len(lines) == 2
    assert MUL in lines[1]


def test_opening_the_same_file_again_starts_it_anew(tmp_path: Path) -> None:
    path = tmp_path / "casts.log"
    open_log(path)
    emit("first")
    open_log(path)
    emit("second")
    close_log()
    assert path.read_text() == line_of("second") + "\n"


def test_closing_the_log_completes_the_file_and_ends_it(tmp_path: Path) -> None:
    path = tmp_path / "casts.log"
    open_log(path)
    emit("kept")
    close_log()
    emit("dropped")
    _core._log_event("dropped")
    close_log()
    assert path.read_text() == line_of("kept") + "\n"


@pytest.mark.parametrize("after", ["console", "file", "json", "logger"])
def test_switching_to_another_destination_leaves_the_old_file_complete(
    tmp_path: Path, after: str, collected: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "old.log"
    open_log(old)
    for i in range(1000):
        emit(f"f{i}")
    other = {"file": tmp_path / "new.log", "json": tmp_path / "new.jsonl", "logger": collected.logger}.get(after)
    open_log(other)
    emit("elsewhere")
    assert old.read_text().splitlines() == [line_of(f"f{i}") for i in range(1000)]


@pytest.mark.parametrize("length", [60_000, 65_500, 65_536, 70_000, 1_000_000])
def test_lines_longer_than_the_buffer_are_whole(tmp_path: Path, length: int) -> None:
    open_log(tmp_path / "casts.log")
    emit("before")
    emit("x" * length)
    emit("after")
    assert read(tmp_path / "casts.log").splitlines() == [line_of(r) for r in ("before", "x" * length, "after")]


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
    assert (record["precision"], record["reason"], record["description"]) == (precision, reason, REASONS[reason])


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
    assert (tmp_path / "casts.log").read_bytes().decode("utf-8") == line_of(readable) + "\n"


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
    readable = text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")
    if destination == "logger":
        assert collected.handler.lines == [line_of(readable)]
    else:
        assert stream.getvalue() == line_of(readable) + "\n"
    assert unraisable == []


# Python's logging


def test_a_logger_gets_each_line_as_a_record_at_info(collected: SimpleNamespace) -> None:
    open_log(collected.logger)
    emit()
    _core._log_event("100% off %s")
    assert collected.handler.lines == [line_of(MUL), "100% off %s"]
    assert {(r.name, r.levelno) for r in collected.handler.records} == {("tests.casts", logging.INFO)}


def test_a_record_names_the_code_of_the_call_and_not_ours(converted: Converter, collected: SimpleNamespace) -> None:
    wrapped = hmp.op_wrap(lambda x: x)
    converted(bf16=["softmin", "mm"], isVerbose=True, log=collected.logger)
    collected.handler.records.clear()
    x = torch.ones(2, 2)
    torch.mm(x, x)
    wrapped(x)
    F.softmin(x, dim=0)
    assert [(r.filename, r.funcName) for r in collected.handler.records] == [
        ("test_log.py", "test_a_record_names_the_code_of_the_call_and_not_ours"),
        ("test_log.py", "test_a_record_names_the_code_of_the_call_and_not_ours"),
        ("functional.py", "softmin"),
    ]


def test_a_record_points_at_the_line_that_called_the_operation(collected: SimpleNamespace) -> None:
    open_log(collected.logger)
    emit()
    (record,) = collected.handler.records
    assert (record.pathname, record.funcName) == (__file__, "emit")


def test_a_logger_whose_level_is_above_info_is_asked_but_given_nothing(collected: SimpleNamespace) -> None:
    open_log(collected.logger)
    collected.logger.setLevel(logging.WARNING)
    emit("quiet")
    collected.logger.setLevel(logging.DEBUG)
    emit("heard")
    assert collected.handler.lines == [line_of("heard")]


# What `log` may be


@pytest.mark.parametrize("wrong", [3, b"casts.log", 1.5, ["casts.log"], True, sys.__stderr__])
def test_anything_else_is_a_type_error_that_says_what_came(wrong: Any) -> None:
    with pytest.raises(TypeError) as caught:
        open_log(wrong)
    assert str(caught.value) == (
        f'`log` must be None, "console", sys.stdout, a path, or a logging.Logger; got {type(wrong).__name__}: {wrong!r}'
    )


def test_the_core_refuses_a_kind_that_it_does_not_know() -> None:
    kind: Any = "syslog"
    with pytest.raises(ValueError, match='`kind` must be "console", "file", "json" or "python"; got "syslog"'):
        _core.log_to(kind)


# Destinations that fail


@pytest.mark.parametrize("suffix", [".log", ".jsonl"])
@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("missing/casts", FileNotFoundError),
        ("folder", IsADirectoryError),
        ("a-file/casts", NotADirectoryError),
        ("x" * 300, OSError),
    ],
)
def test_a_path_that_cannot_be_opened_raises_and_leaves_the_previous_destination(
    tmp_path: Path, where: str, error: type[OSError], suffix: str
) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / "a-file").touch()
    path = tmp_path / f"{where}{suffix}"
    open_log(tmp_path / "good.log")
    emit("before")
    with pytest.raises(error) as caught:
        open_log(path)
    emit("after")
    assert caught.value.filename == str(path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "missing").exists()
    assert read(tmp_path / "good.log").splitlines() == [line_of("before"), line_of("after")]


def test_a_file_that_may_not_be_written_raises_permission_error(tmp_path: Path) -> None:
    path = tmp_path / "casts.log"
    path.touch(mode=0o400)
    user = os.geteuid()
    if user == 0:
        # Root may write anywhere: be nobody for a moment.
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError) as caught:
            open_log(path)
    finally:
        os.seteuid(user)
    assert caught.value.filename == str(path)


def test_a_path_with_a_null_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="null"):
        open_log(f"{tmp_path}/a\0b")


def test_a_wrong_type_leaves_the_previous_destination(tmp_path: Path) -> None:
    wrong: Any = 3
    open_log(tmp_path / "good.log")
    with pytest.raises(TypeError):
        open_log(wrong)
    emit()
    assert read(tmp_path / "good.log") == line_of(MUL) + "\n"


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


def test_a_logger_that_cannot_say_its_level_is_reported(
    collected: SimpleNamespace, unraisable: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log(collected.logger)
    monkeypatch.setattr(collected.logger, "isEnabledFor", lambda _level: 1 / 0)
    emit()
    assert [type(e) for e in unraisable] == [ZeroDivisionError]
    assert collected.handler.lines == []


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


def test_a_sink_may_close_or_replace_the_log(collected: SimpleNamespace, tmp_path: Path) -> None:
    open_log(collected.logger)
    collected.handler.during = lambda: open_log(tmp_path / "casts.log")
    emit("one")
    emit("two")
    open_log(collected.logger)
    collected.handler.during = close_log
    emit("three")
    emit("four")
    assert collected.handler.lines == [line_of("one"), line_of("three")]
    assert (tmp_path / "casts.log").read_text() == line_of("two") + "\n"


# Threads, processes, exit


@pytest.mark.parametrize("destination", ["file", "json", "console", "logger"])
def test_eight_threads_lose_no_line_and_tear_none(
    destination: str, tmp_path: Path, collected: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ("casts.jsonl" if destination == "json" else "casts.log")
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    open_log({"console": None, "logger": collected.logger}.get(destination, path))
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        start.wait()
        for i in range(1000):
            emit(f"{thread} {i}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    if destination == "json":
        got = [line_of(record["function"]) for record in records(path)]
    elif destination == "file":
        got = read(path).splitlines()
    elif destination == "console":
        got = stream.getvalue().splitlines()
    else:
        got = collected.handler.lines
    assert sorted(got) == sorted(line_of(f"{thread} {i}") for thread in range(8) for i in range(1000))
    for n in range(8):
        own = [line for line in got if line.startswith(f"casting  {n} ")]
        assert own == [line_of(f"{n} {i}") for i in range(1000)]


def test_switching_the_destination_under_running_threads_loses_no_line(tmp_path: Path) -> None:
    done = threading.Event()
    counts = [0] * 4

    def work(thread: int) -> None:
        while not done.is_set():
            emit(f"{thread} {counts[thread]}")
            counts[thread] += 1

    paths = [tmp_path / f"{i}.log" for i in range(50)]
    open_log(paths[0])
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for path in paths[1:]:
        open_log(path)
        time.sleep(0.001)
    done.set()
    for thread in threads:
        thread.join()
    close_log()
    got = [line for path in paths for line in path.read_text().splitlines()]
    assert sorted(got) == sorted(line_of(f"{thread} {i}") for thread in range(4) for i in range(counts[thread]))


FORK = """
import json, os, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)
kind, path = sys.argv[1:]
_core.log_to(kind, path)
stop = threading.Event()
def busy():
    while not stop.is_set():
        _core._log_operation("thread", "mul", 0, 0, 1)
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads: t.start()
_core._log_event("parent before " + "x" * 3000)
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        for i in range(500):
            _core._log_event(f"child {child} {i}")
        # Flushes nothing.
        os._exit(0)
    children.append(pid)
for i in range(500):
    _core._log_event(f"parent {i}")
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
stop.set()
for t in threads: t.join()
_core._log_event(f"parent after {os.getpid()}")
"""


@pytest.mark.parametrize("kind", ["file", "json"])
def test_parent_and_forked_children_write_whole_lines_each_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "casts"
    result = script(FORK, kind, path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = path.read_text().splitlines()
    threads_of: dict[str, set[int]] = {}
    if kind == "json":
        loaded = [json.loads(line) for line in lines]
        for record in loaded:
            text = record.get("text", "thread")
            threads_of.setdefault(text[:7] if text.startswith("child") else text.split()[0], set()).add(
                record["thread"]
            )
        lines = [record.get("text") or line_of(record["function"]) for record in loaded]
    got = [line for line in lines if line != line_of("thread")]
    before, after = got.index("parent before " + "x" * 3000), len(got) - 1
    assert before == 0
    assert got[after].startswith("parent after ")
    expected = [f"child {child} {i}" for child in range(4) for i in range(500)] + [f"parent {i}" for i in range(500)]
    assert sorted(got[1:after]) == sorted(expected)
    if kind == "json":
        # The main thread's id is its process's: each process writes its own, not the one that it inherited.
        assert threads_of["parent"] == {int(got[after].split()[-1])}
        assert len(set.union(*(threads_of[f"child {child}"] for child in range(4)))) == 4
        assert all(len(threads_of[f"child {child}"]) == 1 for child in range(4))


def test_a_fork_inside_a_line_leaves_a_child_that_can_log(tmp_path: Path) -> None:
    result = script(
        """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
class Forks:
    def write(self, text):
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
stdout, sys.stdout = sys.stdout, Forks()
_core.log_to("console")
_core._log_event("forks")
sys.stdout = stdout
_core.log_to("file", sys.argv[1], append=True)
_core._log_event("after")
""",
        tmp_path / "casts.log",
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "casts.log").read_text() == "after\nafter\n"


EXITS = {
    "end": "",
    "sys.exit": "sys.exit(0)",
    "exception": "raise ValueError",
    "daemon thread": """
import threading, time
def busy():
    while True:
        _core._log_event("busy")
for _ in range(4):
    threading.Thread(target=busy, daemon=True).start()
time.sleep(0.05)
""",
    "late atexit": 'import atexit; atexit.register(_core._log_event, "late")',
    "in __del__": """
class Late:
    def __del__(self, emit=_core._log_event): emit("too late")
sys.late = Late()
""",
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("kind", ["file", "json", "console", "python"])
def test_exit_with_the_log_on_keeps_every_line_and_does_not_crash(tmp_path: Path, kind: str, how: str) -> None:
    result = script(
        f"""
import logging, sys
kind, path = sys.argv[1:]
target = None if kind == "console" else path
if kind == "python":
    target = logging.getLogger("x")
    target.setLevel("INFO")
    target.addHandler(logging.FileHandler(path))
if kind == "console":
    sys.stdout = open(path, "w")
_core.log_to(kind, target)
_core._log_event("first")
_core._log_event("last")
{EXITS[how]}
""",
        kind,
        tmp_path / "casts",
    )
    assert result.returncode == (1 if how == "exception" else 0), result.stderr
    if how != "exception":
        assert result.stderr == ""
    lines = (tmp_path / "casts").read_bytes().splitlines()
    if kind == "json":
        lines = [json.loads(line)["text"].encode() for line in lines]
    assert lines[:2] == [b"first", b"last"]
    assert (b"late" in lines) == (how == "late atexit")
    # Threads that write to one of Python's text files at once may spoil each other's lines, with or without us.
    if (kind, how) != ("console", "daemon thread"):
        assert set(lines[2:]) <= {b"busy", b"late"}


def test_a_daemon_thread_that_opens_a_log_while_the_interpreter_ends_does_not_abort_it(tmp_path: Path) -> None:
    result = script(
        """
import ctypes, os, subprocess, sys, threading, time
os.mkfifo(sys.argv[1])
threading.Thread(target=_core.log_to, args=("file", sys.argv[1]), daemon=True).start()
time.sleep(0.2)
# The other end is opened when the interpreter has ended, and still works without the GIL.
subprocess.Popen(["sh", "-c", 'sleep 1; cat "$0" > /dev/null', sys.argv[1]])
class Last:
    def __init__(self): self.sleep = ctypes.CDLL(None).usleep
    def __del__(self): self.sleep(2_000_000)
sys.modules["last"] = Last()
""",
        tmp_path / "pipe",
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_exit_with_a_console_that_is_already_closed_does_not_crash() -> None:
    result = script('import sys; _core.log_to("console"); sys.stdout.close(); _core._log_event("x")')
    assert result.returncode == 0
    assert "I/O operation on closed file" in result.stderr
    assert "the cast log of habana_mp" in result.stderr
