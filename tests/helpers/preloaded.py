"""Compiles C libraries for tests, and runs programs that load them first."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

TESTS = Path(__file__).parents[1]


def compiled(source: Path, folder: Path) -> Path:
    """Compiles a file in C or C++ and returns the shared library."""
    library = folder / f"{source.stem}.so"
    language = ["g++", "-std=c++20"] if source.suffix == ".cpp" else ["gcc"]
    include = sysconfig.get_paths()["include"]
    subprocess.run(
        [*language, "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)],
        check=True,
    )
    return library


def run_guarded(
    guard_pages: Path | None, script: Path, *arguments: str, seconds: float, threads: int = 1
) -> subprocess.CompletedProcess[str]:
    """Runs a script. Each access to freed memory of a tensor, or to memory next to a tensor, ends the process."""
    guarded = {"LD_PRELOAD": str(guard_pages), "GUARD_PAGES_FREED": "1"} if guard_pages else {}
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "ignore", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": str(threads), **guarded},
    )
