"""No entry of the package leaves a reference, an object or a block of memory behind, or takes a reference too often.

`make trust` builds the core for a Python that counts references for debugging. That one also ends the process where a
reference is let go too often, and where a function of the core gives a result beside an exception.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent / "reference_counts.py"
ROOT = SCRIPT.parents[2]
#: `make trust` makes this folder: it holds the package with a core for that Python.
DEBUG_SITE = ROOT / "build" / "debug-python" / "site"
DEBUG_PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}-dbg"


def left_behind(python: str, rounds: int, *entries: str, **environment: str) -> dict[str, str]:
    """What each entry leaves, in words: of all entries, where none is named."""
    done = subprocess.run(
        [python, "-X", "faulthandler", str(SCRIPT), str(rounds), *entries],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_calls_reports_and_the_log_leave_nothing_behind() -> None:
    entries = ("builtins_and_methods", "calls_that_fail", "wrapped_functions", "regions", "watched_lines", "the_log")
    assert left_behind(sys.executable, 60, *entries) == dict.fromkeys(entries, "nothing")


def test_what_is_left_behind_is_seen(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        f"""
import ctypes, sys
sys.argv = ["planted", "50", "leaving"]
sys.path.insert(0, {str(SCRIPT.parent)!r})
import reference_counts
REGION_DEVICE = "an object that " + str(len(sys.argv))
@reference_counts.alone
def leaving():
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(REGION_DEVICE))
reference_counts.main()
"""
    )
    done = subprocess.run([sys.executable, str(planted)], capture_output=True, text=True, timeout=300, check=False)
    assert "leaving: +50 references of str 'an object that 3'" in done.stdout, done.stderr


@pytest.mark.trust
def test_no_entry_leaves_anything_behind() -> None:
    found = left_behind(sys.executable, 200)
    assert len(found) > 15
    assert found == dict.fromkeys(found, "nothing")


@pytest.mark.trust
def test_no_entry_leaves_anything_behind_in_a_python_that_counts_references() -> None:
    assert DEBUG_SITE.is_dir(), "`make trust` builds the core for a debug build of Python first"
    packages = Path(torch.__file__).parents[1]
    found = left_behind(DEBUG_PYTHON, 60, PYTHONPATH=f"{DEBUG_SITE}{os.pathsep}{packages}")
    assert len(found) > 15
    assert found == dict.fromkeys(found, "nothing")
