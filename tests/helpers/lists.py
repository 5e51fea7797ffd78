"""Writes list files, and collects the warnings of convert."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

from habana_mp import HmpWarning, hmp

#: The type of the fixture ``converted``.
Converter = Callable[..., None]


def write_list(path: Path, names: Iterable[str]) -> str:
    """Writes a list file with these names and returns its path. A file without names gets a comment instead."""
    path.write_text("".join(f"{name}\n" for name in names) or "# none\n", encoding="utf-8")
    return str(path)


def warned_by_convert(*args: object, **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hmp.convert(*args, **options)  # type: ignore[arg-type]  # of any type
    return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]
