"""References of Python objects are counted by the types in ``src/owned.hpp``, and by no other code of the core."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

#: Where they are counted by hand: the types themselves.
TYPES = {"owned.hpp"}

_COUNTING = re.compile(r"\b_?Py_(X?DECREF|X?INCREF|X?NewRef|CLEAR|X?SETREF)\b|\b(inc|dec)_ref\(")


def files_that_count() -> dict[str, list[int]]:
    """The files that count, with the lines."""
    found = {}
    for path in sorted(SOURCES.rglob("*.[ch]pp")):
        lines = path.read_text("utf-8").splitlines()
        counting = [number for number, line in enumerate(lines, 1) if _COUNTING.search(line)]
        if counting:
            found[path.relative_to(SOURCES).as_posix()] = counting
    return found


@pytest.mark.parametrize("name", sorted(TYPES))
def test_the_types_count_references(name: str) -> None:
    assert name in files_that_count()


def test_no_other_file_counts_references_by_hand() -> None:
    assert {name: lines for name, lines in files_that_count().items() if name not in TYPES} == {}
