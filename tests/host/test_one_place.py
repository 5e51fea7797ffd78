"""What stands in a few files of ``src/`` only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"


def lines_with(pattern: re.Pattern[str]) -> dict[str, list[int]]:
    """Returns the files of ``src/`` in which the pattern occurs, with the line numbers."""
    found = {}
    for path in sorted(SOURCES.rglob("*.[ch]pp")):
        lines = path.read_text("utf-8").splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if pattern.search(line)]
        if numbers:
            found[path.relative_to(SOURCES).as_posix()] = numbers
    return found


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
    # if another thread held the lock during the fork. This file uses its own while the module is loaded.
    "statics of functions that have a destructor": (
        r"^\s+static (?:const |constinit )*"
        r"(?:NeverDestroyed|Owned|std::(?:vector|deque|map|set|unordered_\w+|string|shared_ptr|unique_ptr|function))\b"
        r"[^()]*(?:\(\w*\))?;",
        {"host/ledger.cpp"},
    ),
}


@pytest.mark.parametrize(("pattern", "files"), PLACES.values(), ids=PLACES)
def test_they_are_in_these_files_only(pattern: str, files: set[str]) -> None:
    assert lines_with(re.compile(pattern)).keys() == files


#: What shows in C++ that a file knows something private: mangled names, what CPython's objects consist of, private
#: names of torch in strings, libraries that are searched, the system's files.
PRIVATE = re.compile(
    r'"_Z|host::api\b|\b_ZN?K?[\dS]|"/proc|"torch\._|"_(parse_|worker|cdata|current_level)'
    r"|\b(dlsym|dlopen|m_ml|d_method|d_getset|d_wrapped|d_base|tp_as_mapping|tp_vectorcall_offset|tp_dict|tp_mro)\b"
    r"|\b(func_dict|func_version|co_filename|tb_lasti|SYS_write)\b|->vectorcall\b"
)


def test_private_names_in_the_core_stand_in_the_host_only() -> None:
    found = {path: lines for path, lines in lines_with(PRIVATE).items() if not path.startswith("host/")}
    assert not found, "move what needs these into src/host, with an entry in the ledger"
