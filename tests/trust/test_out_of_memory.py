"""Out of memory: allocations of the core and of CPython fail one by one, in calls of each kind. A call works or raises
MemoryError; afterwards everything works, nothing is left, and after ``restore`` torch is as it was."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from trust.entries import ENTRIES

HERE = Path(__file__).parent

#: After this many crashes of the process the test stops.
_MOST_DEATHS = 12


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that lets allocations fail."""
    built = tmp_path_factory.mktemp("out_of_memory") / "failing_allocations.so"
    compiler = os.environ.get("CXX", "g++").split()
    include = sysconfig.get_path("include")
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([*compiler, *flags, HERE / "failing_allocations.cpp", "-o", built], check=True, timeout=300)
    return built


def failures(library: Path, folder: Path, how: str, *only: str) -> Iterator[str]:
    """Yields a line for each failure: the entry, the kind of allocation, its number, and what happened."""
    progress = folder / "progress"
    begin: list[str] = []
    for _ in range(_MOST_DEATHS):
        run = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", "trust.run_entries", library, progress, how, *only, *begin],
            cwd=HERE.parent,
            # CPython's debug allocator finds memory that is freed twice, or written beside its blocks.
            env={**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "PYTHONMALLOC": "debug"},
            capture_output=True,
            text=True,
            timeout=3600,
            check=False,
        )
        yield from (line for line in run.stdout.splitlines() if line.startswith("FAILURE"))
        if run.returncode in (0, 1) and run.stdout.rstrip().endswith("attempts"):
            return
        if not progress.exists():
            yield f"DEATH before the first attempt | {run.returncode}: {run.stderr[-2000:]}"
            return
        entry, kind, number = progress.read_text("utf-8").splitlines()
        yield f"DEATH {entry} | {kind} | {number} | {run.returncode}: {run.stderr[-2000:]}"
        begin = ["--begin", entry, kind, str(int(number) + 1)]
    yield f"stopped after {_MOST_DEATHS} deaths"


def test_a_call_works_or_raises_memory_error_when_an_allocation_fails(library: Path, tmp_path: Path) -> None:
    assert list(failures(library, tmp_path, "short")) == []


@pytest.mark.trust
@pytest.mark.timeout(3600)
# The last entries take the longest. They go first, so that no worker is left alone with them.
@pytest.mark.parametrize("entry", [entry.name for entry in reversed(ENTRIES)])
def test_a_call_works_or_raises_memory_error_whichever_allocation_fails(
    entry: str, library: Path, tmp_path: Path
) -> None:
    assert list(failures(library, tmp_path, "full", "--only", entry)) == []
