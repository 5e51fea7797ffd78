"""Python scripts that a script starts by `subprocess`: another module runs them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from habana_mp.common.paths import OF_PYTHON, is_installed

#: Options of Python with a value behind them.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def run_by(words: Sequence[str]) -> list[subprocess.Popen[Any]]:
    """From now on, scripts of the user's that this Python starts run by ``python WORDS... [-m] SCRIPT ...``. Returns a
    list to which those processes are added that are ranks of this program."""
    kind: Any = subprocess.Popen
    original = kind.__init__
    ranks: list[subprocess.Popen[Any]] = []

    def start(self: Any, args: Any, *others: Any, **keywords: Any) -> None:
        is_plain = not others and not keywords.get("shell") and keywords.get("executable") is None
        found = _script_in(args, keywords.get("cwd")) if is_plain else 0
        if found:
            args = [*args[:found], *words, *args[found:]]
        original(self, args, *others, **keywords)
        if found and "LOCAL_RANK" in (keywords.get("env") or os.environ):
            ranks.append(self)

    kind.__init__ = start
    return ranks


def _script_in(args: Any, folder: Any) -> int:
    """Returns the place of the script, or of ``-m``, in a command that runs a script of the user's; 0 for others."""
    if not isinstance(args, list | tuple) or not all(isinstance(one, str) for one in args) or not _is_python(args[:1]):
        return 0
    at = 1
    while at < len(args) and args[at].startswith("-") and args[at] not in ("-m", "-c", "-"):
        at += 2 if args[at] in _WITH_VALUE else 1
    if at + (args[at:] == ["-m"]) >= len(args):
        return 0
    if args[at] == "-m":
        return at if _is_module_of_user(args[at + 1]) else 0
    path = os.path.join(folder or os.getcwd(), args[at])
    return at if os.path.isfile(path) and _is_of_user(path) else 0


def _is_python(words: Sequence[str]) -> bool:
    """True for this interpreter, by any of its names."""
    found = shutil.which(words[0]) if words else None
    return found is not None and os.path.dirname(os.path.abspath(found)) == os.path.dirname(sys.executable)


def _is_module_of_user(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if found is None or found.origin in ("built-in", "frozen"):
        return False
    places = [*(found.submodule_search_locations or ()), *filter(None, [found.origin])]
    return all(map(_is_of_user, places))


def _is_of_user(path: str) -> bool:
    real = os.path.realpath(path)
    return not is_installed(real) and not real.startswith(OF_PYTHON)
