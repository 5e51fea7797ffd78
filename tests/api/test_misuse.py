"""Errors for wrong uses of a function say what to write."""

from __future__ import annotations

import inspect
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.each import each


def test_a_block_of_convert_says_what_makes_one_and_converts() -> None:
    block: Any = hmp.convert
    with pytest.raises(TypeError, match=re.escape('write `with hmp.autocast("cpu"):`')), block():
        pass
    assert hmp.is_converted()
    assert "hmp.restore()" in repr(block())


def test_a_region_that_goes_around_nothing_says_what_to_write(recwarn: pytest.WarningsRecorder) -> None:
    region: Any = hmp.autocast
    with pytest.raises(TypeError, match=re.escape('goes around a block: `with hmp.autocast("cpu"):`')):
        region()
    region("cpu")
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]  # CPython has frames
    (warned,) = recwarn
    assert "hmp.autocast(...) alone does nothing: write `with hmp.autocast(...):`" in str(warned.message)
    assert (warned.filename, warned.lineno) == (__file__, line)
    with region("cpu"):
        region("cpu")(print)
    assert len(recwarn) == 1


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


# ---- a report shows itself once -------------------------------------------------------------------------------------


class Notebook:
    """What a notebook is, as far as the report asks."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.display = SimpleNamespace(display=self._display)

    def get_ipython(self) -> object:
        return type("ZMQInteractiveShell", (), {})()

    def _display(self, shown: Any) -> None:
        self.shown.append(shown._repr_html_())


def test_a_notebook_shows_a_table_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    hmp.convert()
    hmp.reset_report()
    torch.ones(2, 8) @ torch.ones(8, 2)
    returned: Any = hmp.report()
    assert capsys.readouterr().out == ""
    (html,) = notebook.shown
    assert "<table>" in html
    assert ">matmul</td>" in html
    assert returned._repr_html_() is None  # the cell's last line
    assert returned._repr_html_() == html  # asked for a second time
    hmp.report(file=io.StringIO())
    assert len(notebook.shown) == 1


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
