"""What the parts of core_exercise.py share."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from habana_mp import hmp

SMALL = "--small" in sys.argv


@contextlib.contextmanager
def raises(*kinds: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kinds:
        return
    raise AssertionError(f"nothing was raised, expected {kinds}")


@contextlib.contextmanager
def lists(lower: str, fp32: str, **options: Any) -> Iterator[None]:
    """Converted with two lists of names."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("lower", lower), ("fp32", fp32)):
            Path(folder, name).write_text("\n".join(content.split()))
        hmp.convert(bf16_file_path=Path(folder, "lower"), fp32_file_path=Path(folder, "fp32"), **options)
    try:
        yield
    finally:
        hmp.restore()


@contextlib.contextmanager
def converted(*args: Any, **options: Any) -> Iterator[None]:
    hmp.convert(*args, **options)
    try:
        yield
    finally:
        hmp.restore()
