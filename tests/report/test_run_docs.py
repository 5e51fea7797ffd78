"""Pages with commands are true: the commands print what the page says, in order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.processes import python

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Stands in what a command prints for what differs from place to place.
ANYTHING = re.escape("[...]")


#: The arguments of ``python`` for each of these commands.
COMMANDS = {"python": [], "habana-mp": ["-m", "habana_mp"]}
STATUS = '; echo "status $?"'


def shell(command: str, folder: Path) -> str:
    """Returns what a command prints, on both streams."""
    first, *words = shlex.split(command.removesuffix(STATUS))
    if first in COMMANDS and not {"|", "2>", "2>&1"} & {*words}:
        done = python(*COMMANDS[first], *words, cwd=folder)
        printed = done.stdout + done.stderr + f"status {done.returncode}\n" * command.endswith(STATUS)
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
        streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        printed = subprocess.run(
            command, shell=True, cwd=folder, text=True, env=environment, check=False, **streams
        ).stdout
    # Whether this processor is told to be slower depends on it.
    return "".join(line for line in printed.splitlines(keepends=True) if "times as long" not in line)


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("run.md", (8, 2)),
        ("how-to/ci.md", (6, 0)),
        ("results-changed.md", (3, 3)),
        pytest.param("worse-than-float32.md", (8, 0), marks=pytest.mark.slow),
    ],
)
def test_the_commands_and_snippets_print_what_they_say(page: str, count: tuple[int, int], tmp_path: Path) -> None:
    commands = snippets = 0
    for kind, text in BLOCK.findall((DOCS / page).read_text("utf-8")):
        named = re.match(r"# (\S+\.py)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text, "utf-8")
        elif kind == "python":
            (tmp_path / "snippet.py").write_text(text, "utf-8")
            promised = re.findall(r"^print\(.*\)  # (.*)$", text, re.MULTILINE)
            assert shell("python snippet.py", tmp_path).splitlines() == promised
            snippets += 1
        for command, output in (
            re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE) if kind == "console" else ()
        ):
            printed = shell(command, tmp_path)
            assert re.fullmatch(re.escape(output).replace(ANYTHING, ".*"), printed), f"$ {command}\n{printed}"
            commands += 1
    assert (commands, snippets) == count
