"""The core's sources as text, for tests that allow something in a few files only."""

from __future__ import annotations

import re
from pathlib import Path

_SOURCES = Path(__file__).parents[2] / "src"


def lines_with(pattern: re.Pattern[str]) -> dict[str, list[int]]:
    """Returns the files of ``src/`` in which the pattern occurs, with the line numbers."""
    found = {}
    for path in sorted(_SOURCES.rglob("*.[ch]pp")):
        lines = path.read_text("utf-8").splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if pattern.search(line)]
        if numbers:
            found[path.relative_to(_SOURCES).as_posix()] = numbers
    return found
