"""convert and restore in odd moments: threads, warnings, modules that are imported later."""

from __future__ import annotations

import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N
from helpers.processes import run_script
from helpers.state_of_torch import assert_torch_is_restored


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
        for _ in range(15):
            converted(bf16=["mm", "exp", "normalize", "cat", "abs"])
            hmp.convert("O2")
            hmp.restore()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


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
