"""``habana-mp tune``: the lists with which an unmodified script is as good as in float32.

Each run of the script is a process of its own, ``habana-mp run`` with the lists that are tried.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from habana_mp.diagnosis.runs import sites_of
from habana_mp.diagnosis.sites import Site
from habana_mp.policy.presets import preset_named
from habana_mp.reporting.records import Row
from habana_mp.reporting.report import Report
from habana_mp.run.command import parsed
from habana_mp.run.diagnose import RunsOfScript, ScriptFailedError, last_lines
from habana_mp.run.options import Conversion, absolute, add_arguments, whole_number
from habana_mp.run.script import Script
from habana_mp.tuning.configurations import Rules
from habana_mp.tuning.tune import tuned_by
from habana_mp.tuning.tuned import write_lists

_USAGE = """habana-mp tune --metric NAME --check EXPRESSION [OPTION]... [--] SCRIPT [ARGUMENT]...
       habana-mp tune --metric NAME --check EXPRESSION [OPTION]... -m MODULE [ARGUMENT]..."""

#: The functions that an expression may call, and `math`.
_FUNCTIONS = {"abs": abs, "max": max, "min": min, "math": math}


def main(words: Sequence[str]) -> int:
    """Runs the command after ``habana-mp tune``. Returns the exit status."""
    parser = own_parser()
    given, command, is_module = parsed(parser, words, "tune")
    check = _Check(given.check)
    try:
        check.try_out()
        preset_named(given.preset)
        Script(command, is_module=is_module).check()
    except (_WrongCheckError, ValueError, OSError) as error:
        parser.error(str(error))
    if given.workers > 1 and given.metric_file:
        parser.error(
            "runs at the same time would write the same --metric-file; leave out --workers, or let the script "
            "print its value"
        )
    with tempfile.TemporaryDirectory() as folder:
        runner = _RunsOfScript(given, command, Path(folder), is_module=is_module)
        path = absolute(given.state)
        try:
            found = tuned_by(
                runner, check, seeds=given.seeds, budget=given.budget, path=None if path is None else Path(path)
            )
        except (_WrongCheckError, ScriptFailedError, ValueError) as error:
            print(f"habana-mp: {error}", file=sys.stderr)
            return 1
    print(found)
    if found.passed and given.write:
        found.write(given.write)
        print(f"The lists are in {given.write}: `habana-mp run --lists {given.write}` uses them.")
    return 0 if found.passed else 1


def own_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="habana-mp tune",
        usage=_USAGE,
        description="Find the lists with which a script is as good as in float32, with few operations in float32. The "
        "script runs many times: in float32, with all that the preset lowers, and with single operations in float32.",
        epilog="Exit status: 0 lists were found, 1 none were or the script fails, 2 wrong usage.",
        allow_abbrev=False,
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
    parser.add_argument("--state", metavar="FILE", help="keeps the values of all runs; another call continues with it")
    parser.add_argument("--write", metavar="FOLDER", help="write the two list files there")
    add_arguments(parser, "tune")
    parser.set_defaults(preset="hmp-default", dtype="bf16")
    return parser


def _seeds(word: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+(,\d+)*", word):
        raise argparse.ArgumentTypeError(f"it must be whole numbers and commas, as 0,1,2; got {word}")
    return tuple(map(int, word.split(",")))


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise argparse.ArgumentTypeError(f"it must be seconds above 0; got {word}")
    return seconds


class _WrongCheckError(Exception):
    """The text of --check is not an expression over `value` and `exact`."""


class _Check:
    """An expression over `value` and `exact`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, value: Any, exact: Any) -> bool:
        try:
            return self._evaluated(value, exact)
        except (ArithmeticError, ValueError) as error:
            raise ValueError(
                f"--check {self._text!r} has no result for the value {value!r}, in float32 {exact!r}: {error}"
            ) from None

    def try_out(self) -> None:
        """Raises _WrongCheckError if it is no expression over `value` and `exact`."""
        for value, exact in ((1.0, 2.0), (2.0, 1.0)):
            with suppress(ArithmeticError, ValueError):
                self._evaluated(value, exact)

    def _evaluated(self, value: Any, exact: Any) -> bool:
        try:
            return bool(eval(self._text, {"__builtins__": {}, **_FUNCTIONS}, {"value": value, "exact": exact}))
        except (SyntaxError, NameError, TypeError, AttributeError) as error:
            raise _WrongCheckError(
                f'--check must be an expression over `value` and `exact`, as "value <= exact * 1.01"; got '
                f"{self._text!r}: {error}"
            ) from None


