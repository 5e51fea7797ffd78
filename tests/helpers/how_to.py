"""The scripts of docs/how-to: as they are in examples/how_to, and without the lines that a page adds to them."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from habana_mp import hmp

ROOT = Path(__file__).parents[2]
SCRIPTS, PAGES = ROOT / "examples" / "how_to", ROOT / "docs" / "how-to"

Run = Callable[..., dict[str, Any]]

#: A block of a page that shows what to add to a script: its first line names the script.
_BLOCK = re.compile(r"^```diff\n # (\w+)\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def changes(page: Path) -> list[tuple[str, str]]:
    """Returns the names of the scripts that a page changes, with the changes."""
    return _BLOCK.findall(page.read_text("utf-8"))


def shown_report(name: str) -> list[str]:
    """Returns the first lines of the report that the page of a script shows."""
    (page,) = (one for one in PAGES.glob("*.md") if name in dict(changes(one)))
    (text,) = re.findall(r"^```text\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    shown = [line for line in text.splitlines() if not line.startswith(("cached", "["))]
    return [line for line in shown if line.endswith(")") or " products ran in " in line]


def script(name: str) -> str:
    return (SCRIPTS / f"{name}.py").read_text("utf-8")


def original(name: str) -> str:
    """Returns a script as its users write it: without the lines that the page adds, and with those that it removes."""
    text, found = script(name), False
    for page in sorted(PAGES.glob("*.md")):
        for of, change in changes(page):
            if of == name:
                found = True
                for part in change.split(" ...\n"):
                    lines = part.splitlines(keepends=True)
                    after = "".join(line[1:] or "\n" for line in lines if line[:1] != "-")
                    before = "".join(line[1:] or "\n" for line in lines if line[:1] != "+")
                    assert text.count(after) == 1, f"{page.name} shows lines that are not in {name}.py:\n{after}"
                    text = text.replace(after, before)
    assert found, f"no page shows {name}.py"
    return text


def run(text: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Runs a script in a folder, and returns its variables. Casts are off afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    hmp.reset_report()
    AcceleratorState._reset_state(reset_partial_state=True)
    path = folder / f"script_{os.getpid()}.py"  # two ranks may share the folder
    path.write_text(text, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # a training may leave its own there
        patch.setattr(sys, "argv", [str(path), *arguments])
        try:
            return runpy.run_path(str(path), run_name="__main__")
        finally:
            hmp.restore()


def weights_in(folder: Path, pattern: str) -> dict[str, torch.Tensor]:
    """Returns the weights in the one file that matches the pattern."""
    (path,) = folder.glob(pattern)
    return load_file(path)


def copied(folder: Path, to: Path, *without: str) -> Path:
    """Copies the folder of a run, without what came after the checkpoint from which the next one resumes."""
    shutil.copytree(folder, to)
    for pattern in without:
        for one in list(to.glob(pattern)):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    return to
