"""Finds the caller: the script's own code, torch, or an installed library."""

from __future__ import annotations

import inspect
import os
import sys
import types
from functools import cache
from pathlib import Path

import torch

from habana_mp.common.paths import OF_PYTHON, PACKAGE, is_installed

_OURS = str(PACKAGE) + os.sep
_TORCH = str(Path(torch.__file__).parent) + os.sep

#: Installed code that is for HPUs, by the ends of folders and files. It finds the stand-in as the script does.
_FOR_HPUS = (
    *("/lightning_habana/", "/optimum/habana/", "/accelerators/hpu.py", "/plugins/precision/hpu.py"),
    *("/plugins/io/hpu_plugin.py", "/strategies/hpu_parallel.py", "/strategies/single_hpu.py"),
    *("/deepspeed/accelerator/", "/op_builder/hpu/"),
)
#: Installed code that looks for modules for its caller.
_ON_BEHALF = "/lightning_utilities/core/imports.py"

SCRIPT, TORCH, LIBRARY, PYTHON, OURS = "script", "torch", "library", "python", "ours"


@cache
def _kind_of_file(path: str) -> str:
    if path.startswith("<"):
        return PYTHON  # frozen modules, and generated code
    path = os.path.abspath(path)
    if path.endswith("/typing_extensions.py"):
        return PYTHON  # its wrapper of what is deprecated
    if path.startswith(_OURS):
        return OURS
    if path.startswith(_TORCH):
        return TORCH
    if is_installed(path):
        return SCRIPT if any(part in path for part in _FOR_HPUS) else LIBRARY
    return PYTHON if path.startswith(OF_PYTHON) else SCRIPT


def kind_of(frame: types.FrameType) -> str:
    """Returns the kind of the code that runs in this frame."""
    path = frame.f_code.co_filename
    # Code from `-c`, from a prompt, or from `exec` belongs to its module.
    if path.startswith("<") and not path.startswith("<frozen"):
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root in ("__main__", "__mp_main__"):
            return SCRIPT
        return _kind_of_file(getattr(sys.modules.get(root), "__file__", None) or path)
    return _kind_of_file(path)


def is_script(frame: types.FrameType | None) -> bool:
    """True if the script's own code runs in this frame."""
    return frame is not None and kind_of(frame) == SCRIPT


def _outwards(frame: types.FrameType | None) -> types.FrameType | None:
    """Returns this frame or the first around it that belongs to the script or to a library."""
    while frame is not None and kind_of(frame) not in (SCRIPT, LIBRARY):
        frame = frame.f_back
    return frame


def _around_file(frame: types.FrameType) -> types.FrameType | None:
    """Returns the frame of the script or of a library that called the file of this frame."""
    outer: types.FrameType | None = frame
    while outer is not None and outer.f_code.co_filename == frame.f_code.co_filename:
        outer = _outwards(outer.f_back)
    return outer


def a_library_asks() -> bool:
    """True if an installed library called that is not for HPUs, or a script through lightning_utilities. Frames of
    torch and Python in between are ignored."""
    frame = _outwards(inspect.currentframe())
    if frame is not None and frame.f_code.co_filename.endswith(_ON_BEHALF):
        return not _is_for_hpus(_around_file(frame))
    return frame is not None and kind_of(frame) == LIBRARY


def _is_for_hpus(frame: types.FrameType | None) -> bool:
    """True for installed code that is for HPUs."""
    path = "" if frame is None else os.path.abspath(frame.f_code.co_filename)
    return is_installed(path) and any(part in path for part in _FOR_HPUS)


def code_for_hpus_asks() -> bool:
    """True if an installed library that is for HPUs called."""
    return _is_for_hpus(_outwards(inspect.currentframe()))


def line_of_caller() -> tuple[str, int]:
    """Returns file and line of the caller outside of torch, Python and this package."""
    frame = _outwards(inspect.currentframe())
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)
