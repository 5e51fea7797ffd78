"""The processes that the commands start, and those that a script starts under ``habana-mp run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from habana_mp import hmp
from habana_mp.patches.tools import spawned_processes, started_processes
from habana_mp.reporting import counting
from habana_mp.reporting.ranks import Children
from habana_mp.run.options import Conversion
from habana_mp.run.script import Script

#: The children of this process: multiprocessing forgets callbacks whose owner is gone.
_followed: list[Children] = []


class ScriptFailedError(ValueError):
    """The script ended with an error, or without what it had to give. Shows the last lines that it printed."""

    def __init__(self, what: str, printed: str) -> None:
        last = "\n".join(printed.splitlines()[-30:])
        super().__init__(f"{what}; the last lines that it printed:\n{last}")


def in_child(module: str, *words: str) -> list[str]:
    """Returns the words after ``python`` of a process in which a module's function ``child`` gets these words."""
    return ["-c", f"import sys; from {module} import child; child(*sys.argv[1:])", *words]


def run_python(words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Runs ``python`` with these words. Returns its exit status, and what it printed on both streams."""
    done = subprocess.run(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={"PYTHONHASHSEED": "0", **os.environ, **variables},
        check=False,
    )
    return done.returncode, done.stdout


def follow(conversion: Conversion, folder: str | None = None) -> tuple[Children, list[subprocess.Popen[Any]]]:
    """From now on, processes of multiprocessing and scripts that `subprocess` starts are converted, and leave their
    reports in a folder, which is given in such a process. Returns the children, and a list of the ranks among the
    scripts."""
    children, process = Children(folder), os.getpid()
    _followed.append(children)

    def begin(_: Children) -> None:
        if os.getpid() != process:  # a fork, which has inherited the counts of its parent
            hmp.reset_report()

    spawned_processes.send_to_children(
        "habana_mp.run",
        lambda: (_convert, conversion, children.folder) if conversion.by_script or hmp.is_converted() else None,
    )
    spawned_processes.in_children(
        children, begin, lambda: children.leave(counting.current()), is_child=folder is not None
    )
    how = json.dumps({"conversion": asdict(conversion), "folder": children.folder})
    return children, started_processes.run_by(in_child(__name__, how))


def child(how: str, *words: str) -> None:
    """Runs a script that a script has started."""
    given = json.loads(how)
    _convert(Conversion(**given["conversion"]), given["folder"])
    Script.of(words).run()


def _convert(conversion: Conversion, folder: str) -> None:
    # The log is the file of the process that began: to open it again would empty it.
    conversion = replace(conversion, options={**conversion.options, "log": None})
    conversion.convert()
    follow(conversion, folder)
