"""The command line, ``habana-mp``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

import habana_mp
from habana_mp import _core, hmp, kernels
from habana_mp.common import ledger
from habana_mp.common.devices import devices
from habana_mp.patches.all import modules_of_torch
from habana_mp.patches.torch import products
from habana_mp.run import explain, lists
from habana_mp.run.speed import CASES, ratios

#: Modules that are only imported when they are needed, and that declare assumptions.
_WITH_ASSUMPTIONS = (
    "habana_mp.patches.tools.main_module",
    "habana_mp.patches.tools.spawned_processes",
    "habana_mp.patches.torch.reductions",
)

#: The commands that run a script.
_OF_SCRIPTS = {
    "run": "run a script in mixed precision",
    "diagnose": "which operations of a script are harmful",
    "tune": "the lists with which a script is as good as in float32",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0 if all is well, 1 if something was found, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in _OF_SCRIPTS:  # all but our own options belong to the script
        return int(_command(words[0]).main(words[1:]))
    try:
        status = _run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe
        _drop_output()
        return 1
    except OSError as error:
        _drop_output()
        print(f"habana-mp: {error}", file=sys.stderr)
        return 2
    return status


def _drop_output() -> None:
    """Redirects the output to nowhere, so that Python can flush it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(name: str) -> Any:
    """Returns the module of a command that runs a script."""
    return importlib.import_module(f"habana_mp.run.{'command' if name == 'run' else name}")


