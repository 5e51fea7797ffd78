"""No entry of the package leaves a reference, an object or a block of memory behind, or takes a reference too often."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "reference_counts.py"


def test_no_entry_leaves_anything_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(SCRIPT), "20"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert len(found) > 15
    assert found == dict.fromkeys(found, "nothing")
