"""Where the cast log goes: the console, a file, Python's logging."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from habana_mp.reporting.log import close_log, open_log
from helpers.lists import Converter
from helpers.log_lines import MUL, emit, line_of, read

# The console


def test_the_console_has_three_names_and_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (None, "console", sys.stdout):
        open_log(name)
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


@pytest.mark.parametrize("name", ["größe 日本.jsonl", os.fsdecode(b"\xff.log")])
def test_a_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    open_log(tmp_path / name)
    emit()
    assert MUL in read(tmp_path / name)


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


@pytest.mark.parametrize("length", [65_500, 65_536, 1_000_000])
def test_lines_longer_than_the_buffer_are_whole(tmp_path: Path, length: int) -> None:
    open_log(tmp_path / "casts.log")
    emit("before")
    emit("x" * length)
    emit("after")
    assert read(tmp_path / "casts.log").splitlines() == [line_of(r) for r in ("before", "x" * length, "after")]


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
        ("test_log_destinations.py", "test_a_record_names_the_code_of_the_call_and_not_ours"),
        ("test_log_destinations.py", "test_a_record_names_the_code_of_the_call_and_not_ours"),
        ("functional.py", "softmin"),
    ]


def test_a_logger_whose_level_is_above_info_is_asked_but_given_nothing(collected: SimpleNamespace) -> None:
    open_log(collected.logger)
    collected.logger.setLevel(logging.WARNING)
    emit("quiet")
    collected.logger.setLevel(logging.DEBUG)
    emit("heard")
    assert collected.handler.lines == [line_of("heard")]


# What `log` may be


@pytest.mark.parametrize("wrong", [3, b"casts.log", True, sys.__stderr__])
def test_anything_else_is_a_type_error_that_says_what_came(wrong: Any) -> None:
    with pytest.raises(TypeError) as caught:
        open_log(wrong)
    assert str(caught.value) == (
        f'`log` must be None, "console", sys.stdout, a path, or a logging.Logger; got {type(wrong).__name__}: {wrong!r}'
    )
