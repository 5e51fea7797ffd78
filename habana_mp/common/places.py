"""The lines of the user's code: the criterion that warnings, the report, the guard and the diagnosis share."""

from __future__ import annotations

import importlib.util
import inspect
import sysconfig
import types
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

from habana_mp.common.paths import PACKAGE


@cache
def passed_over() -> tuple[str, ...]:
    """Returns the prefixes of files whose lines are skipped: those of torch, of this package and of Python."""
    paths = sysconfig.get_paths()
    stdlib = [str(one) for one in Path(paths["stdlib"]).glob("*.py")]
    packages = [f"{paths['stdlib']}/{name}/" for name in ("asyncio", "concurrent", "multiprocessing", "unittest")]
    generated = ("<frozen ", "<eval_with_key>")
    return (f"{folder_of_torch()}/", f"{PACKAGE}/", *generated, *packages, *stdlib)


def folder_of_torch() -> Path:
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else Path("torch")


@lru_cache(maxsize=4096)
def is_passed_over(file: str) -> bool:
    """True for a file whose lines are skipped."""
    return file.startswith(passed_over())


def frames() -> Iterator[types.FrameType]:
    """Yields the frames of the running code, the innermost first."""
    frame: types.FrameType | None = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


def line_of_user() -> tuple[str, int]:
    """Returns the file and line of the innermost code of the user, at any depth of calls inside torch or habana_mp."""
    for frame in frames():
        if not is_passed_over(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
    return "<unknown>", 0