def _parser(script: Any = None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Returns the parser of all commands, and that of `explain`. ``script``: how a shell completes its name. None
    leaves out the options of commands that run a script, which they parse by themselves."""
    parser = argparse.ArgumentParser(
        prog="habana-mp",
        description="Mixed precision for PyTorch, steered by lists.",
        epilog="Exit status: 0 all is well, 1 something was found, 2 wrong usage; of `run` that of the script.",
    )
    parser.add_argument("--version", action="version", version=f"habana-mp {habana_mp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    lists.add_parser(commands)
    for name, text in _OF_SCRIPTS.items():
        more: dict[str, Any] = {} if script is None else {"parents": [_command(name).own_parser()], "add_help": False}
        command: Any = commands.add_parser(name, help=f"{text}; `habana-mp {name} --help` tells more", **more)
        if script is not None:
            command.add_argument("script", metavar="SCRIPT").complete = script
    explain_parser = explain.add_parser(commands)
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
    doctor = commands.add_parser(
        "doctor", help="what is here: torch, devices, kernels, how fast bf16 is, what is covered"
    )
    doctor.add_argument(
        "--assumptions",
        action="store_true",
        help="what is taken for granted of the insides of torch, Python and libraries, and whether it holds here",
    )
    completion = commands.add_parser("completion", help="a script that completes commands and options in a shell")
    completion.add_argument("shell", choices=("bash", "zsh"))
    return parser, explain_parser


def _run(arguments: Sequence[str]) -> int:
    parser, explain_parser = _parser()
    given = parser.parse_args(lists.with_command(arguments))
    if given.command == "completion":
        return _complete(given.shell)
    if given.command == "doctor":
        return _show_assumptions() if given.assumptions else _doctor()
    if given.command == "explain":
        return explain.show(given, explain_parser)
    if given.command == "diff":
        return _diff(given.a, given.b, as_json=given.json)
    return lists.run(given)


def _complete(shell: str) -> int:
    try:
        import shtab
    except ImportError:
        print("habana-mp: completion needs shtab: pip install shtab", file=sys.stderr)
        return 2
    print(shtab.complete(_parser(script=shtab.FILE)[0], shell))
    return 0


def _diff(a: str, b: str, *, as_json: bool) -> int:
    try:
        found = hmp.compare(a, b)
    except (OSError, ValueError) as error:
        print(f"habana-mp: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict(), indent=1) if as_json else found)
    return 1 if found.differs else 0


def _doctor() -> int:
    print(f"habana_mp     {habana_mp.__version__}")
    print(f"Python        {platform.python_version()} on {platform.machine()}, {platform.system()}")
    print(f"torch         {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"devices       {', '.join(devices())}")
    print(f"kernels       {kernels.path()} (of {', '.join(_core.kernels_paths())}); HABANA_MP_KERNELS forces one")
    status = 0
    before = hmp.is_converted()
    try:
        if not before:
            hmp.convert()
        covered = _core.installed_count()
        print(f"reader        {_core.reader()}; HABANA_MP_READER forces layout or attribute")
        cached = (
            "cached" if _core.looks_inside() else "not cached: this torch or reader does not tell where tensors lie"
        )
        print(f"weights       casts are {cached}")
        lists = "converted: the lists in force" if before else "the default lists"
        print(f"patched       {lists} cover {covered} functions and methods of torch")
    except (ImportError, RuntimeError) as error:
        print(f"patched       impossible here: {error}")
        status = 1
    failed = _failed(_assumptions())
    if failed:
        print(f"assumptions   {', '.join(failed)}: not as expected; `habana-mp doctor --assumptions` tells more")
    try:
        _print_bf16()
    finally:
        if not before:
            hmp.restore()
    return status


def _show_assumptions() -> int:
    error = _check_assumptions()
    rows = _assumptions()
    width = max(len(name) for name, *_ in rows)
    failed = _failed(rows)
    for name, assumed, check, otherwise, state in rows:
        print(f"{name:<{width}}  {state}")
        if state.startswith(ledger.DOES_NOT_HOLD):
            for title, text in (("assumed", assumed), ("checked", check), ("instead", otherwise)):
                print(f"{'':<{width}}    {title}: {text}")
    waiting = sum(state == ledger.NOT_ASKED for *_, state in rows)
    print(f"{len(rows) - len(failed) - waiting} hold, {len(failed)} do not hold, {waiting} were not asked yet")
    if error is not None:
        print(f"convert is impossible here: {error}")
    return 1 if failed or error is not None else 0


def _assumptions() -> list[tuple[str, str, str, str, str]]:
    """Returns all assumptions, of Python code and of the core."""
    return [*ledger.rows(), *_core.assumptions()]


def _failed(rows: list[tuple[str, str, str, str, str]]) -> list[str]:
    return [name for name, *_, state in rows if state.startswith(ledger.DOES_NOT_HOLD)]


def _check_assumptions() -> Exception | None:
    """Checks all assumptions that can be checked, of modules that it imports and of torch. Returns the error of
    ``convert``, or None."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about its older modules
        for module in (*_WITH_ASSUMPTIONS, *modules_of_torch()):
            with suppress(Exception):  # a module that this torch lacks, or was built without
                importlib.import_module(module)
        before = hmp.is_converted()
        try:
            if not before:
                hmp.convert(within="modules")
        except (ImportError, RuntimeError) as error:
            return error
        finally:
            if not before:
                hmp.restore()
    return None


def _print_bf16() -> None:
    way = "by its instructions" if products.multiplies_bfloat16() else "in float32, from rounded operands"
    print(f"products      of bf16 are computed {way}")
    print("bf16          time of bf16 as a multiple of fp32's, below 1 is faster (best of 9):")
    for device in devices():
        found = []
        for case in CASES:
            plain, by_hmp = ratios(device, case)
            more = "" if by_hmp is None else f"  by hmp {by_hmp:6.2f}  {_verdict(by_hmp)}"
            name = f"{'train ' if case.trains else ''}{case.name}"
            print(f"  {device:<6} {name:<35} {plain:6.2f}  {_verdict(plain):<8}{more}")
            found.append(plain if by_hmp is None else by_hmp)
        print(f"verdict       {device}: {_verdict_on(found)}")


def _verdict_on(found: list[float]) -> str:
    """Returns a sentence about all ratios of a device."""
    mean = statistics.geometric_mean(found)
    slower = sum(_verdict(one) == "slower" for one in found)
    what = "faster than fp32" if mean < 0.95 else "slower than fp32" if mean > 1.05 else "as fast as fp32"
    exceptions = "" if slower == 0 else f"; {slower} of {len(found)} of these operations are slower"
    return f"bf16 takes {mean:.2f} of the time of fp32 in the mean: {what}{exceptions}"


def _verdict(ratio: float) -> str:
    return "faster" if ratio < 0.95 else "slower" if ratio > 1.05 else "the same"
