"""Errors for wrong uses of a function say what to write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from habana_mp import hmp
from helpers.each import each


def test_a_block_of_convert_says_what_makes_one_and_converts() -> None:
    block: Any = hmp.convert
    with pytest.raises(TypeError, match=re.escape('write `with hmp.autocast("cpu"):`')), block():
        pass
    assert hmp.is_converted()
    assert "hmp.restore()" in repr(block())


def test_a_region_without_a_device_says_what_to_write() -> None:
    region: Any = hmp.autocast
    with pytest.raises(TypeError, match=re.escape('goes around a block: `with hmp.autocast("cpu"):`')):
        region()


@each(
    "name, hint",
    [
        ("presett", "did you mean `preset`?"),
        ("verbose", "did you mean `isVerbose`?"),
        ("bf16_file", "did you mean `bf16_file_path`?"),
        ("optlevel", "did you mean `opt_level`?"),
        ("zzz", "it has opt_level, bf16_file_path, "),
    ],
)
def test_a_misspelled_argument_is_named_with_the_one_that_is_near(name: str, hint: str) -> None:
    given: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=re.escape(f"`hmp.convert` has no argument `{name}`; {hint}")):
        hmp.convert(**given)
    assert not hmp.is_converted()


@pytest.mark.parametrize(
    ("path", "why"),
    [("missing/cast.log", "its folder does not exist"), (".", "it must be a file, not a directory")],
)
def test_a_log_that_cannot_be_written_says_what_would_be_right(path: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=f"the log cannot be written: {why}") as raised:
        hmp.convert(log=str(tmp_path / path))
    assert raised.value.filename == str(tmp_path / path)
    assert not hmp.is_converted()


def test_the_optimizers_that_were_here_say_what_to_use() -> None:
    with pytest.raises(ImportError, match=r"use `torch\.optim` .* with `fused=True`"):
        from habana_mp import optim  # noqa: F401


@pytest.mark.parametrize(
    ("level", "hint"), [("recommended", "write `preset='recommended'`"), ("02", 'write "O2" with the letter O')]
)
def test_a_slip_in_the_level_is_answered_with_what_is_meant(level: str, hint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(hint)):
        hmp.convert(level)


def test_an_operation_that_is_unknown_names_the_ways_for_functions_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("my_own_kernel\n")
    with pytest.raises(hmp.ListError, match=r"unknown operation `my_own_kernel`; .*hmp\.op_wrap.*--import"):
        hmp.convert(bf16_file_path=tmp_path / "list.txt")
