"""Runs scripts with the stand-in for Gaudi in separate processes, since it is on for a whole process."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

from helpers import forked

ON = "import habana_mp.gaudi\nimport torch\n"
_NOT_PASSED_ON = ("HABANA_MP_GAUDI", "PT_HPU_LOG_MOD_MASK", "PT_HPU_LOG_TYPE_MASK", "RANK", "WORLD_SIZE", "LOCAL_RANK")


def run_gaudi(
    code: str, *, on: str = ON, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the code. Its first line switches the stand-in on, unless ``on`` is given."""
    usual = {name: value for name, value in forked.environment_with().items() if name not in _NOT_PASSED_ON}
    words, folder = ["-c", on + textwrap.dedent(code)], cwd or Path(__file__).parents[1]
    return forked.run(words, cwd=folder, environment={**usual, **environment}, timeout=300)


def gaudi(code: str, *, on: str = ON, cwd: Path | None = None, **environment: str) -> list[str]:
    """Runs the code and returns the lines that it prints; fails if the exit status is not 0."""
    done = run_gaudi(code, on=on, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
