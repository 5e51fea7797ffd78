"""The command line, ``habana-mp``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import habana_mp
from habana_mp import hmp
from habana_mp.run import doctor, explain, lists
from habana_mp.run.options import Parser

#: The commands that run a script: the module of each, and what it is for.
_OF_SCRIPTS = {
    "run": ("habana_mp.run.command", "run a script in mixed precision"),
    "diagnose": ("habana_mp.run.diagnose", "which operations of a script are harmful"),
    "tune": ("habana_mp.run.tune", "the lists with which a script is as good as in float32"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0 if all is well, 1 if something was found, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:  # what the script raises is passed on
        return int(_module("run").main(words[1:]))
    is_of_script = bool(words) and words[0] in _OF_SCRIPTS  # all but our own options belong to the script
    try:
        if is_of_script:
            status = _module(words[0]).main(words[1:])
        else:
            given = _parser().parse_args(lists.with_command(words))
            status = given.run(given)
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.filename is None:  # the output may be closed, and Python flushes it
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"habana-mp: {error}", file=sys.stderr)
        return 1 if is_of_script or isinstance(error, BrokenPipeError) else 2
    return int(status)


def _module(command: str) -> Any:
    return importlib.import_module(_OF_SCRIPTS[command][0])


def _parser(script: Any = None) -> argparse.ArgumentParser:
    """Returns the parser of all commands. ``script``: how a shell completes its name. None leaves out the options of
    commands that run a script, which they parse by themselves."""
    parser = Parser(
        prog="habana-mp",
        description="Mixed precision for PyTorch, steered by lists.",
        epilog="Exit status: 0 all is well, 1 something was found, 2 wrong usage; of `run` that of the script.",
    )
    parser.add_argument("--version", action="version", version=f"habana-mp {habana_mp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    lists.add_parser(commands)
    for name, (_, text) in _OF_SCRIPTS.items():
        more: dict[str, Any] = {} if script is None else {"parents": [_module(name).own_parser()], "add_help": False}
        command: Any = commands.add_parser(name, help=f"{text}; `habana-mp {name} --help` tells more", **more)
        if script is not None:
            command.add_argument("script", metavar="SCRIPT").complete = script
    explain.add_parser(commands)
    diff = commands.add_parser(
        "diff",
        help="where two runs differ: two records, or two reports",
        epilog="Exit status: 0 the same, 1 a difference, 2 wrong usage. Of records: a value differs by more than its "
        "inputs explain, or a run was given other values. Of reports: something is new, gone, in another precision, "
        "for another reason, or with other casts in as many calls; how long calls took changes no status.",
    )
    diff.add_argument(
        "a", help="a folder of `habana-mp run --record`, or a report as `habana-mp run --report a.json` writes it"
    )
    diff.add_argument("b", help="that of the other run")
    diff.add_argument("--json", action="store_true", help="tell it as JSON")
    diff.add_argument("--times", action="store_true", help="of reports: also which calls took longer or shorter")
    diff.set_defaults(run=_diff)
    here = commands.add_parser(
        "doctor", help="what is here: torch, devices, kernels, how fast bf16 is, what is covered"
    )
    here.add_argument(
        "--assumptions",
        action="store_true",
        help="what is taken for granted of the insides of torch, Python and libraries, and whether it holds here",
    )
    here.set_defaults(run=lambda given: doctor.show_assumptions() if given.assumptions else doctor.show())
    completion = commands.add_parser("completion", help="a script that completes commands and options in a shell")
    completion.add_argument("shell", choices=("bash", "zsh"))
    completion.set_defaults(run=_complete)
    return parser


def _complete(given: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise ValueError("completion needs shtab: pip install shtab") from None
    print(shtab.complete(_parser(script=shtab.FILE), given.shell))
    return 0


def _diff(given: argparse.Namespace) -> int:
    found = hmp.compare(given.a, given.b)
    if given.times and not isinstance(found, hmp.Comparison):
        raise ValueError("--times is for reports: records have no times")
    text: Any = found.text(times=given.times) if isinstance(found, hmp.Comparison) else found
    print(json.dumps(found.to_dict(), indent=1) if given.json else text)
    return 1 if found.differs else 0
