"""``habana-mp lists diff``: the names that are in different lists in two presets or list files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from habana_mp import ops
from habana_mp.policy.lists import EVERY, Listed, read_list
from habana_mp.policy.presets import hint_for, preset_named, presets

#: The name of the list in a file that is compared by itself.
_FILE = "listed"

#: The names as written and their lists, by the meaning of the name.
_Meanings = dict[object, tuple[str, str]]


def difference(a: str, b: str) -> list[str]:
    """Returns one line for each difference. Each argument is a preset, a list file, or two list files separated by a
    comma: the lower list and the float32 list.

    Raises:
        OSError: a file that cannot be read.
        ValueError: an argument of another form, or a file that is not a list.
    """
    of_a, of_b = _meanings(a), _meanings(b)
    both = [meaning for meaning in of_a if meaning in of_b]
    moved = [(of_a[one][0], of_a[one][1], of_b[one][1]) for one in both if not _agree(of_a[one][1], of_b[one][1])]
    lines = [f"moved: {name}  {before} -> {after}" for name, before, after in sorted(moved)]
    for title, names in ((a, _only(of_a, of_b)), (b, _only(of_b, of_a))):
        lines += [f"only in {title}: {name}  {part}" for name, part in names]
    return lines


def _agree(a: str, b: str) -> bool:
    """True if the lists are the same, or one of them is a file by itself, which does not say which list it is."""
    return a == b or _FILE in (a, b)


def _only(these: _Meanings, those: _Meanings) -> list[tuple[str, str]]:
    return sorted(value for meaning, value in these.items() if meaning not in those)


def _meanings(given: str) -> _Meanings:
    return {_meaning(one): (one.line_text, part) for part, listed in _parts(given) for one in listed}


def meaning_of(name: str) -> frozenset[str] | None:
    """Returns the operations that a name stands for, however they are spelled; None if this torch knows none."""
    resolved = None if name == EVERY else ops.resolve(name)
    return None if resolved is None else frozenset(resolved.exact + resolved.family)


def _meaning(one: Listed) -> object:
    operations = meaning_of(one.name)
    return one.line_text if operations is None else (operations, one.products_only, one.pattern, one.float32_result)


def _parts(given: str) -> Iterable[tuple[str, Sequence[Listed]]]:
    if given in presets() or os.path.isdir(given):
        preset = preset_named(given)
        return [("lower", preset.lower), ("fp32", preset.fp32), ("widest", preset.widest)]
    if os.path.exists(given):
        return [(_FILE, read_list(given))]
    files = given.split(",")
    if len(files) == 2:
        return [("lower", read_list(files[0])), ("fp32", read_list(files[1]))]
    raise ValueError(f"`{given}` is neither a preset, which `habana-mp lists` shows, nor a file{hint_for(given)}")
