"""Work in threads and in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

#: Where a script finds ``helpers``.
TESTS = Path(__file__).parents[1]


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """``work`` with each number below ``count``, in a thread each, at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_script(
    code: str, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, where it finds ``helpers`` if nothing else is said."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd or TESTS,
        env={**os.environ, **environment},
    )


def python(*words: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """``python`` with these words, one thread for torch, and no colours."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


#: The words after ``python`` that start ``habana-mp run``.
RUN = ("-m", "habana_mp", "run")


def split_lines(stderr: str) -> tuple[str, list[str]]:
    """What a script itself has written to its standard error, and our own lines, without the warning of processors on
    which bfloat16 is slow."""
    lines = stderr.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith("habana-mp: ")]
    return "".join(line for line in lines if line not in ours), [
        line.rstrip("\n") for line in ours if "warning: on this processor" not in line
    ]
