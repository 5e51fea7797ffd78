"""Presets: the operation lists that ship with the package, under readable names."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import torch
from torch.torch_version import TorchVersion

from habana_mp import ops
from habana_mp.common.errors import ListError
from habana_mp.policy.lists import DIRECTORY, Listed, is_list_file, parse_line, read_list

#: The code in which lists may lower.
MODULES, EVERYWHERE = "modules", "everywhere"
FP32, AS_COMPUTED = "fp32", "as computed"


@dataclass(frozen=True)
class Preset:
    """A named set of lists: what runs in lower precision, what in float32, and what in the widest input's precision."""

    name: str
    description: str
    lower: tuple[Listed, ...] = ()
    fp32: tuple[Listed, ...] = ()
    widest: tuple[Listed, ...] = ()
    operands: Mapping[str, str] | None = None
    """If its products follow their operands, and no list decides: the other operations that are computed in float32 and
    rounded once on a CPU, with the precisions in which torch is slow with them."""
    of_autocast: bool = False
    """True if it does what torch.autocast does: there the name of a loss does not mean the parts of the loss."""
    within: str = EVERYWHERE
    """The code in which its lists lower unless ``convert`` says so: ``"modules"`` or ``"everywhere"``."""
    results: str = AS_COMPUTED
    """The precision of what leaves a model unless ``convert`` says so: ``"fp32"`` or ``"as computed"``."""


#: Folder names that say nothing about the model.
_SILENT = {"pytorch", "habana", "benchmarks", "implementations", "training", "config", "hls-gaudi2-pt", "examples"}


#: The keys of the lists in a preset's file; see CONTRIBUTING.md.
_PARTS = ("lower", "fp32", "widest")

#: The file of the lower list in a folder of lists, the first one that is there, and the one that says where they lower.
_LOWER_FILES = ("bf16.txt", "fp16.txt")
WITHIN_FILE = "within.txt"

#: The most names that an error suggests.
_SHOWN = 5

#: In ``products_inside``, stands for all operations that torch composes of matrix products.
_WHATEVER_HOLDS_PRODUCTS = "*"


def _listed(item: str, preset: str) -> tuple[Listed, ...]:
    """Returns the names of a list file, or one name."""
    if not item.endswith(".txt"):
        return (parse_line(item, f"the preset {preset}", 0, shipped=True),)
    return tuple(replace(one, source=item, shipped=True) for one in read_list(DIRECTORY / item))


def _products_inside(items: Iterable[str]) -> list[str]:
    """Returns the operations that torch composes of matrix products which this preset's torch.autocast casts; see
    `ops/products.py`. (The lists of CUDA and XPU name others directly.)"""
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
        operands=content.get("operands"),
        of_autocast=content.get("of_autocast", False),
        within=content.get("within", EVERYWHERE),
        results=content.get("results", AS_COMPUTED),
    )


def _shipped_presets() -> dict[str, Preset]:
    """Returns the preset of each file in ``lists/presets``, in their order, and then those of releases of torch."""
    files = sorted((DIRECTORY / "presets").glob("*.json"))
    contents = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    names = sorted(contents, key=lambda name: contents[name].get("order", len(contents)))
    pinned = {name: _of_releases(name, contents[name]) for name in names if "releases" in contents[name]}
    shipped = [_of_running(name, pinned[name]) if name in pinned else _shipped(name, contents[name]) for name in names]
    return {one.name: one for one in (*shipped, *(one for releases in pinned.values() for one in releases.values()))}


def _of_releases(name: str, content: dict[str, Any]) -> dict[str, Preset]:
    """Returns the preset in each release of torch that its file has: a release adds to the lists of those before it."""
    found = {}
    described = content["description"]
    for release, added in content["releases"].items():
        lists = {part: [*content[part], *names] for part, names in added.items()}
        content = {**content, **lists, "description": f"{described} in torch {release}"}
        found[release] = _shipped(f"{name}@{release}", content)
    return found


def _of_running(name: str, pinned: dict[str, Preset]) -> Preset:
    """Returns the lists of the newest release that is not newer than the torch that runs."""
    *_, preset = (preset for release, preset in pinned.items() if torch.__version__ >= release)
    return replace(preset, name=name)


