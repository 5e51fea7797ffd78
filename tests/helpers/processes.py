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
