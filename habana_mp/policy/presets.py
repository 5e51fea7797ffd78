"""Presets: the operation lists that ship with the package, under readable names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from habana_mp import ops
from habana_mp.policy.lists import DIRECTORY, Listed, read_list


@dataclass(frozen=True)
class Preset:
    """A named set of lists: what runs lower, what runs in float32, what goes to the widest input."""

    name: str
    description: str
    lower: tuple[Listed, ...] = ()
    fp32: tuple[Listed, ...] = ()
    widest: tuple[Listed, ...] = ()
    leaves_points: bool = False
    """It does not mean products of three terms without a Parameter in the forward of a module, which turn points."""
    of_autocast: bool = False
    """Does it do what torch.autocast does, for which the name of a loss does not mean the loss's parts?"""


#: Folder names that tell nothing about the model.
_SILENT = {"pytorch", "habana", "benchmarks", "implementations", "training", "config", "hls-gaudi2-pt", "examples"}


#: What each list of a preset's file is called there; see CONTRIBUTING.md.
_PARTS = ("lower", "fp32", "widest")

#: So many names an error suggests.
_SHOWN = 5

#: Stands, among ``products_inside``, for whatever torch makes of matrix products.
_WHATEVER_HOLDS_PRODUCTS = "*"


def _listed(item: str, preset: str) -> tuple[Listed, ...]:
    """The names of a list file, or one name."""
    if not item.endswith(".txt"):
        return (Listed(item, f"the preset {preset}", 0, shipped=True),)
    return tuple(Listed(one.name, item, one.line, shipped=True) for one in read_list(DIRECTORY / item))


def _products_inside(items: Iterable[str]) -> list[str]:
    """Operations in which a preset's torch.autocast meets the matrix products that torch makes of them; see
    `ops/products.py`. (The lists of CUDA and XPU name others themselves.)"""
    names = set(items)
    if _WHATEVER_HOLDS_PRODUCTS in names:
        names |= {name for name, row in ops.rows().items() if row.made_of_products}
    return sorted(names - {_WHATEVER_HOLDS_PRODUCTS})


def _shipped(name: str, content: dict[str, Any]) -> Preset:
    lists = {part: tuple(one for item in content.get(part, ()) for one in _listed(item, name)) for part in _PARTS}
    inside = _products_inside(content.get("products_inside", ()))
    lists["lower"] += tuple(Listed(one, f"the preset {name}", 0, shipped=True, products_only=True) for one in inside)
    return Preset(
        name,
        content["description"],
        **lists,
        leaves_points=content.get("leaves_points", False),
        of_autocast=content.get("of_autocast", False),
    )


def _shipped_presets() -> dict[str, Preset]:
    """Of each file in ``lists/presets``, in their order."""
    files = sorted((DIRECTORY / "presets").glob("*.json"))
    contents = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    names = sorted(contents, key=lambda name: contents[name].get("order", len(contents)))
    return {name: _shipped(name, contents[name]) for name in names}


@dataclass(frozen=True)
class _ModelList:
    """One list of a model of the Gaudi model garden."""

    folder: str
    stem: str
    kind: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    listed: tuple[Listed, ...]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _model_list(entry: dict[str, Any]) -> _ModelList:
    folder, _, file = entry["model"].rpartition("/")
    stem = file.removesuffix(".txt").removeprefix(f"ops_{entry['kind']}").lstrip("_")
    first, _, last = entry["releases"].partition("..")
    listed = tuple(Listed(name, entry["model"], 0, shipped=True) for name in entry["ops"])
    return _ModelList(folder, stem, entry["kind"], _version(first), _version(last), listed)


def _readable(folder: str, stem: str) -> str:
    parts = [part for part in folder.lower().split("/") if part not in _SILENT]
    if stem and stem.lower() not in parts:
        parts.append(stem.lower())
    return "/".join(["gaudi", *parts])


def _model_presets() -> dict[str, Preset]:
    """A preset for each pair of lists of one model that shipped together; ``@release`` tells older pairs apart."""
    entries = [_model_list(entry) for entry in json.loads((DIRECTORY / "gaudi_model_lists.json").read_text("utf-8"))]
    groups: dict[tuple[str, str], list[_ModelList]] = {}
    for entry in entries:
        groups.setdefault((entry.folder, entry.stem), []).append(entry)
    presets: dict[str, Preset] = {}
    for (folder, stem), group in groups.items():
        lower = [entry for entry in group if entry.kind == "bf16"]
        fp32 = [entry for entry in group if entry.kind == "fp32"]
        pairs = sorted(
            (
                (max(a.first, b.first), min(a.last, b.last), a, b)
                for a in lower
                for b in fp32
                if max(a.first, b.first) <= min(a.last, b.last)
            ),
            key=lambda pair: pair[0],
        )
        for index, (first, last, a, b) in enumerate(pairs):
            base = _readable(folder, stem)
            name = base if index == len(pairs) - 1 else f"{base}@{_dotted(first)}"
            description = f"{folder}, releases {_dotted(first)} to {_dotted(last)}"
            presets[name] = Preset(name, description, a.listed, b.listed)
    return presets


@cache
def presets() -> dict[str, Preset]:
    """All presets by name."""
    return {**_shipped_presets(), **_model_presets()}


def preset_named(name: str) -> Preset:
    """The preset of that name."""
    known = presets()
    if not isinstance(name, str) or name not in known:
        shipped = ", ".join(one for one in known if not one.startswith("gaudi/"))
        raise ValueError(
            f"`preset` must be one of {shipped}, or a name that `habana-mp lists` shows; got {name!r}{hint_for(name)}"
        )
    return known[name]


def presets_with(part: str) -> list[Preset]:
    """The presets in whose names this is, in letters of either size."""
    return [preset for name, preset in presets().items() if part.lower() in name]


def hint_for(name: object) -> str:
    """The preset that was meant, or those that may be, as the end of an error's text."""
    known = presets()
    near = [one for one in known if one == f"torch-{name}"]
    if not near and isinstance(name, str) and name:
        near = sorted((preset.name for preset in presets_with(name)), key=lambda one: "@" in one)  # older ones last
    near = near or difflib.get_close_matches(str(name), known, n=1)
    if len(near) <= 1:
        return f"; did you mean {near[0]!r}?" if near else ""
    shown = ", ".join(map(repr, near[:_SHOWN]))
    rest = f" or another of the {len(near)} that `habana-mp lists {name}` shows" if len(near) > _SHOWN else ""
    return f"; did you mean {shown}{rest}?"


def with_own(lists: Preset, lower: tuple[Listed, ...] | None, fp32: tuple[Listed, ...] | None) -> tuple[Preset, Preset]:
    """What stays of a preset, and the user's own lists, each of which replaces its side of the preset."""
    own = Preset("", "")
    if lower is not None:
        lists, own = replace(lists, lower=()), replace(own, lower=lower)
    if fp32 is not None:
        lists, own = replace(lists, fp32=()), replace(own, fp32=fp32)
    return lists, own


@cache
def shipped_names() -> frozenset[str]:
    """Every operation name in any shipped list: names that users wrote, whether or not this torch has them."""
    return frozenset(
        listed.name
        for preset in presets().values()
        for part in (preset.lower, preset.fp32, preset.widest)
        for listed in part
    )
