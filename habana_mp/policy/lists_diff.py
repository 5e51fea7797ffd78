"""``habana-mp lists diff``: which names two presets, or list files, have in other lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from habana_mp import ops
from habana_mp.policy.lists import Listed, read_list
from habana_mp.policy.presets import Preset, hint_for, presets

#: What a list is called where a file of its own has no part to play.
_FILE = "listed"

#: By what a name means: the name as it is written, and the list that it is in.
_Meanings = dict[object, tuple[str, str]]


def difference(a: str, b: str) -> list[str]:
    """What differs, a line each; none where nothing does. Each is a preset, a list file, or two list files with a comma
    between: the lower list and the float32 list.

    Raises:
        OSError: a file that cannot be read.
        ValueError: a name that is none of these, or a file that is no list.
    """
    of_a, of_b = _meanings(a), _meanings(b)
    both = [meaning for meaning in of_a if meaning in of_b]
    moved = [(of_a[one][0], of_a[one][1], of_b[one][1]) for one in both if not _agree(of_a[one][1], of_b[one][1])]
    lines = [f"moved: {name}  {before} -> {after}" for name, before, after in sorted(moved)]
    for title, names in ((a, _only(of_a, of_b)), (b, _only(of_b, of_a))):
        lines += [f"only in {title}: {name}  {part}" for name, part in names]
    return lines


def _agree(a: str, b: str) -> bool:
    """A file by itself does not say which list it is."""
    return a == b or _FILE in (a, b)


def _only(these: _Meanings, those: _Meanings) -> list[tuple[str, str]]:
    return sorted(value for meaning, value in these.items() if meaning not in those)


def _meanings(given: str) -> _Meanings:
    return {_meaning(one): (one.name, part) for part, listed in _parts(given) for one in listed}


def _meaning(one: Listed) -> object:
    """Names that stand for the same operations are the same, however they are spelled."""
    resolved = ops.resolve(one.name)
    return one.name if resolved is None else (frozenset(resolved.exact + resolved.family), one.products_only)


def _parts(given: str) -> Iterable[tuple[str, Sequence[Listed]]]:
    preset: Preset | None = presets().get(given)
    if preset is not None:
        return [("lower", preset.lower), ("fp32", preset.fp32), ("widest", preset.widest)]
    if os.path.exists(given):
        return [(_FILE, read_list(given))]
    files = given.split(",")
    if len(files) == 2:
        return [("lower", read_list(files[0])), ("fp32", read_list(files[1]))]
    raise ValueError(f"`{given}` is neither a preset, which `habana-mp lists` shows, nor a file{hint_for(given)}")
