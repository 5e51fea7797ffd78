"""``habana-mp lists``: shows presets, checks list files, compares lists, and finds the lists that name an operation."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch

from habana_mp import ops
from habana_mp.ops.find import builtins_named, composite_named
from habana_mp.policy.lists import EVERY, Listed, read_list
from habana_mp.policy.module_rules import FROM_FILES, ModuleRules, rules_of
from habana_mp.policy.names import nearest
from habana_mp.policy.precisions import dtype_meant
from habana_mp.policy.presets import Preset, hint_for, preset_named, presets, presets_with
from habana_mp.run.options import imported

#: The lists of a preset.
_PARTS = ("lower", "fp32", "widest")
#: The list in a file that is compared by itself.
_FILE = "listed"

#: The operations that operators of Python call.
_OPERATORS = {"@": "matmul", "+": "add", "-": "sub", "*": "mul", "/": "div", "**": "pow"}

_COMMANDS = ("show", "check", "diff", "find", "--help")


def with_command(words: Sequence[str]) -> list[str]:
    """Returns the words with `show` after `lists` where no command follows, not even a misspelt one."""
    second = (*words, "", "")[1]
    is_command = second in (*_COMMANDS, "-h") or (get_close_matches(second, _COMMANDS) and not os.path.isdir(second))
    return list(words) if words[:1] != ["lists"] or is_command else ["lists", "show", *words[1:]]


def add_parser(commands: Any) -> None:
    """Adds the command to ``commands``, those of `argparse`."""
    parser = commands.add_parser(
        "lists",
        help="show presets, check or compare list files, find an operation in lists",
        epilog="`habana-mp lists NAME` means `habana-mp lists show NAME`. Exit status: 0 all is well, 1 something was "
        "found, 2 wrong usage.",
    )
    of_lists = parser.add_subparsers(dest="of_lists", required=True)
    show = of_lists.add_parser("show", help="all presets, or one with what its names stand for")
    show.add_argument("name", nargs="?", metavar="NAME", help="a preset, or a part of the names of those to list")
    show.add_argument(
        "--only",
        type=_part,
        choices=_PARTS,
        help="one list of the preset, as a list file to start your own from; a lower precision's name means `lower`",
    )
    show.set_defaults(run=lambda given: _show(given, show))
    check = of_lists.add_parser("check", help="whether torch knows each name of list files, and what it stands for")
    check.add_argument("files", nargs="+", metavar="FILE", help="a list file")
    check.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that defines operators which the files name; imported first",
    )
    check.add_argument(
        "--together", action="store_true", help="the two files are the two lists of one convert: do they contradict?"
    )
    check.set_defaults(run=lambda given: _check(given, check))
    diff = of_lists.add_parser("diff", help="the names that are in different lists")
    for one in ("a", "b"):
        diff.add_argument(one, metavar="PRESET|FILE", help="a preset, a list file, or two of them: bf16.txt,fp32.txt")
    diff.set_defaults(run=_diff)
    find = of_lists.add_parser("find", help="the presets that name an operation, and in which list")
    find.add_argument("operation", metavar="OPERATION", help="a name as in a list, softmax, or an operator, @")
    find.set_defaults(run=_find)


def _part(given: str) -> str:
    """Returns the list with this name, or the list of the precision with this name, such as `bf16`."""
    dtype = dtype_meant(given)
    return given if dtype is None else "fp32" if dtype is torch.float32 else "lower"


def _show(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    name = given.name
    if given.only is not None:
        if name is None:
            parser.error("--only needs a preset's name")
        preset = _preset(name)
        print(f"# {preset.name}, {given.only}")
        for one in getattr(preset, given.only):
            # In a list file a name means every call.
            print(f"# its matrix products only: {one.name}" if one.products_only else one.line_text)
        return 0
    shown = list(presets().values()) if name is None else [] if name in presets() else presets_with(name)
    if not shown:
        preset = _preset(name)
        print(f"{preset.name}: {preset.description}")
        for title in _PARTS:
            if listed := getattr(preset, title):
                print(f"\n{title}:")
            for one in listed:
                print(f"  {one.line_text:<31} {_meaning(one.name)}{_when(one)}")
    width = max((len(preset.name) for preset in shown), default=0)
    for preset in shown:
        sizes = f"{len(preset.lower):>3} lower {len(preset.fp32):>3} fp32 {len(preset.widest):>3} widest"
        print(f"{preset.name:<{width}}  {sizes}  {preset.description}")
    return 0


def _preset(name: str) -> Preset:
    if name not in presets() and not os.path.isdir(name):
        hint = "; `habana-mp lists check FILE...` checks files" if os.path.exists(name) else hint_for(name)
        raise ValueError(f"there is no preset `{name}`; `habana-mp lists` shows all{hint}")
    return preset_named(name)


def _when(one: Listed) -> str:
    return " (its matrix products only)" if one.products_only else ""


def _meaning(name: str) -> str:
    """Returns the objects of torch that a list name stands for."""
    if name == EVERY:
        return "every operation that computes"
    resolved = ops.resolve(name)
    if resolved is None:
        return f"- ({ops.EXPLAINED.get(name, 'not in this torch')})"
    places: list[Any] = []
    for operation in resolved.exact + resolved.family:
        places += builtins_named(operation) or filter(None, [composite_named(operation)])
    return ", ".join(one.place for one in places)


def _check(given: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Checks every name of each file, and with ``--together`` that the two files agree. Returns the exit status."""
    if given.together and len(given.files) != 2:
        parser.error("--together needs two FILEs, one for each list")
    try:
        for module in given.modules:
            imported(module)
    except ValueError as error:
        print(f"habana-mp: {error}", file=sys.stderr)
        return 1
    status = 0
    fine = []
    for file in given.files:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                listed = read_list(file)
                problems = _problems(listed)
            except ValueError as error:
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
    if given.together and status == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown above, file by file
            problems = _problems(*fine)
        print("\n".join(problems) or "they do not contradict each other")
        status = 1 if problems else 0
    return status


