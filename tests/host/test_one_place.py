"""What stands in a few files of ``src/`` only."""

from __future__ import annotations

import re

import pytest

from helpers.sources import lines_with

#: By what is looked for, a pattern and the files in which it may occur.
PLACES = {
    # References are counted by the types there.
    "references that are counted by hand": (
        r"\b_?Py_(X?DECREF|X?INCREF|X?NewRef|CLEAR|X?SETREF)\b|\b(inc|dec)_ref\(",
        {"owned.hpp"},
    ),
    # An exception that arrives in code of others that the core calls is dropped there, except those that do not derive
    # from Exception, such as that of Ctrl-C.
    "exceptions that are dropped": (
        r"\bPyErr_(Clear|WriteUnraisable|FormatUnraisable|Print|SetInterrupt)\b",
        {"errors.hpp", "errors.cpp"},
    ),
    # A static with a destructor takes a lock of the C library at its first use. In a forked child this waits for ever
    # if another thread held the lock during the fork. These files use theirs while the module is loaded.
    "statics of functions that have a destructor": (
        r"^\s+static (?:const |constinit )*"
        r"(?:NeverDestroyed|Owned|std::(?:vector|deque|map|set|unordered_\w+|string|shared_ptr|unique_ptr|function))\b"
        r"[^()]*(?:\(\w*\))?;",
        {"host/ledger.cpp", "module_parts.hpp"},
    ),
}


@pytest.mark.parametrize(("pattern", "files"), PLACES.values(), ids=PLACES)
def test_they_are_in_these_files_only(pattern: str, files: set[str]) -> None:
    assert lines_with(re.compile(pattern)).keys() == files
