"""convert and restore in odd moments: threads, interrupts, warnings, modules that are imported later."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import types
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from habana_mp.common.paths import PACKAGE
from habana_mp.patches.tools.code_exchange import Replacement
from helpers.interrupts import interrupted
from helpers.lists import Converter
from helpers.processes import run_script
from helpers.state_of_torch import assert_torch_is_restored

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous()


def test_calls_in_other_threads_survive_converting_and_restoring(converted: Converter) -> None:
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            for result in (torch.mm(M, N), M.exp(), F.normalize(M), torch.cat([M, N]), M.abs()):
                if result.dtype not in (FP32, BF16):
                    wrong.append(result.dtype)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            converted(bf16=["mm", "exp", "normalize", "cat", "abs"])
            hmp.convert("O2")
            hmp.restore()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_restore_succeeds_where_somebody_has_emptied_the_hooks_of_steps(converted: Converter) -> None:
    converted()
    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
    before = dict(hooks)
    hooks.clear()
    hmp.restore()
    assert not hmp.is_converted()
    assert _core.installed_count() == 0
    hooks.update({key: hook for key, hook in before.items() if not hook.__module__.startswith("habana_mp")})


def test_a_list_that_holds_itself_is_an_error_of_torchs(converted: Converter) -> None:
    converted()
    sgd: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0}
    sgd |= {"nesterov": False, "maximize": False, "is_first_step": True}
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="expected Tensor"):
        torch._fused_sgd_(endless, endless, [], **sgd)


DEBUGGED = """
import torch, habana_mp as hmp
hmp.convert()
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        scale = 1.0
        breakpoint()
        self.scale = scale
