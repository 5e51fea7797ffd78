"""``habana-mp diagnose``: which operations of an unmodified script are harmful in lower precision.

The script runs several times, each time in a process of its own up to the end of the step that is looked at: in
float32, as it is, and with single lines in float32.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from habana_mp.diagnosis.diagnosis import ProgressLine, look
from habana_mp.diagnosis.outcomes import Run, RunMode
from habana_mp.run.command import parsed
from habana_mp.run.options import Conversion, absolute, add_arguments, options_given, whole_number
from habana_mp.run.script import Script

_ENDINGS = (".html", ".json")

_USAGE = """habana-mp diagnose [OPTION]... [--] SCRIPT [ARGUMENT]...
       habana-mp diagnose [OPTION]... -m MODULE [ARGUMENT]..."""

#: So many lines of what a script printed are shown when it fails.
_LAST_LINES = 30


@dataclass(frozen=True)
class Job:
    """The task of the process that makes one run."""

    conversion: Conversion
    words: tuple[str, ...]
    is_module: bool
    #: The steps of optimizers before the one that is looked at.
    skipped: int
    mode: RunMode


class ScriptFailedError(Exception):
    """The script ended with an error, or before the step that is looked at."""


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp diagnose``. Returns the exit status."""
    parser = own_parser()
    given, command, is_module = parsed(parser, words, "diagnose")
    report = absolute(given.report)
    if report and not report.endswith(_ENDINGS):
        parser.error(f"--report must be a file that ends in .html or .json; got {given.report}")
    try:
        Script(command, is_module=is_module).check()
    except OSError as error:
        parser.error(f"cannot open the script: {error}")
    conversion = Conversion(options_given(parser, given, "diagnose"))
    try:
        with ProgressLine() as progress, tempfile.TemporaryDirectory() as folder:
            runs = RunsOfScript(conversion, command, given.step - 1, Path(folder), is_module=is_module)
            found = look(runs, given.step - 1, progress)
    except (ScriptFailedError, ValueError) as error:
        print(f"habana-mp: {error}", file=sys.stderr)
        return 1
    print(found)
    if report:
        (found.to_html if report.endswith(".html") else found.to_json)(report)
        print(f"All operations are in {given.report}.")
    return 0 if found.healthy else 1


def own_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="habana-mp diagnose",
        usage=_USAGE,
        description="Find the operations of an unmodified script whose lower precision harms a training step, and the "
        "rules that mend it. The script runs several times, up to the optimizer's step, with the seed 0 unless it sets "
        "another; what it prints is not shown. A script without an optimizer runs to its end, and what its models "
        "return is compared.",
        epilog="Exit status: 0 healthy, 1 something is harmful or the script fails, 2 wrong usage.",
        allow_abbrev=False,
    )
    add_arguments(parser, "diagnose")
    parser.add_argument(
        "--step", type=whole_number, default=1, metavar="N", help="the step of the optimizer to look at, from 1"
    )
    parser.add_argument("--report", metavar="FILE", help="write all operations there, as its ending says: .html, .json")
    return parser


def last_lines(printed: str) -> str:
    return "\n".join(printed.splitlines()[-_LAST_LINES:])


class RunsOfScript:
    """The runs of a step of a script, each in a process of its own."""

    compiles = False
    advice = (
        "the script must do the same each time it runs; set its seeds, and switch off what follows the time or threads"
    )

    def __init__(
        self,
        conversion: Conversion,
        words: Sequence[str],
        skipped: int,
        folder: Path,
        *,
        is_module: bool,
        variables: dict[str, str] | None = None,
    ) -> None:
        self._conversion, self._words, self._is_module = conversion, tuple(words), is_module
        self._skipped, self._folder = skipped, folder
        self._variables = variables or {}

    def run(self, mode: RunMode) -> Run:
        job, result, output = (self._folder / name for name in ("job", "result", "output"))
        result.unlink(missing_ok=True)
        job.write_bytes(pickle.dumps(Job(self._conversion, self._words, self._is_module, self._skipped, mode)))
        with output.open("wb") as file:
            status = subprocess.run(
                [sys.executable, "-m", "habana_mp.run.diagnosed_script", str(job), str(result)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={"PYTHONHASHSEED": "0", **os.environ, **self._variables},
                check=False,
            ).returncode
        if not result.exists():
            printed = last_lines(output.read_text("utf-8", "replace"))
            why = "ended before that step began" if status == 0 else f"failed (exit status {status})"
            raise ScriptFailedError(f"the script {why}; the last lines that it printed:\n{printed}")
        run: Run = pickle.loads(result.read_bytes())
        return run
