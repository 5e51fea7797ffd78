"""The command line of the commands that run a script, and the options of a conversion there."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from habana_mp import hmp
from habana_mp.common.devices import ACCELERATORS
from habana_mp.common.errors import HmpWarning
from habana_mp.policy.options import flags
from habana_mp.run.closing import ENDINGS
from habana_mp.run.script import Script, say

_FILES = ("bf16_file_path", "fp32_file_path")

#: Options of commands without a value, or with one behind a `=` only.
_SWITCHES = {"--audit", "--gaudi", "--require-lowered", "--help", "-h"}


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
            hmp.watch(self.options["report"]).__enter__()
        else:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", HmpWarning)
                hmp.convert(**self.options)
        if self.record is not None:
            hmp.record(self.record).__enter__()  # it ends with the process
        return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]


class Parser(argparse.ArgumentParser):
    """A parser whose errors name the command or the option that may be meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # of a command: it names its options
        given, unknown = super().parse_known_args(args, namespace)
        return (given, unknown) if not unknown else self.error(f"unrecognized arguments: {' '.join(unknown)}")

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"(?:unrecognized arguments: |invalid choice: ')([^ '=]+)", message)
        known = [name for one in self._actions for name in (*one.option_strings, *(one.choices or ()))]
        near = difflib.get_close_matches(wrong[1], known, n=1) if wrong else []
        super().error(message + "".join(f"; did you mean `{one}`?" for one in near))


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


def script_parser(command: str, description: str, epilog: str, *, required: str = "") -> argparse.ArgumentParser:
    """Returns the parser of a command's own options, with those of `convert`. ``required`` is for its usage."""
    usage = f"habana-mp {command}{required} [OPTION]..."
    parser = Parser(
        prog=f"habana-mp {command}",
        usage=f"{usage} [--] SCRIPT [ARGUMENT]...\n       {usage} -m MODULE [ARGUMENT]...",
        description=description,
        epilog=epilog,
        allow_abbrev=False,
    )
    add_arguments(parser, command)
    return parser


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, Script]:
    """Returns the options of this parser, and the script behind them, whose words are not parsed. Ends the program if
    it is not there."""
    of_convert = ((one.name, one.arguments) for one in flags("run").values())
    switches = {name for name, how in of_convert if how.get("action") == "store_true"}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--" and not words[at].startswith("-m"):
        is_alone = words[at] in _SWITCHES | switches or "=" in words[at]
        # Any other word behind --guard is the script.
        is_alone |= words[at] == "--guard" and not re.fullmatch(r"-?[\d.]+|raise", (*words, "")[at + 1])
        at += 1 if is_alone else 2
    given = parser.parse_args(words[:at])
    script = Script.of(words[at + (words[at : at + 1] == ["--"]) :])
    if not script.words:
        what = "a MODULE must follow -m" if script.is_module else f"a SCRIPT to {parser.prog.split()[1]} is missing"
        parser.error(what)
    try:
        script.check()
    except OSError as error:
        if getattr(given, "gaudi", None) == "" and script.name.partition(":")[0] in ("cpu", *ACCELERATORS):
            parser.error(f"a device stands after a `=`: --gaudi={script.name}")
        parser.error(f"cannot open the script: {error}")
    report = getattr(given, "report_file", None)
    if report and not report.endswith(ENDINGS):
        parser.error(f"--report must be a file that ends in .html or .json; got {report}")
    if report and not os.path.isdir(os.path.dirname(os.path.abspath(report))):
        parser.error(f"--report must be in a folder that is there; got {report}")
    point_out(parser, script, may_be_its_own=False)
    return given, script


def point_out(parser: argparse.ArgumentParser, script: Script, *, may_be_its_own: bool) -> None:
    """Points out the options of this parser that stand behind the script: those that the script may read too, or the
    others."""
    options = set(re.findall(r"--[a-z0-9-]+", parser.format_help())) - {"--help"}
    for word in script.words[1:]:
        if word.partition("=")[0] in options and script.may_read(word) == may_be_its_own:
            say(
                f"`{word}` stands behind the script, so the script gets it; write options of habana-mp before "
                f"{script.name}"
            )


def absolute(path: str | None) -> str | None:
    """Returns an absolute path: the script may change the working directory, and start processes there."""
    return os.path.abspath(path) if path else None


def imported(name: str) -> Any:
    """Imports PACKAGE.MODULE as a script in the working directory would, or its attribute: PACKAGE.MODULE:ATTRIBUTE."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
        return getattr(found, attribute) if attribute else found
    except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
        raise ValueError(f"cannot import `{name}`: {type(error).__name__}: {error}") from None


def whole_number(word: str) -> int:
    """Returns the number of an option that must be at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"it must be a whole number of at least 1; got {word}")
    return int(word)
