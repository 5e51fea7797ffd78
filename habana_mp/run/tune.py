"""``habana-mp tune``: the lists with which an unmodified script is as good as in float32.

Each run of the script is a process of its own, ``habana-mp run`` with the lists that are tried.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from habana_mp.diagnosis.search import sites_of
from habana_mp.diagnosis.sites import Site
from habana_mp.policy.presets import preset_named
from habana_mp.reporting.records import Row
from habana_mp.reporting.report import Report
from habana_mp.run.diagnose import RunsOfScript
from habana_mp.run.options import Conversion, parsed, script_parser, whole_number
from habana_mp.run.processes import ScriptFailedError, run_python
from habana_mp.run.script import Script
from habana_mp.tuning.configurations import Check, Rules
from habana_mp.tuning.tune import tuned_by
from habana_mp.tuning.tuned import as_rules, write_lists

#: The functions that an expression may call, and `math`.
_FUNCTIONS = {"abs": abs, "max": max, "min": min, "math": math}


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp tune``. Returns the exit status."""
    parser = own_parser()
    given, script = parsed(parser, words)
    try:
        check = _checked(given.check)
        preset_named(given.preset)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if given.workers > 1 and given.metric_file:
        parser.error(
            "runs at the same time would write the same --metric-file; leave out --workers, or let the script "
            "print its value"
        )
    with tempfile.TemporaryDirectory() as folder:
        runner = _Runner(given, script, Path(folder))
        found = tuned_by(runner, check, seeds=given.seeds, budget=given.budget, path=given.state)
    print(found)
    if found.passed and given.write:
        found.write(given.write)
        print(f"The lists are in {given.write}: `habana-mp run --lists {given.write}` uses them.")
    return 0 if found.passed else 1


def own_parser() -> argparse.ArgumentParser:
    parser = script_parser(
        "tune",
        "Find the lists with which a script is as good as in float32, with few operations in float32. The script runs "
        "many times: in float32, with all that the preset lowers, and with single operations in float32.",
        "Exit status: 0 lists were found, 1 none were or the script fails, 2 wrong usage.",
        required=" --metric NAME --check EXPRESSION",
    )
    parser.add_argument(
        "--metric", required=True, metavar="NAME", help="the value: the script prints `NAME: value`, last in a line"
    )
    parser.add_argument("--metric-file", metavar="FILE", help="a JSON file that the script writes, with the key NAME")
    parser.add_argument(
        "--check",
        required=True,
        metavar="EXPRESSION",
        help='whether a value is good enough: "value <= exact * 1.01", where `exact` is that of float32',
    )
    parser.add_argument("--seeds", type=_seeds, default=(0, 1, 2), metavar="N,...", help="0,1,2 is the default")
    parser.add_argument("--seed-argument", metavar="NAME", help="the script's option for its seed: `seed` for --seed")
    parser.add_argument("--seed-variable", metavar="NAME", help="the environment variable for its seed")
    parser.add_argument(
        "--workers", type=whole_number, default=1, metavar="N", help="run the script with N seeds at the same time"
    )
    parser.add_argument("--budget", type=_seconds, metavar="SECONDS", help="no run begins later than this")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="keeps the values of all runs; another call continues with it"
    )
    parser.add_argument("--write", metavar="FOLDER", help="write the two list files there")
    parser.set_defaults(preset="hmp-default", dtype="bf16")
    return parser


def _seeds(word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", word):
        raise argparse.ArgumentTypeError(f"it must be whole numbers and commas, as 0,1,2; got {word}")
    return tuple(map(int, word.split(",")))


def _seconds(word: str) -> float:
    with suppress(ValueError):
        if float(word) > 0:
            return float(word)
    raise argparse.ArgumentTypeError(f"it must be seconds above 0; got {word}")


def _checked(text: str) -> Check:
    """Returns the check of an expression over `value` and `exact`. Raises ValueError for any other text."""

    def check(value: Any, exact: Any) -> bool:
        try:
            return bool(eval(text, {"__builtins__": {}, **_FUNCTIONS}, {"value": value, "exact": exact}))
        except Exception as error:  # the expression may be any
            raise ValueError(
                f"--check {text!r} has no result for the value {value!r}, in float32 {exact!r}: {error}"
            ) from error

    for tried in ((1.0, 2.0), (2.0, 1.0)):
        try:
            check(*tried)
        except ValueError as error:
            if not isinstance(error.__cause__, ArithmeticError | ValueError):
                raise ValueError(
                    '--check must be an expression over `value` and `exact`, as "value <= exact * 1.01"; got '
                    f"{text!r}: {error.__cause__}"
                ) from None
    return check


class _Runner:
    """Runs of a script, each in a process of its own."""

    def __init__(self, given: argparse.Namespace, script: Script, folder: Path) -> None:
        self.preset, self.lower, self.workers = given.preset, given.dtype, given.workers
        self._given, self._script, self._folder = given, script, folder

    def run(self, rules: Rules, seed: int) -> tuple[Any, float]:
        begin = time.perf_counter()
        printed = self._printed(rules, seed)
        return self._metric(printed), time.perf_counter() - begin

    def rows(self, rules: Rules, seed: int) -> Sequence[Row]:
        report = self._folder / "report.json"
        self._printed(rules, seed, "--report", str(report), "--detail", "modules")
        return tuple(Report.from_json(report))

    def sites(self, seed: int) -> Sequence[Site]:
        conversion = Conversion({"preset": self.preset, "dtype": self.lower})
        runs = RunsOfScript(conversion, self._with_seed(seed), 0, self._folder, self._variables(seed))
        try:
            return sites_of(runs)
        except ValueError:
            return ()

    def _printed(self, rules: Rules, seed: int, *more: str) -> str:
        """Runs the script, and returns what it printed."""
        if rules is None:
            options = ["--opt-level", "O0"]
        else:
            lists = self._folder / f"lists-{seed}"
            write_lists(lists, self.preset, self.lower, as_rules(rules))
            options = ["--preset", self.preset, f"--bf16={lists}/{self.lower}.txt", f"--fp32={lists}/fp32.txt"]
        script = self._with_seed(seed)
        status, printed = run_python(
            [
                *("-m", "habana_mp", "run", "--dtype", self.lower, *options, *more),
                *("-m" if script.is_module else "--", *script.words),
            ],
            self._variables(seed),
        )
        if status:
            raise ScriptFailedError(f"the script failed (exit status {status})", printed)
        return printed

    def _with_seed(self, seed: int) -> Script:
        name = self._given.seed_argument
        words = [name if name.startswith("-") else f"--{name}", str(seed)] if name else []
        return replace(self._script, words=(*self._script.words, *words))

    def _variables(self, seed: int) -> dict[str, str]:
        return {self._given.seed_variable: str(seed)} if self._given.seed_variable else {}

    def _metric(self, printed: str) -> Any:
        name = self._given.metric
        if self._given.metric_file:
            try:
                return json.loads(Path(self._given.metric_file).read_text("utf-8"))[name]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{self._given.metric_file}: the script wrote no JSON with the key {name!r} there: {error!r}"
                ) from None
        found = re.findall(rf"^(?:.*\s)?{re.escape(name)}:\s*(\S+)\s*$", printed, re.MULTILINE)
        try:
            return float(found[-1])
        except (IndexError, ValueError):
            raise ScriptFailedError(f"the script printed no line that ends in `{name}: value`", printed) from None
