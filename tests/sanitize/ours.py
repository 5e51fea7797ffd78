"""Which reports of a sanitizer or of valgrind are about our code: prints them, and exits with 1 when there are any.

    python tests/sanitize/ours.py --sources src FOLDER

A report is ours when, in one of its stacks, the first frame that is not the tool's own or the C library's is in a file
of the core. That torch, called by us, does something does not count; that we hand memory to `memcpy` does. A report of
AddressSanitizer or UndefinedBehaviorSanitizer is always ours: nothing else is built with them. Of leaks, those count
that our code allocated, itself or through Python.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

#: Frames that say nothing about whose doing it is: the tool's, the C library's, the C++ library's, pybind11's, and
#: those without a source, but for torch's: what it does is its own doing.
NOBODYS = re.compile(
    r"interceptor|lib(?:a|t|ub)san|vgpreload|vg_replace|libsanitizer|libc\.so|libc-|libstdc\+\+|/include/c\+\+/"
    r"|bits/|ext/|operator new|operator delete|<null>(?! \((?:libtorch|libc10))|__tsan|__interceptor|spdlog|fmt/"
    r"|pybind11"
)
#: For leaks also Python's, which allocates what we then lose.
PYTHONS = re.compile(NOBODYS.pattern + r"|(?:Objects|Python|Modules|Parser|Include)/|libpython|bin/python")
FRAME = re.compile(r"^(?:==\d+==)?\s+(?:#\d+|at 0x|by 0x)")
BEGIN = re.compile(
    r"^(?:==\d+==(?:ERROR|WARNING|\s(?:Invalid|Use of|Conditional|Syscall param|Source and|Mismatched|Jump|Process))"
    r"|WARNING: ThreadS|Direct leak|Indirect leak|\S+:\d+:\d+: runtime error)"
)


def blocks(text: str) -> Iterator[list[str]]:
    """The reports in a file, as lines."""
    current: list[str] = []
    for line in text.splitlines():
        if BEGIN.match(line):
            yield current
            current = []
        current.append(line)
    yield current


def stacks(block: list[str]) -> Iterator[list[str]]:
    current: list[str] = []
    for line in block:
        if FRAME.match(line):
            current.append(line)
        elif current:
            yield current
            current = []
    if current:
        yield current


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    files = {path.name for path in given.sources.rglob("*") if path.suffix in (".cpp", ".hpp")}
    ours = re.compile(r"habana_mp::|\b_core\.cpython|(?:[ (/])(?:" + "|".join(map(re.escape, sorted(files))) + r"):\d+")
    found, others = [], 0
    for path in sorted(given.folder.iterdir()):
        if not re.match(r"(asan|ubsan|leaks|tsan)\.\d|valgrind\.", path.name):
            continue
        always = path.name.startswith(("asan", "ubsan"))
        for block in blocks(path.read_text(errors="replace")):
            if not block or not BEGIN.match(block[0]):
                continue
            nobodys = PYTHONS if path.name.startswith("leaks") else NOBODYS
            tops = [next((frame for frame in stack if not nobodys.search(frame)), "") for stack in stacks(block)]
            if path.name.startswith("leaks"):
                tops = tops[:1]
            if always or any(ours.search(top) for top in tops):
                found.append((path, block))
            else:
                others += 1
    for path, block in found:
        print(f"---- {path.name}")
        print("\n".join(block[:60]))
    print(f"{len(found)} reports about our code, {others} about others' that the suppressions do not name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
