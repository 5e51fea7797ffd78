"""The documentation is true: Python and commands print what it says, tables are up to date, links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from helpers.each import each
from helpers.late import module_of
from helpers.processes import python
from helpers.processor import as_everywhere

ROOT = Path(__file__).parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LIST_OF_DECISIONS = ROOT / "docs" / "decisions" / "README.md"
HEADINGS_OF_A_DECISION = ["Problem", "What was tried", "What won, and why", "Figure", "Reconsider when"]
#: These show results, as comments or as the block that follows.
RUN = [
    "README.md",
    "docs/start.md",
    "docs/reference.md",
    "docs/diagnose.md",
    "docs/audit.md",
    "docs/tune.md",
    "docs/keep-in-float32.md",
    "docs/regions.md",
    "docs/lists.md",
    "docs/rules.md",
    "docs/log.md",
    "docs/report.md",
    "docs/weights.md",
    "docs/gaudi.md",
    "docs/migration.md",
    "docs/how-to/trainer.md",
]

#: Runs each script in a folder and a process of its own. They are forked, so that torch is imported, and rules are
#: made, once for all.
EACH_IN_A_PROCESS = """
import os, runpy, sys
from habana_mp import hmp
hmp.convert()
hmp.restore()
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        os.chdir(os.path.dirname(script))
        os.dup2(os.open("snippet.out", os.O_WRONLY | os.O_CREAT), 1)
        runpy.run_path(script, run_name="__main__")
        sys.stdout.flush()
        os._exit(0)  # at once: to take torch down takes longer than most snippets
    if os.waitpid(child, 0)[1]:
        sys.exit(f"this does not run by itself:\\n{open(script).read()}")
"""

#: A block of Python, and the block of output right after it where there is one.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def generator() -> ModuleType:
    return module_of(ROOT / "docs" / "make_rules_table.py")


def promised(code: str, output: str | None) -> list[str]:
    """The lines that a block says it prints: ``print(x)  # this``, or the block after it."""
    if output is not None:
        return output.splitlines()
    return re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("name", RUN)
def test_python_in_the_documentation_runs_by_itself_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / name).read_text("utf-8"))
    assert blocks
    scripts = [tmp_path / str(number) / "snippet.py" for number in range(len(blocks))]
    for script, (code, _) in zip(scripts, blocks, strict=True):
        script.parent.mkdir()
        script.write_text(code, "utf-8")
    done = python("-c", EACH_IN_A_PROCESS, *map(str, scripts), with_dynamo=True)
    assert done.returncode == 0, done.stderr
    for script, (code, output) in zip(scripts, blocks, strict=True):
        expected = promised(code, output or None)
        if expected:  # Where the document says nothing about the output, any will do.
            printed = as_everywhere(script.with_suffix(".out").read_text("utf-8")).splitlines()
            assert printed == as_everywhere("\n".join(expected)).splitlines()


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the tables are those of torch 2.13")
def test_tables_are_up_to_date() -> None:
    stale = [path.name for path in generator().stale()]
    assert not stale, f"run `python docs/make_rules_table.py`: {stale}"


@each("document", DOCUMENTS)
def test_links_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_each_decision_has_its_number_its_headings_and_a_place_in_the_list() -> None:
    listed = re.findall(
        r"^\| (\d+) \| .+ \| \[(.+)\]\((.+)\) \| (.+) \|$", LIST_OF_DECISIONS.read_text("utf-8"), re.MULTILINE
    )
    found = []
    for path in DECISIONS:
        number = int(path.name[:4])
        text = path.read_text("utf-8")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS_OF_A_DECISION, path.name
        title = re.match(rf"# {number}\. (.*)\n\nDate: (\d{{4}}-\d\d-\d\d) ", text)
        assert title, path.name
        found.append((str(number), title[1], path.name, title[2]))
    assert sorted(listed, key=lambda row: int(row[0])) == found
    assert len({number for number, *_ in found}) == len(found)


def test_a_missing_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match="one pair of markers for the table `x`; found 0"):
        generator().filled("no markers", {"x": lambda: ""})


# ---- pages with commands ---------------------------------------------------------------------------------------------

COMMANDS_AND_SNIPPETS = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
    # It decides whether this processor is said to be slower.
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
    for kind, text in COMMANDS_AND_SNIPPETS.findall((ROOT / "docs" / page).read_text("utf-8")):
        named = re.match(r"# (\S+\.py)\n", text)
        if named:
            (tmp_path / named[1]).write_text(text, "utf-8")
        elif kind == "python":
            (tmp_path / "snippet.py").write_text(text, "utf-8")
            assert shell("python snippet.py", tmp_path).splitlines() == promised(text, None)
            snippets += 1
        for command, output in (
            re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE) if kind == "console" else ()
        ):
            printed = shell(command, tmp_path)
            assert re.fullmatch(re.escape(output).replace(ANYTHING, ".*"), printed), f"$ {command}\n{printed}"
            commands += 1
    assert (commands, snippets) == count
