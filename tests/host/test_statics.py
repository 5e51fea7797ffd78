"""A static of a function that has a destructor takes a lock of the C library at its first use. In a forked child this
waits for ever if another thread held the lock during the fork. So such objects are made when the module is loaded."""

from __future__ import annotations

import re

from helpers.sources import lines_with

#: These are used while the module is loaded: each file registers something there.
MADE_AT_LOAD = {"host/ledger.cpp", "host/symbols.cpp", "module_parts.hpp"}

_STATIC_WITH_DESTRUCTOR = re.compile(
    r"^\s+static (?:const |constinit )*"
    r"(?:NeverDestroyed|Owned|std::(?:vector|deque|map|set|unordered_\w+|string|shared_ptr|unique_ptr|function))\b"
    r"[^()]*(?:\(\w*\))?;"
)


def test_statics_are_found() -> None:
    assert lines_with(_STATIC_WITH_DESTRUCTOR).keys() >= MADE_AT_LOAD


def test_no_function_makes_an_object_with_a_destructor_at_its_first_use() -> None:
    assert {
        name: lines for name, lines in lines_with(_STATIC_WITH_DESTRUCTOR).items() if name not in MADE_AT_LOAD
    } == {}
