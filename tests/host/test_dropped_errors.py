"""An exception that arrives in code of others that the core calls is dropped in one place, which keeps Ctrl-C."""

from __future__ import annotations

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"

#: These files drop and print exceptions. Their functions keep those that do not derive from Exception.
HELPERS = {"errors.hpp", "errors.cpp"}

_DROPPING = re.compile(r"\bPyErr_(Clear|WriteUnraisable|FormatUnraisable|Print|SetInterrupt)\b")


def files_that_drop() -> dict[str, list[int]]:
    """The files that drop or print exceptions by themselves, with the lines."""
    found = {}
    for path in sorted(SOURCES.rglob("*.[ch]pp")):
        lines = path.read_text("utf-8").splitlines()
        dropping = [number for number, line in enumerate(lines, 1) if _DROPPING.search(line)]
        if dropping:
            found[path.relative_to(SOURCES).as_posix()] = dropping
    return found


def test_the_helpers_drop_exceptions() -> None:
    assert files_that_drop().keys() >= HELPERS


def test_no_other_file_drops_exceptions_by_itself() -> None:
    assert {name: lines for name, lines in files_that_drop().items() if name not in HELPERS} == {}
