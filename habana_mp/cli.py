"""The command line: ``habana-mp lists``, ``habana-mp lists check FILE...``, ``habana-mp run``,
``habana-mp diagnose``, ``habana-mp tune``, ``habana-mp explain``, ``habana-mp diff A B``, ``habana-mp doctor``."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import warnings
from collections.abc import Collection, Sequence
from contextlib import suppress

import torch

import habana_mp
from habana_mp import _core, hmp, kernels, ops
from habana_mp.common import ledger
from habana_mp.common.devices import devices
from habana_mp.patches.all import modules_of_torch
from habana_mp.policy.lists import read_list
from habana_mp.policy.lists_diff import difference
from habana_mp.policy.module_rules import problems_of
from habana_mp.policy.names import EVERY
from habana_mp.policy.precisions import dtype_meant
from habana_mp.policy.presets import Preset, hint_for, presets, presets_with
from habana_mp.run import explain
from habana_mp.run.speed import ratios

#: The lists of a preset.
_PARTS = ("lower", "fp32", "widest")

#: Modules that are only imported when they are needed, and that declare assumptions.
_WITH_ASSUMPTIONS = (
    "habana_mp.patches.tools.main_module",
    "habana_mp.patches.tools.spawned_processes",
    "habana_mp.patches.torch.reductions",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit status: 0 if all is well, 1 if something was found, 2 for wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["run"]:  # all but our own options belong to the script
        return _run_script(words[1:])
    if words[:1] == ["diagnose"]:
        return _diagnose_script(words[1:])
    if words[:1] == ["tune"]:
        return _tune_script(words[1:])
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


def _run_script(words: Sequence[str]) -> int:
    from habana_mp.run import command

    return command.main(words)


def _diagnose_script(words: Sequence[str]) -> int:
    from habana_mp.run import diagnose

    return diagnose.main(words)


def _tune_script(words: Sequence[str]) -> int:
    from habana_mp.run import tune

    return tune.main(words)


def _run(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="habana-mp", description="Mixed precision for PyTorch, steered by lists.")
    parser.add_argument("--version", action="version", version=f"habana-mp {habana_mp.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    lists = commands.add_parser(
        "lists",
        help="show the presets, or check list files",
        usage="habana-mp lists [PART]\n"
        "       habana-mp lists PRESET [--only LIST]\n"
        "       habana-mp lists check [--import MODULE] [--together] FILE...\n"
        "       habana-mp lists diff PRESET|FILE PRESET|FILE",
        epilog="Exit status: 0 all is well, 1 something was found, 2 wrong usage.",
    )
    lists.add_argument(
        "name", nargs="?", help='a preset to show, a part of the names of those to list, or "check", or "diff"'
    )
    lists.add_argument("files", nargs="*", help="list files to check")
    lists.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines operators which the files name; imported first",
    )
    lists.add_argument(
        "--together", action="store_true", help="the two files are the two lists of one convert: do they contradict?"
    )
    lists.add_argument(
        "--only",
        type=_part,
        choices=_PARTS,
        help="one list of the preset, as a list file to start your own from; a lower precision's name means `lower`",
    )
    commands.add_parser("run", help="run a script in mixed precision; `habana-mp run --help` tells more")
    commands.add_parser(
        "diagnose", help="which operations of a script are harmful; `habana-mp diagnose --help` tells more"
    )
    commands.add_parser(
        "tune", help="the lists with which a script is as good as in float32; `habana-mp tune --help` tells more"
    )
    explain_parser = explain.add_parser(commands)
    diff = commands.add_parser(
        "diff",
        help="what differs between two reports",
        epilog="Exit status: 0 the same, 1 something is new, gone, in another precision or for another reason, 2 wrong "
        "usage. How long calls took is told, and changes no status.",
    )
    diff.add_argument("a", help="a report as JSON, as `habana-mp run --report a.json` writes it")
    diff.add_argument("b", help="the report to compare with it")
    diff.add_argument("--json", action="store_true", help="tell it as JSON")
    doctor = commands.add_parser(
        "doctor", help="what is here: torch, devices, kernels, how fast bf16 is, what is covered"
    )
    doctor.add_argument(
        "--assumptions",
        action="store_true",
        help="what is taken for granted of the insides of torch, Python and libraries, and whether it holds here",
    )
    given, rest = parser.parse_known_args(arguments)
    # Words after an option may be files too: argparse fills `files` from one place only.
    strange = [word for word in rest if word.startswith("-") or given.command != "lists"]
    if strange:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if given.command == "doctor":
        return _show_assumptions() if given.assumptions else _doctor()
    if given.command == "explain":
        return explain.show(given, explain_parser)
    if given.command == "diff":
        return _diff(given.a, given.b, as_json=given.json)
    given.files += rest
    if given.name == "diff" and len(given.files) == 2 and not (given.modules or given.together or given.only):
        return _diff_lists(*given.files)
    if given.name == "diff":
        parser.error("lists diff takes two PRESETs or FILEs, and no options")
    if given.name == "check":
        if not given.files:
            parser.error("lists check needs at least one FILE")
        if given.together and len(given.files) != 2:
            parser.error("lists check --together needs two FILEs, one for each list")
        if given.only:
            parser.error("--only belongs to `lists PRESET`")
        if not _import(given.modules):
            return 1
        return _check(given.files, together=given.together)
    if given.modules or given.together:
        parser.error("--import and --together belong to `lists check FILE...`")
    if given.files:
        parser.error(f"lists takes one preset's name, or `check` and files; got {given.name} {' '.join(given.files)}")
    if given.only and not given.name:
        parser.error("--only needs a preset's name")
    if given.name is None:
        return _show_presets(presets().values())
    return _show_preset(given.name, given.only)


def _part(given: str) -> str:
    """Returns the list with this name, or the list of the precision with this name, such as `bf16`."""
    dtype = dtype_meant(given)
    return given if dtype is None else "fp32" if dtype is torch.float32 else "lower"


def _import(modules: Sequence[str]) -> bool:
    """Imports modules as a script in the working directory would. Prints the error and returns False if one fails."""
    if modules:
        sys.path.insert(0, "")
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # a user's module may raise anything when it is imported
            print(f"habana-mp: cannot import `{module}`: {type(error).__name__}: {error}", file=sys.stderr)
            return False
    return True


def _show_presets(shown: Collection[Preset]) -> int:
    width = max(len(preset.name) for preset in shown)
    for preset in shown:
        sizes = f"{len(preset.lower):>3} lower {len(preset.fp32):>3} fp32 {len(preset.widest):>3} widest"
        print(f"{preset.name:<{width}}  {sizes}  {preset.description}")
    return 0


def _show_preset(name: str, only: str | None) -> int:
    preset = presets().get(name)
    if preset is None and only is None and presets_with(name):
        return _show_presets(presets_with(name))
    if preset is None:
        file = "; `habana-mp lists check FILE...` checks files" if os.path.exists(name) else ""
        hint = file or hint_for(name)
        print(f"habana-mp: there is no preset `{name}`; `habana-mp lists` shows all{hint}", file=sys.stderr)
        return 2
    if only is not None:
        print(f"# {preset.name}, {only}")
        for one in getattr(preset, only):
            # In a list file a name means every call.
            print(f"# its matrix products only: {one.name}" if one.products_only else one.line_text)
        return 0
    print(f"{preset.name}: {preset.description}")
    for title in _PARTS:
        listed = getattr(preset, title)
        if listed:
            print(f"\n{title}:")
            for one in listed:
                when = " (its matrix products only)" if one.products_only else ""
                print(f"  {one.line_text:<31} {_meaning(one.name)}{when}")
    return 0


def _meaning(name: str) -> str:
    """Returns the objects of torch that a list name stands for."""
    if name == EVERY:
        return "every operation that computes"
    resolved = ops.resolve(name)
    if resolved is None:
        return f"- ({ops.EXPLAINED.get(name, 'not in this torch')})"
    places = []
    for operation in resolved.exact + resolved.family:
        places += [builtin.place for builtin in ops.builtins_named(operation)]
        composite = None if ops.builtins_named(operation) else ops.composite_named(operation)
        if composite is not None:
            places.append(composite.place)
    return ", ".join(places)


def _check(files: Sequence[str], *, together: bool) -> int:
    """Checks every name of each file, and with ``together`` that the two files agree. Returns the exit status."""
    status = 0
    fine = []
    for file in files:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                listed = read_list(file)
                problems = problems_of(listed)
            except (OSError, ValueError) as error:
                problems = [str(error)]
        if problems:
            print("\n".join(one if file in one else f"{file}: {one}" for one in problems))
            status = 1
            continue
        for warning in caught:
            print(warning.message)
        fine.append(listed)
        verdict = f"{len(caught)} without effect" if caught else "fine"
        print(f"{file}: {len(listed)} name{'s' if len(listed) != 1 else ''}, {verdict}")
        for one in listed:
            print(f"  {one.line:>4}  {one.line_text:<31} {_meaning(one.name)}")
    if together and status == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown above, file by file
            problems = problems_of(*fine)
        print("\n".join(problems) or "they do not contradict each other")
        status = 1 if problems else 0
    return status


def _diff(a: str, b: str, *, as_json: bool) -> int:
    try:
        found = hmp.compare(a, b)
    except (OSError, ValueError) as error:
        print(f"habana-mp: {error}", file=sys.stderr)
        return 2
    print(json.dumps(found.to_dict(), indent=1) if as_json else found)
    return 1 if found.differs else 0


def _diff_lists(a: str, b: str) -> int:
    try:
        lines = difference(a, b)
    except (OSError, ValueError) as error:
        print(f"habana-mp: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines) or "the same names in the same lists")
    return 1 if lines else 0


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
        kept = "kept" if _core.looks_inside() else "not kept: this torch or reader does not tell where tensors lie"
        print(f"weights       casts are {kept}")
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
    print("bf16          time of bf16 as a multiple of fp32's, below 1 is faster (best of 9):")
    for device in devices():
        for size, rows in ((64, 1), (256, 1), (1024, 1), (1024, 64), (1024, 1024)):
            plain, kept = ratios(device, size, rows)
            more = "" if kept is None else f"  by hmp {kept:6.2f}  {_verdict(kept)}"
            shape = f"linear {size}x{size},"
            print(f"  {device:<6} {shape:<17} batch {rows:<5} {plain:6.2f}  {_verdict(plain):<8}{more}")


def _verdict(ratio: float) -> str:
    return "faster" if ratio < 0.95 else "slower" if ratio > 1.05 else "the same"
