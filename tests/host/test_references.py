"""References of Python objects are counted by the types in ``src/owned.hpp``, and by no other code of the core."""

from __future__ import annotations

import re

import pytest

from helpers.sources import lines_with

#: Where they are counted by hand: the types themselves.
TYPES = {"owned.hpp"}

_COUNTING = re.compile(r"\b_?Py_(X?DECREF|X?INCREF|X?NewRef|CLEAR|X?SETREF)\b|\b(inc|dec)_ref\(")


@pytest.mark.parametrize("name", sorted(TYPES))
def test_the_types_count_references(name: str) -> None:
    assert name in lines_with(_COUNTING)


def test_no_other_file_counts_references_by_hand() -> None:
    assert {name: lines for name, lines in lines_with(_COUNTING).items() if name not in TYPES} == {}