class _RunsOfScript:
    """Runs of a script, each in a process of its own."""

    def __init__(self, given: argparse.Namespace, words: Sequence[str], folder: Path, *, is_module: bool) -> None:
        self.preset, self.lower, self.workers = given.preset, given.dtype, given.workers
        self._given, self._words, self._is_module, self._folder = given, list(words), is_module, folder

    def run(self, rules: Rules, seed: int) -> tuple[Any, float]:
        begin = time.perf_counter()
        printed = self._printed(rules, seed)
        return self._metric(printed), time.perf_counter() - begin

    def rows(self, rules: Rules, seed: int) -> Sequence[Row]:
        report = self._folder / "report.json"
        self._printed(rules, seed, "--report", str(report), "--detail", "modules")
        return tuple(Report.from_dict(json.loads(report.read_text("utf-8"))))

    def sites(self, seed: int) -> Sequence[Site]:
        conversion = Conversion({"preset": self.preset, "dtype": self.lower})
        words = [*self._words, *self._seed_words(seed)]
        runs = RunsOfScript(
            conversion, words, 0, self._folder, is_module=self._is_module, variables=self._variables(seed)
        )
        try:
            return sites_of(runs)
        except (ScriptFailedError, ValueError):
            return ()

    def _printed(self, rules: Rules, seed: int, *more: str) -> str:
        """Runs the script, and returns what it printed."""
        if rules is None:
            options = ["--opt-level", "O0"]
        else:
            lower, fp32 = write_lists(self._folder / f"lists-{seed}", self.preset, self.lower, rules)
            options = ["--preset", self.preset, "--bf16", str(lower), "--fp32", str(fp32)]
        script = [*(["-m"] if self._is_module else ["--"]), *self._words, *self._seed_words(seed)]
        done = subprocess.run(
            [sys.executable, "-m", "habana_mp", "run", "--dtype", self.lower, *options, *more, *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **self._variables(seed)},
            check=False,
        )
        if done.returncode != 0:
            raise ScriptFailedError(
                f"the script failed (exit status {done.returncode}); the last lines that it printed:\n"
                f"{last_lines(done.stdout)}"
            )
        return done.stdout

    def _seed_words(self, seed: int) -> list[str]:
        name = self._given.seed_argument
        if not name:
            return []
        return [name if name.startswith("-") else f"--{name}", str(seed)]

    def _variables(self, seed: int) -> dict[str, str]:
        return {self._given.seed_variable: str(seed)} if self._given.seed_variable else {}

    def _metric(self, printed: str) -> Any:
        name = self._given.metric
        if self._given.metric_file:
            try:
                return json.loads(Path(self._given.metric_file).read_text("utf-8"))[name]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ScriptFailedError(
                    f"{self._given.metric_file}: the script wrote no JSON with the key {name!r} there: {error!r}"
                ) from None
        found = re.findall(rf"^(?:.*\s)?{re.escape(name)}:\s*(\S+)\s*$", printed, re.MULTILINE)
        try:
            return float(found[-1])
        except (IndexError, ValueError):
            raise ScriptFailedError(
                f"the script printed no line that ends in `{name}: value`; the last lines that it printed:\n"
                f"{last_lines(printed)}"
            ) from None
