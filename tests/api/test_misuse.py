"""What newcomers type first: completion, results at a prompt, calls without effect, and slips in arguments."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import habana_mp
from habana_mp import hmp
from helpers.each import each
from helpers.lists import write_list
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


def test_a_block_that_is_never_entered_is_no_statement(recwarn: pytest.WarningsRecorder) -> None:
    blocks = {"exact": hmp.disable_casts(), "lower": hmp.autocast("cpu")}
    with blocks["lower"]:
        pass
    del blocks
    assert not recwarn


def test_a_block_whose_begin_was_interrupted_ends_with_its_owner() -> None:
    hmp.convert()
    block: Any = hmp.disable_casts()
    block.__enter__()  # Ctrl-C comes here, so nothing leaves it
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
    del block
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


# ---- slips in arguments ---------------------------------------------------------------------------------------------


@torch.library.custom_op("typed_first::own_swish", mutates_args=())
def own_swish(x: torch.Tensor) -> torch.Tensor:
    return x * x.sigmoid()


def misspelled(name: str, hint: str) -> tuple[Any, str]:
    return lambda: hmp.convert(**{name: 1}), f"`hmp.convert` has no argument `{name}`; {hint}"


def numpy_of_lowered() -> Any:
    hmp.convert()
    with hmp.disable_casts():
        return torch.ones(2, dtype=torch.bfloat16).numpy()


@each(
    "call, message",
    [
        (lambda: hmp.convert("b.txt", "f.txt"), "write `bf16_file_path='b.txt', fp32_file_path=...`"),
        (lambda: hmp.convert(Path("b.txt")), "write `bf16_file_path=PosixPath('b.txt'), fp32_file_path=...`"),
        (lambda: hmp.convert(torch.bfloat16), "write `dtype=torch.bfloat16`"),
        (lambda: hmp.convert("half"), "write `dtype='half'`"),
        (lambda: hmp.convert("recommended"), "write `preset='recommended'`"),
        (lambda: hmp.convert("02"), 'write "O2" with the letter O'),
        misspelled("presett", "did you mean `preset`?"),
        misspelled("verbose", "did you mean `isVerbose`?"),
        misspelled("bf16_file", "did you mean `bf16_file_path`?"),
        misspelled("optlevel", "did you mean `opt_level`?"),
        misspelled("zzz", "it has opt_level, bf16_file_path, "),
        (lambda: hmp.convert(preset="b.txt"), "write `bf16_file_path=` or `fp32_file_path=`"),
        (lambda: hmp.convert(rules={"own_swish": "fp32"}), "did you mean `typed_first::own_swish`?"),
        (lambda: hmp.autocast(), 'goes around a block: `with hmp.autocast("cpu"):`'),
        (lambda: hmp.autocast("gpu"), '"cuda" (GPUs of NVIDIA and AMD), "xpu" (of Intel), "hpu" (Gaudi); got \'gpu\''),
        (lambda: hmp.autocast(torch.bfloat16), '`with hmp.autocast("cpu", torch.bfloat16):`'),
        (lambda: hmp.autocast(own_swish), 'or a function: `@hmp.autocast("cpu")`'),
        (lambda: hmp.report("lines"), 'write `hmp.convert(report="lines")` before the calls'),
        (lambda: hmp.convert()(torch.ones(2)), "returns no model: it changes torch itself"),
        (lambda: numpy_of_lowered(), "NumPy has no bfloat16: write `.float()` before `.numpy()`"),
        (lambda: hmp.diagnose(torch.nn.Linear(2, 2)), "`hmp.diagnose(lambda: criterion(model(inputs), targets))`"),
    ],
)
def test_a_slip_says_what_to_write(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(message)):
        call()


def test_a_list_file_is_known_by_its_name_or_by_being_a_file(tmp_path: Path) -> None:
    hint = "for a list file write `bf16_file_path=`"
    with pytest.raises(ValueError, match=hint):
        hmp.convert(preset=write_list(tmp_path / "mine", ["linear"]))
    with pytest.raises(ValueError, match="did you mean 'torch-cpu'") as raised:
        hmp.convert(preset="cpu")
    assert hint not in str(raised.value)


def test_a_block_of_convert_says_what_makes_one_and_converts() -> None:
    block: Any = hmp.convert
    with pytest.raises(TypeError, match=re.escape('write `with hmp.autocast("cpu"):`')), block():
        pass
    assert hmp.is_converted()
    assert "hmp.restore()" in repr(block())


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


def test_an_operation_that_is_unknown_names_the_ways_for_functions_and_libraries(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("my_own_kernel\n")
    with pytest.raises(hmp.ListError, match=r"unknown operation `my_own_kernel`; .*hmp\.op_wrap.*--import"):
        hmp.convert(bf16_file_path=tmp_path / "list.txt")
