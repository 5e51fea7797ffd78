"""The cast log in threads, in forked children, and at the end of the interpreter."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from habana_mp.reporting.log import close_log, open_log
from helpers.log_lines import emit, line_of, records, script
from helpers.processes import in_threads

# Threads, processes, exit


@pytest.mark.parametrize("destination", ["json", "console", "logger"])
def test_eight_threads_lose_no_line_and_tear_none(
    destination: str, tmp_path: Path, collected: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "casts.jsonl"
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
    in_threads(work, 8)
    sys.setswitchinterval(interval)
    if destination == "json":
        got = [line_of(record["function"]) for record in records(path)]
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


def test_parent_and_forked_children_write_whole_lines_each_once(tmp_path: Path) -> None:
    path = tmp_path / "casts"
    result = script(FORK, "json", path)
    assert (result.returncode, result.stderr) == (0, "")
    threads_of: dict[str, set[int]] = {}
    got = []
    for record in map(json.loads, path.read_text().splitlines()):
        text = record.get("text", "thread")
        name = text[:7] if text.startswith("child") else text.split()[0]
        threads_of.setdefault(name, set()).add(record["thread"])
        got += [text] if text != "thread" else []
    before, after = got.index("parent before " + "x" * 3000), len(got) - 1
    assert before == 0
    assert got[after].startswith("parent after ")
    expected = [f"child {child} {i}" for child in range(4) for i in range(500)] + [f"parent {i}" for i in range(500)]
    assert sorted(got[1:after]) == sorted(expected)
    # The main thread's id is its process's: each process writes its own, not the one that it inherited.
    assert threads_of["parent"] == {int(got[after].split()[-1])}
    assert len(set.union(*(threads_of[f"child {child}"] for child in range(4)))) == 4
    assert all(len(threads_of[f"child {child}"]) == 1 for child in range(4))


EXITS = {
    "end": "",
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
}


@pytest.mark.parametrize("how", EXITS)
@pytest.mark.parametrize("kind", ["json", "console", "python"])
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


def test_exit_with_a_console_that_is_already_closed_does_not_crash() -> None:
    result = script('import sys; _core.log_to("console"); sys.stdout.close(); _core._log_event("x")')
    assert result.returncode == 0
    assert "I/O operation on closed file" in result.stderr
    assert "the cast log of habana_mp" in result.stderr
