"""Shows that the installed package works: runs the README's first snippet, the log and the command line.

``python tests/wheels/smoke.py`` needs the package and torch, nothing else, and imports nothing of this checkout.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import torch

import habana_mp
from habana_mp import _core, hmp

ROOT = Path(__file__).parents[2]


def run_the_readme() -> str:
    """Runs the first snippet of the README; returns the first line of its report.

    Other products may be there besides those of the model: torch 2.8 imports Dynamo for an optimizer, and while it is
    imported it tries each operator.
    """
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert snippet is not None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(snippet[1], "README.md", "exec"), {"__name__": "__main__"})
    hmp.restore()
    report = printed.getvalue()
    assert re.search(r"^linear +bf16 +listed, \S+ +6 ", report, re.MULTILINE), report
    return report.partition("\n")[0]


def log_one_call(folder: str) -> dict[str, object]:
    """Returns the line that one lowered call writes into a log file."""
    path = Path(folder, "casts.jsonl")
    hmp.convert(preset="recommended", within="everywhere", log=str(path))
    torch.mm(torch.ones(4, 4), torch.ones(4, 4))
    hmp.restore()
    return dict(json.loads(path.read_text("utf-8").splitlines()[0]))


def main() -> None:
    where = Path(habana_mp.__file__).parent
    assert ROOT not in where.parents or where.parent != ROOT, f"{where} is the checkout, not an installed package"
    headline = run_the_readme()
    with tempfile.TemporaryDirectory() as folder:
        line = log_one_call(folder)
    assert "mm" in str(line), line
    command = Path(sysconfig.get_path("scripts"), "habana-mp")
    presets = subprocess.run([command, "lists"], check=True, capture_output=True, text=True).stdout
    assert "recommended" in presets, presets
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"habana_mp {habana_mp.__version__}, Python {python}, torch {torch.__version__}: {headline}")
    print(f"log: {line}")
    print(f"kernels: {', '.join(_core.kernels_paths())}")


if __name__ == "__main__":
    main()
