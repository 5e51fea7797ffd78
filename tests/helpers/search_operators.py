"""Finds out how each operator of torch can be called with arguments made from its schema, and writes two files.

    cd tests && python -m helpers.search_operators

Torch does not check all arguments: arguments that fit a schema, but nothing else, can crash it. So the search runs in a
child process, and continues after an operator that ends the process. It takes several minutes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from helpers import operators
from helpers.operators import Way, way_of

#: The longest processor time in seconds of the search for one argument.
MOST_SECONDS = 0.06

#: With these variables the C library ends a process that has written outside of its memory.
CHECKED = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3"}

NO_KERNEL = "no kernel for tensors in the memory of the CPU"
CRASHES = "torch crashes with arguments that are made from the schema"


def ways() -> dict[str, list[str]]:
    """Returns for each operator the ways to call it with a weight as each of its tensors; ``-`` if this is not
    possible."""
    if not operators.WAYS.exists():
        return {}
    rows = (line.split() for line in operators.WAYS.read_text().splitlines())
    return {name: ways for name, *ways in rows}


def release_of_files() -> str:
    """Returns the release of torch for which the files were written."""
    return operators.NOT_CALLED.read_text().split("\n")[0].removeprefix("# torch ")


def not_called() -> dict[str, str]:
    """Returns the reasons why operators are not called, by operator and argument."""
    found: dict[str, str] = {}
    reason = ""
    for line in operators.NOT_CALLED.read_text().splitlines():
        if line.startswith("# "):
            reason = line.removeprefix("# ")
        elif line:
            found[line] = reason
    return found


def ways_to_call(schema: Any, position: int, hints: str) -> str:
    """Returns the ways to call an operator, with commas between, or the reason why no way was found.

    One way is enough for an operator that neither writes nor returns views. For others the size or format may matter.
    """
    try:
        operator = operators.operator_of(schema)
    except AttributeError:
        return "torch.ops does not have it"
    most = 8 if any(one.alias_info is not None for one in schema.arguments) else 1
    begin = time.process_time()
    reason = "not tried"
    found: dict[tuple[int, int], Way] = {}
    for way in [*(way_of(hint) for hint in hints.split(",") if hint != "-"), *operators.all_ways()]:
        if len(found) == most or time.process_time() - begin > MOST_SECONDS:
            break
        if (way.shape, way.variant) in found or (found and way.shape > 1):
            continue
        try:
            values, named = operators.arguments(schema, position, way, operators.subject_of(way))
        except NotImplementedError as error:
            return str(error)
        try:
            with torch.no_grad():
                operator(*values, **named)
        except Exception as error:
            if "Could not run" in str(error):
                return NO_KERNEL
            reason = f"{type(error).__name__}: {error}"
        else:
            found[way.shape, way.variant] = way
    if found:
        return ",".join(map(str, found.values()))
    return re.sub(r"[0-9a-fx]*[0-9][0-9a-fx]*", "N", " ".join(reason.split("\n")[0].split()))[:80].strip()


def work(path: Path, first: int) -> None:
    """Writes the results for the operators from ``first`` on. A row is written before its call, in case of a crash."""
    hints = ways()
    with path.open("a") as file:
        for number, schema in enumerate(operators.schemas()):
            if number < first:
                continue
            positions = operators.tensor_arguments(schema)
            given = hints.get(operators.name_of(schema), ["-"] * len(positions))
            for position, hint in zip(positions, given, strict=True):
                print(json.dumps([number, position, CRASHES]), file=file, flush=True)
                print(json.dumps([number, position, ways_to_call(schema, position, hint)]), file=file, flush=True)
        print(json.dumps(None), file=file, flush=True)


def search(path: Path) -> dict[tuple[int, int], str]:
    """Returns the ways or the reasons, by the numbers of operator and argument."""
    path.write_text("")
    first = 0
    while True:
        child = os.fork()
        if child == 0:
            try:
                work(path, first)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if rows[-1] is None:
            return {(number, position): found for number, position, found in filter(None, rows)}
        print(operators.name_of(operators.schemas()[rows[-1][0]]), CRASHES, flush=True)
        first = rows[-1][0] + 1


def is_way(found: str) -> bool:
    return re.fullmatch(r"\d[a-z01]\d(,\d[a-z01]\d)*", found) is not None


def main() -> None:
    if "MALLOC_CHECK_" not in os.environ:
        os.execve(sys.executable, [sys.executable, "-m", __spec__.name], {**os.environ, **CHECKED})
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = search(Path(folder) / "rows")
    called, missing = [], defaultdict(list)
    for number, schema in enumerate(operators.schemas()):
        positions = operators.tensor_arguments(schema)
        answers = [found.get((number, position), CRASHES) for position in positions]
        name = operators.name_of(schema)
        if any(map(is_way, answers)):
            called.append(" ".join([name, *(one if is_way(one) else "-" for one in answers)]))
        for position, answer in zip(positions, answers, strict=True):
            if not is_way(answer):
                missing[answer].append(f"{name} {schema.arguments[position].name}")
    operators.WAYS.write_text("\n".join(called) + "\n")
    write_not_called(missing)


def write_not_called(by_reason: dict[str, list[str]]) -> None:
    lines = [f"# torch {torch.__version__.partition('+')[0]}"]
    for reason, names in sorted(by_reason.items()):
        lines += ["", f"# {reason}", *sorted(names)]
    operators.NOT_CALLED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
