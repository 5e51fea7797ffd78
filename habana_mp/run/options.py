"""The options of a conversion on the command line."""

from __future__ import annotations

import argparse
import os
import warnings
from dataclasses import dataclass
from typing import Any

from habana_mp import hmp
from habana_mp.common.errors import HmpWarning
from habana_mp.policy.options import flags
from habana_mp.recording.record import Record
from habana_mp.reporting.watch import watching

_FILES = ("bf16_file_path", "fp32_file_path")

#: The record of this process: it ends with the process.
_records: list[Record] = []


@dataclass(frozen=True)
class Conversion:
    """A conversion as the command line says. It is sent to other processes too."""

    #: The arguments of `convert`.
    options: dict[str, Any]
    #: True if the script converts by itself. Then only its calls are watched.
    by_script: bool = False
    #: The folder of the record, if there is one.
    record: str | None = None

    def convert(self) -> list[str]:
        """Converts this process, and begins its record. Returns the texts of the warnings."""
        caught: list[warnings.WarningMessage] = []
        if self.by_script:
            watching.begins(self.options["report"])
        else:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", HmpWarning)
                hmp.convert(**self.options)
        if self.record is not None:
            _records.append(hmp.record(self.record))
            _records[-1].__enter__()
        return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Adds the options of `convert` that this command has. Those that are not given will not be in the namespace."""
    for name, flag in flags(command).items():
        parser.add_argument(flag.name, dest=name, default=argparse.SUPPRESS, **flag.arguments)
    if "fp32_file_path" in flags(command):
        parser.add_argument(
            "--lists",
            metavar="FOLDER",
            help="a folder of lists, as `habana-mp tune --write` makes it: bf16.txt, fp32.txt and within.txt",
        )


def options_given(parser: argparse.ArgumentParser, given: argparse.Namespace, command: str) -> dict[str, Any]:
    """Returns the arguments of `convert`. Ends the program if they contradict each other."""
    values = {name: getattr(given, name) for name in flags(command) if hasattr(given, name)}
    if given.lists:
        if not values.keys().isdisjoint({"preset", *_FILES}):
            parser.error("--lists names all lists; leave out --bf16, --fp32 and --preset")
        for file in (values.get("dtype", "bf16"), "fp32"):
            if not os.path.isfile(path := os.path.join(given.lists, f"{file}.txt")):
                parser.error(f"--lists must be a folder with list files; {path} is not there")
        values["preset"] = absolute(given.lists)
    for name in values.keys() & {*_FILES, "log"}:
        values[name] = absolute(values[name])
    if "rules" in values:
        values["rules"] = dict(values["rules"])
    if values.keys().isdisjoint({"opt_level", "preset", *_FILES}):
        values["preset"] = "recommended"
    return values


def absolute(path: str | None) -> str | None:
    """Returns an absolute path: the script may change the working directory, and start processes there."""
    return os.path.abspath(path) if path else None


def whole_number(word: str) -> int:
    """Returns the number of an option that must be at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1; got {word}")
    return int(word)
