"""The lists of ``convert``: those in force, and those that decided about calls which the report still counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from habana_mp import _core
from habana_mp.policy.lists import Listed
from habana_mp.policy.module_rules import Decided, ModuleRules

#: The lines of the last configurations: those that hold everywhere, and those that hold in some modules.
_lists: deque[tuple[Decided, ModuleRules]] = deque(maxlen=16)


class _InForce:
    described: Mapping[str, Any] | None = None


def set_configuration(plain: Decided, in_modules: ModuleRules, described: Mapping[str, Any] | None) -> None:
    """These lists, and earlier ones, decide about what is counted from now on."""
    _InForce.described = described
    if not _core.counts():  # the earlier lists decided about no row
        _lists.clear()
    for one in list(_lists):
        if (one[0], one[1].rules) == (plain, in_modules.rules):
            _lists.remove(one)
    _lists.append((plain, in_modules))


def clear_configuration() -> None:
    """No lists are in force. Those that were stay known, for the rows that they decided."""
    _InForce.described = None


def configuration() -> Mapping[str, Any] | None:
    """Returns the arguments of ``convert`` and what they came to; None if it is not in force."""
    return _InForce.described


def forget_earlier_lists() -> None:
    """Keeps the last lists only: no row is left that earlier ones decided."""
    while len(_lists) > 1:
        _lists.popleft()


def lines_about(operation: str, precision: str | None, module: str | None) -> list[Listed]:
    """Returns the lines that give an operation this precision, or any if it is None: in a module at this path, as the
    report shows it, or outside of modules if it is empty. None: in an unknown module, or in none."""
    # Another thread may convert meanwhile, and append: the list is copied at once.
    found = (line for lists in list(_lists) for line in _lines_of(*lists, operation, module))
    return list(dict.fromkeys(listed for given, listed in found if precision in (None, given)))


def _lines_of(everywhere: Decided, rules: ModuleRules, operation: str, module: str | None) -> list[tuple[str, Listed]]:
    plain = [everywhere[operation]] if operation in everywhere else []
    if module == "":
        return plain
    if module is None or not rules:
        return [*plain, *rules.lines_about(operation)]
    root, *path = module.rpartition("<")[2].replace(">", "").split(".")  # from a module that no other one holds
    decided, _ = rules.decided([rules.match([tuple(path)], [root.partition("#")[0]])])
    return [decided[operation]] if operation in decided else plain