def _problems(lower: Sequence[Listed], fp32: Sequence[Listed] = ()) -> list[str]:
    return ModuleRules(rules_of(lower, fp32, "lower", FROM_FILES)).problems


def _diff(given: argparse.Namespace) -> int:
    lines = difference(given.a, given.b)
    print("\n".join(lines) or "the same names in the same lists")
    return 1 if lines else 0


def difference(a: str, b: str) -> list[str]:
    """Returns one line for each name that is in different lists."""
    of_a, of_b = _meanings(a), _meanings(b)
    both = [(*of_a[one], of_b[one][1]) for one in of_a if one in of_b]
    # A file by itself does not say which list it is.
    moved = sorted(one for one in both if one[1] != one[2] and _FILE not in one[1:])
    lines = [f"moved: {name}  {before} -> {after}" for name, before, after in moved]
    for title, these, those in ((a, of_a, of_b), (b, of_b, of_a)):
        only = sorted(these[one] for one in these.keys() - those.keys())
        lines += [f"only in {title}: {name}  {part}" for name, part in only]
    return lines


def _meanings(given: str) -> dict[object, tuple[str, str]]:
    """Returns the names in lists, as written, and their lists, by the meaning of the name."""
    found: dict[object, tuple[str, str]] = {}
    for part, listed in _lists_of(given).items():
        for one in listed:
            operations = _operations(one.name)
            meaning = (
                one.line_text
                if operations is None
                else (operations, one.products_only, one.pattern, one.float32_result)
            )
            found[meaning] = one.line_text, part
    return found


def _operations(name: str) -> frozenset[str] | None:
    """Returns the operations that a name stands for, however they are spelled; None if this torch knows none."""
    resolved = None if name == EVERY else ops.resolve(name)
    return None if resolved is None else frozenset(resolved.exact + resolved.family)


def _lists_of(given: str) -> dict[str, tuple[Listed, ...]]:
    """Returns the lists of a preset, of a list file, or of two files with a comma between: the lower list and the
    float32 list."""
    files = given.split(",")
    if given in presets() or os.path.isdir(given):
        preset = preset_named(given)
        return {part: getattr(preset, part) for part in _PARTS}
    if os.path.exists(given):
        return {_FILE: read_list(given)}
    if len(files) == 2:
        return {"lower": read_list(files[0]), "fp32": read_list(files[1])}
    raise ValueError(f"`{given}` is neither a preset, which `habana-mp lists` shows, nor a file{hint_for(given)}")


def _find(given: argparse.Namespace) -> int:
    """Prints the presets whose lines mean the operation, however they spell it, or one of a family with it."""
    operation = _OPERATORS.get(given.operation, given.operation)
    wanted = _operations(operation)
    if wanted is None:
        near = nearest(operation)
        raise ValueError(f"`{operation}` is no operation of this torch{f'; did you mean `{near}`?' if near else ''}")
    found = [
        (preset.name, part, one.line_text + _when(one))
        for preset in presets().values()
        for part in _PARTS
        for one in getattr(preset, part)
        if wanted & (_operations(one.name) or frozenset())
    ]
    width = max((len(name) for name, *_ in found), default=0)
    for name, part, line in found:
        print(f"{name:<{width}}  {part:<6}  {line}")
    if not found:
        print(f"no preset names `{operation}`")
    return 0 if found else 1
