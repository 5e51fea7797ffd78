"""No entry of the package leaves a reference, an object or a block of memory behind, or takes a reference too often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "reference_counts.py"


def left_behind(rounds: int, *entries: str) -> dict[str, str]:
    """What each entry leaves, in words: of all entries, where none is named."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), str(rounds), *entries],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_calls_regions_and_the_log_leave_nothing_behind() -> None:
    entries = ("builtins_and_methods", "calls_that_fail", "wrapped_functions", "regions", "watched_lines", "the_log")
    assert left_behind(60, *entries) == dict.fromkeys(entries, "nothing")


@pytest.mark.slow
def test_no_entry_leaves_anything_behind() -> None:
    found = left_behind(80)
    assert len(found) > 15
    assert found == dict.fromkeys(found, "nothing")