def _model_presets() -> dict[str, Preset]:
    """Returns a preset for each pair of lists that shipped together for a model in the Gaudi model garden. Older pairs
    have an ``@release``."""
    lists: dict[tuple[str, str], dict[str, list[tuple[TorchVersion, TorchVersion, tuple[Listed, ...]]]]] = {}
    for entry in json.loads((DIRECTORY / "gaudi_model_lists.json").read_text("utf-8")):
        folder, _, file = entry["model"].rpartition("/")
        stem = file.removesuffix(".txt").removeprefix(f"ops_{entry['kind']}").lstrip("_").lower()
        first, last = map(TorchVersion, entry["releases"].split(".."))
        listed = tuple(Listed(name, entry["model"], 0, shipped=True) for name in entry["ops"])
        lists.setdefault((folder, stem), {"bf16": [], "fp32": []})[entry["kind"]].append((first, last, listed))
    found: dict[str, Preset] = {}
    for (folder, stem), of_model in lists.items():
        parts = [part for part in folder.lower().split("/") if part not in _SILENT]
        base = "/".join(["gaudi", *parts, *([stem] if stem and stem not in parts else [])])
        pairs = [(max(a[0], b[0]), min(a[1], b[1]), a[2], b[2]) for a, b in product(*of_model.values())]
        together = sorted((pair for pair in pairs if pair[0] <= pair[1]), key=lambda pair: pair[0])
        for first, last, lower, fp32 in together:
            name = base if first == together[-1][0] else f"{base}@{first}"
            found[name] = Preset(name, f"{folder}, releases {first} to {last}", lower, fp32)
    return found


@cache
def presets() -> dict[str, Preset]:
    """Returns all presets by name."""
    return {**_shipped_presets(), **_model_presets()}


def preset_named(name: str) -> Preset:
    """Returns the preset of that name, or the lists in the folder with that path. Raises ValueError for an unknown
    name, and OSError if a file of the folder cannot be read."""
    known = presets()
    if isinstance(name, str) and name not in known and os.path.isdir(name):
        return _of_folder(name)
    if not isinstance(name, str) or name not in known:
        shipped = ", ".join(one for one in known if "/" not in one and "@" not in one)
        is_file = is_list_file(name)
        hint = "; for a list file write `bf16_file_path=` or `fp32_file_path=`" if is_file else hint_for(name)
        raise ValueError(
            f"`preset` must be one of {shipped}, or a name that `habana-mp lists` shows; got {name!r}{hint}"
        )
    return known[name]


def _of_folder(folder: str) -> Preset:
    """Returns the lists that `hmp.tune` writes into a folder, or a user by hand."""
    lower = next((name for name in _LOWER_FILES if os.path.isfile(os.path.join(folder, name))), _LOWER_FILES[0])
    lists = [read_list(os.path.join(folder, name)) for name in (lower, "fp32.txt")]
    within = _within_of_file(os.path.join(folder, WITHIN_FILE))
    return Preset(folder, f"the lists in {folder}", lower=lists[0], fp32=lists[1], within=within)


def _within_of_file(path: str) -> str:
    """Returns the word in the file; the default if there is no such file. Raises ListError for another word."""
    if not os.path.isfile(path):
        return EVERYWHERE
    words = read_list(path)
    for word in words:
        if word.name not in (MODULES, EVERYWHERE) or len(words) > 1:
            raise ListError(f"{word.where}: it must be one line, `{MODULES}` or `{EVERYWHERE}`; got `{word.line_text}`")
    return words[0].name if words else EVERYWHERE


def presets_with(part: str) -> list[Preset]:
    """Returns the presets whose names contain this text, in upper or lower case."""
    return [preset for name, preset in presets().items() if part.lower() in name]


def hint_for(name: object) -> str:
    """Returns the end of an error's text that names the presets that may be meant, or an empty text."""
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


@cache
def shipped_names() -> frozenset[str]:
    """Returns every operation name in the shipped lists: names that users wrote, even if this torch lacks them."""
    return frozenset(
        listed.name
        for preset in presets().values()
        for part in (preset.lower, preset.fp32, preset.widest)
        for listed in part
    )
