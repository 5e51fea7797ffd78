"""What newcomers type first: completion, results at a prompt, calls without effect, and slips in arguments."""

from __future__ import annotations

import inspect
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import habana_mp
from habana_mp import hmp
from helpers.each import each
from helpers.processes import python


def test_completion_shows_the_public_names_and_no_others() -> None:
    assert {"audit", "diagnose", "tune", "convert", "report"} <= {*dir(hmp)}
    assert dir(habana_mp) == sorted([*dir(hmp), "hmp"])
    assert not [name for name in dir(hmp) if inspect.ismodule(getattr(hmp, name)) or name.startswith("_")]
    assert all(getattr(habana_mp, name) is getattr(hmp, name) for name in dir(hmp))


# ---- at a prompt ----------------------------------------------------------------------------------------------------


def at_a_prompt(*statements: str) -> str:
    lines = ["import torch", "from habana_mp import hmp", *statements]
    code = f"import code\nshell = code.InteractiveConsole()\nfor line in {lines!r}:\n    shell.push(line)"
    return python("-c", code).stdout


def test_a_prompt_shows_explanations_in_words() -> None:
    shown = at_a_prompt("hmp.convert()", "hmp.explain('softmax')", "hmp.explain(torch.nn.Sequential(torch.nn.ReLU()))")
    assert "\nsoftmax runs in fp32: `softmax` at hmp_default_fp32.txt:" in shown
    assert shown.endswith("\nSequential\n  0: ReLU\n")
    assert at_a_prompt("hmp.compare(*[hmp.report(show=False)] * 2)") == "rows: 0 the same\n"


class IPython:
    """Stands for IPython, as far as the report needs it: in a terminal or in a notebook."""

    def __init__(self, shell: str) -> None:
        self.shown: list[dict[str, str]] = []
        self.display = SimpleNamespace(display=lambda shown, raw: self.shown.append(shown))
        self.shell = type(shell, (), {"execution_count": 1})()

    def get_ipython(self) -> Any:
        return self.shell


@each("shell, in_notebook", [("TerminalInteractiveShell", False), ("ZMQInteractiveShell", True)])
def test_a_cell_shows_a_report_once(
    shell: str, in_notebook: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ipython: Any = IPython(shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    hmp.convert()
    torch.ones(2, 8) @ torch.ones(8, 2)
    report: Any = hmp.report()
    report._ipython_display_()  # the last line of the same cell
    ipython.shell.execution_count += 1
    report._ipython_display_()  # the last line of the next cell
    html = report._repr_html_()
    assert "<table>" in html
    assert ">matmul</td>" in html
    times = 2
    assert ipython.shown == times * in_notebook * [{"text/html": html, "text/plain": str(report)}]
    assert capsys.readouterr().out == times * (not in_notebook) * f"{report}\n"


# ---- calls without effect -------------------------------------------------------------------------------------------


@each("call", [hmp.disable_casts, hmp.watch, lambda: hmp.autocast("cpu")])
def test_a_block_that_is_not_entered_says_what_to_write(call: Any, recwarn: pytest.WarningsRecorder) -> None:
    call()
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]  # CPython has frames
    (warned,) = recwarn
    assert re.search(r"(hmp\.\w+)\(.* alone does nothing: write `with \1\(", str(warned.message))
    assert (warned.filename, warned.lineno) == (__file__, line)
    recwarn.clear()
    with call():
        call()(print)
    assert str(warned.message) in repr(call())  # a prompt has shown it
    assert not recwarn
