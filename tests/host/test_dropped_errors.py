"""An exception that arrives in code of others that the core calls is dropped in one place, which keeps Ctrl-C."""

from __future__ import annotations

import re

from helpers.sources import lines_with

#: These files drop and print exceptions. Their functions keep those that do not derive from Exception.
HELPERS = {"errors.hpp", "errors.cpp"}

_DROPPING = re.compile(r"\bPyErr_(Clear|WriteUnraisable|FormatUnraisable|Print|SetInterrupt)\b")


def test_the_helpers_drop_exceptions() -> None:
    assert lines_with(_DROPPING).keys() >= HELPERS


def test_no_other_file_drops_exceptions_by_itself() -> None:
    assert {name: lines for name, lines in lines_with(_DROPPING).items() if name not in HELPERS} == {}
