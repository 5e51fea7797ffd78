"""``habana-mp diagnose``: which operations of an unmodified script are harmful in lower precision.

The script runs several times, each time in a process of its own up to the end of the step that is looked at: in
float32, as it is, and with some lines in float32.
"""

from __future__ import annotations

import argparse
import pickle
import random
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from habana_mp import hmp
from habana_mp.diagnosis.diagnosis import ProgressLine, diagnosed_process, look
from habana_mp.diagnosis.observing import observer_of
from habana_mp.diagnosis.outcomes import Run, RunMode
from habana_mp.diagnosis.replays import Replays
from habana_mp.diagnosis.sites import Locator
from habana_mp.run.closing import write
from habana_mp.run.options import Conversion, options_given, parsed, script_parser, whole_number
from habana_mp.run.processes import ScriptFailedError, in_child, run_python
from habana_mp.run.script import Script


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp diagnose``. Returns the exit status."""
    parser = own_parser()
    given, script = parsed(parser, words)
    conversion = Conversion(options_given(parser, given, "diagnose"))
    with ProgressLine() as progress, tempfile.TemporaryDirectory() as folder:
        skipped = given.step - 1
        found = look(RunsOfScript(conversion, script, skipped, Path(folder), {}), skipped, progress)
    print(found)
    if given.report_file:
        write(found, given.report_file)
        print(f"All operations are in {given.report_file}.")
    return 0 if found.healthy else 1


def own_parser() -> argparse.ArgumentParser:
    parser = script_parser(
        "diagnose",
        "Find the operations of an unmodified script whose lower precision harms a training step, and the rules that "
        "mend it. The script runs several times, up to the optimizer's step, with the seed 0 unless it sets another; "
        "what it prints is not shown. A script without an optimizer runs to its end, and what its models return is "
        "compared.",
        "Exit status: 0 healthy, 1 something is harmful or the script fails, 2 wrong usage.",
    )
    parser.add_argument(
        "--step", type=whole_number, default=1, metavar="N", help="the step of the optimizer to look at, from 1"
    )
    parser.add_argument(
        "--report",
        dest="report_file",
        metavar="FILE",
        help="write all operations there, as its ending says: .html, .json",
    )
    return parser


class RunsOfScript:
    """The runs of a step of a script, each in a process of its own."""

    compiles = False
    advice = (
        "the script must do the same each time it runs; set its seeds, and switch off what depends on time or threads"
    )

    def __init__(
        self, conversion: Conversion, script: Script, skipped: int, folder: Path, variables: Mapping[str, str]
    ) -> None:
        """``skipped``: the steps of optimizers before the one that is looked at."""
        self._conversion, self._script, self._skipped = conversion, script, skipped
        self._folder, self._variables = folder, variables

    def run(self, mode: RunMode) -> Run:
        job, result = self._folder / "job", self._folder / "result"
        result.unlink(missing_ok=True)
        job.write_bytes(pickle.dumps((self._conversion, self._script, self._skipped, mode)))
        status, printed = run_python(in_child(__name__, str(job), str(result)), self._variables)
        if not result.exists():
            why = "ended before that step began" if status == 0 else f"failed (exit status {status})"
            raise ScriptFailedError(f"the script {why}", printed)
        run: Run = pickle.loads(result.read_bytes())
        return run


def child(job: str, result: str) -> None:
    """Runs a script up to the end of one step, and writes what the step gave."""
    conversion, script, skipped, mode = pickle.loads(Path(job).read_bytes())
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    conversion.convert()

    def step() -> None:
        with suppress(SystemExit):
            script.run()

    replays = Replays(step, skipped=skipped, compares_outputs=True)
    observer = observer_of(mode, Locator())
    with diagnosed_process, replays.from_same_state():
        run = replays.run(observer)
    if replays.has_looked:
        Path(result).write_bytes(pickle.dumps(run))
    hmp.restore()
