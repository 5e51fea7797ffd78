"""Runs work in threads and in separate processes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from helpers import forked

#: The working directory in which a script can import ``helpers``.
TESTS = Path(__file__).parents[1]


def in_threads(work: Callable[[int], object], count: int = 4) -> None:
    """Runs ``work`` with each number below ``count`` at the same time, each in its own thread."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_script(
    code: str, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, by default in a folder where it can import ``helpers``."""
    return python("-c", code, *arguments, cwd=cwd or TESTS, **environment)


def python(
    *words: str | Path, cwd: Path | None = None, with_dynamo: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` with these arguments, and with one thread for torch."""
    variables = forked.environment_with(**environment)
    return forked.run([*map(str, words)], cwd=cwd, environment=variables, with_dynamo=with_dynamo)


def printed_by_each(scripts: list[tuple[str, str]], *, with_dynamo: bool = True) -> list[str]:
    """Runs scripts in processes of their own, by default with Dynamo imported: optimizers import it. Before each script
    stand the names of the assumptions that are broken in it. Returns what each script prints, or its traceback."""
    printed = []
    for broken, script in scripts:
        done = python("-c", script, cwd=TESTS, with_dynamo=with_dynamo, HABANA_MP_BREAK=broken)
        printed.append(done.stdout + (done.stderr if done.returncode else ""))
    return printed


#: The arguments of ``python`` that start ``habana-mp run``.
RUN = ("-m", "habana_mp", "run")


def split_lines(stderr: str) -> tuple[str, list[str]]:
    """Returns the script's own output to standard error, and the lines of habana-mp, without the warning for processors
    on which bfloat16 is slow."""
    lines = stderr.splitlines(keepends=True)
    ours = [line for line in lines if line.startswith("habana-mp: ")]
    return "".join(line for line in lines if line not in ours), [
        line.rstrip("\n") for line in ours if "warning: on this processor" not in line
    ]
