"""The options of a conversion on the command line."""

from __future__ import annotations

import argparse
import os
import warnings
from dataclasses import dataclass

import torch

from habana_mp import hmp
from habana_mp.common.errors import HmpWarning
from habana_mp.reporting import records
from habana_mp.reporting.guard import Guard
from habana_mp.reporting.watch import watching

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Options:
    """The options of the conversion on the command line. They are sent to other processes too."""

    opt_level: str
    bf16: str | None
    fp32: str | None
    preset: str | None
    dtype: str
    within: str | None
    verbose: bool = False
    detail: records.Detail = "operations"
    #: True if the script converts by itself. Then only its calls are watched.
    by_script: bool = False
    guard: Guard = False

    def convert(self) -> list[str]:
        """Converts this process. Returns the texts of the warnings."""
        if self.by_script:
            watching.begins(self.detail)
            return []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HmpWarning)
            hmp.convert(
                self.opt_level,
                self.bf16,
                self.fp32,
                self.verbose,
                preset=self.preset,
                dtype=DTYPES[self.dtype],
                within=self.within,
                report=self.detail,
                guard=self.guard,
            )
        return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how to convert."""
    parser.add_argument("--opt-level", metavar="LEVEL", help="O1 (the lists decide; the default), O2 or O0")
    parser.add_argument("--bf16", metavar="FILE", help="a list file: what runs in the lower precision")
    parser.add_argument("--fp32", metavar="FILE", help="a list file: what runs in float32")
    parser.add_argument(
        "--lists",
        metavar="FOLDER",
        help="both list files, as `habana-mp tune --write` makes them: bf16.txt and fp32.txt",
    )
    parser.add_argument(
        "--preset",
        help="the lists to start from; `habana-mp lists` shows all. Without lists, a preset or a level: recommended",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="the lower precision; bf16 is the default")
    parser.add_argument("--within", choices=["modules"], help="lower only while the forward of some module runs")


def options_given(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Options:
    """Returns the options. Ends the program if they contradict each other."""
    if given.lists:
        if given.bf16 or given.fp32:
            parser.error("--lists names both list files; leave out --bf16 and --fp32")
        given.bf16, given.fp32 = (os.path.join(given.lists, name) for name in (f"{given.dtype}.txt", "fp32.txt"))
        for path in (given.bf16, given.fp32):
            if not os.path.isfile(path):
                parser.error(f"--lists must be a folder with list files; {path} is not there")
    says_how = any((given.opt_level, given.bf16, given.fp32, given.preset))
    return Options(
        opt_level=given.opt_level or "O1",
        bf16=absolute(given.bf16),
        fp32=absolute(given.fp32),
        preset=given.preset if says_how else "recommended",
        dtype=given.dtype,
        within=given.within,
    )


def absolute(path: str | None) -> str | None:
    """Returns an absolute path: the script may change the working directory, and start processes there."""
    return os.path.abspath(path) if path else None


def whole_number(word: str) -> int:
    """Returns the number of an option that must be at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1; got {word}")
    return int(word)
