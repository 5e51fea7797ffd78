"""The sweep over every operator of torch runs in a process of its own, since some operators change state of the process
or write files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.timeout(1200)
def test_no_operator_changes_a_weight_without_the_next_call_seeing_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--timeout", "1100", str(HERE / "every_operator.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=1150,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