print("scale", Module().scale)
"""


def test_what_a_debugger_changes_in_a_constructor_stays_changed(tmp_path: Path) -> None:
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED)
    commands = "scale = 2.0\np torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype\nc\n"
    done = subprocess.run(
        [sys.executable, script], input=commands, capture_output=True, text=True, timeout=120, check=False
    )
    assert "torch.float32" in done.stdout, done.stderr  # a module is being constructed
    assert "scale 2.0" in done.stdout


def test_nothing_of_the_core_is_installed_without_convert() -> None:
    assert _core.installed_count() == 0
    assert Path(_core.__file__ or "").suffix in (".so", ".pyd")


def test_an_interrupt_between_two_exchanged_functions_leaves_none_exchanged() -> None:
    functions = (F.normalize, F.softmin, torch.Tensor.__rdiv__)
    codes = [function.__code__ for function in functions]

    def is_place(frame: types.FrameType, event: str) -> bool:
        return event == "call" and frame.f_code is Replacement.install.__code__

    with interrupted(is_place, 2), pytest.raises(KeyboardInterrupt):
        hmp.convert(preset="torch-cuda")
    assert_torch_is_restored()
    assert [function.__code__ for function in functions] == codes


@pytest.mark.parametrize(
    ("enter", "error"),
    [(hmp.convert, KeyboardInterrupt), (lambda: hmp.autocast("cpu", bf16_file_path=None), TimeoutError)],
    ids=["convert", "region"],
)
def test_an_interrupt_while_torch_is_changed_leaves_it_as_it_was(
    enter: Callable[[], Any], error: type[BaseException]
) -> None:
    """Wherever a handler of a signal may raise in between: where a function of C has returned, and where one of Python
    begins."""
    importlib.import_module("torch._dynamo.variables.tensor")  # which brings all that compiled code needs
    compiled_code = importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")
    changed = (torch.Tensor.register_hook, compiled_code.call_func_at_runtime_with_args)
    codes = [function.__code__ for function in changed]
    config = torch._functorch.config
    caches = getattr(config, "enable_autograd_cache", None)

    ours = str(PACKAGE)

    def is_place(frame: types.FrameType, event: str) -> bool:
        return event in ("c_return", "call") and frame.f_code.co_filename.startswith(ours)

    def interrupted_after(count: int) -> bool:
        try:
            with interrupted(is_place, count, error):
                enter()
        except error:
            return True
        return False

    enter()
    hmp.restore()
    count = 1
    while interrupted_after(count):
        hmp.restore()
        assert torch.mm(M, M).dtype is FP32
        assert [function.__code__ for function in changed] == codes
        assert getattr(config, "enable_autograd_cache", None) is caches
        with hmp.autocast("cpu"):
            assert torch.mm(M, M).dtype is BF16
        hmp.convert()
        assert torch.mm(M, M).dtype is BF16
        hmp.restore()
        # thousands of points: nearly all of them lie in loops
        count += 1 + count // 25


# ---- a convert that fails -------------------------------------------------------------------------------------------


def test_a_warning_that_is_an_error_leaves_what_was_in_force(converted: Converter) -> None:
    converted(bf16=["mm"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cpu"):
            warnings.simplefilter("error")
            with pytest.raises(hmp.HmpWarning, match=r"torch\.autocast is enabled"):
                hmp.convert("O2")
    assert hmp.is_converted()
    assert torch.mm(M, N).dtype is BF16
    assert torch.exp(M).dtype is FP32


def test_a_convert_that_fails_leaves_the_log_of_the_one_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not this time")

    hmp.convert(log=tmp_path / "before.log")
    torch.mm(M, N)
    with monkeypatch.context() as patch:
        patch.setattr(_core, "install", fail)
        with pytest.raises(RuntimeError, match="not this time"):
            hmp.convert("O2", log=tmp_path / "after.log")
    torch.mm(M, N)
    hmp.restore()
    with monkeypatch.context() as patch:
        patch.setattr(_core, "install", fail)
        with pytest.raises(RuntimeError, match="not this time"):
            hmp.convert(log=tmp_path / "after.log")
    assert _core.log_destination() is None
    assert (tmp_path / "before.log").read_text().count("mm") == 2
    assert (tmp_path / "after.log").read_text() == ""


@pytest.mark.parametrize("options", [{"log": "of_it.log"}, {"report": "lines"}, {"guard": 1.0}], ids=str)
@pytest.mark.parametrize("is_second", [False, True])
def test_a_convert_whose_last_step_fails_leaves_nothing_installed(
    options: dict[str, Any], is_second: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not this time")

    if "log" in options:
        options = {"log": tmp_path / "of_it.log"}
    if is_second:
        hmp.convert("O2", report="modules", log=tmp_path / "before.log")
    with monkeypatch.context() as patch:
        patch.setattr(hmp.guarding, "of_convert", fail)
        with pytest.raises(RuntimeError, match="not this time"):
            hmp.convert(**options)
    assert not hmp.is_converted()
    assert _core.log_destination() is None
    assert hmp.watching.detail == "operations"
    assert_torch_is_restored()
    hmp.convert(**options)
    assert torch.mm(M, N).dtype is BF16


# ---- modules from an archive ----------------------------------------------------------------------------------------


def test_a_module_from_an_archive_is_tapped_as_one_from_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        archive.writestr("transformers/__init__.py", "")
        archive.writestr("transformers/utils/__init__.py", "")
        archive.writestr("transformers/utils/generic.py", "def maybe_autocast(device_type, dtype=None): pass")
        archive.writestr(
            "transformers/modeling_utils.py",
            "import torch, transformers.utils.generic\n"
            "class PreTrainedModel:\n"
            "    def init_weights(self):\n"
            "        return torch.mm(torch.ones(8, 8), torch.ones(8, 8)).dtype\n",
        )
    result = run_script(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from habana_mp import hmp; hmp.convert()\n"
        "import transformers.modeling_utils as module\n"
        "print(module.PreTrainedModel().init_weights(), 'exec_module' in vars(module.__spec__.loader))\n",
        str(tmp_path / "library.zip"),
    )
    assert result.stdout.strip() == "torch.float32 False", result.stderr
