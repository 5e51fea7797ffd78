"""Presets: the operation lists that ship with the package, under readable names."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from habana_mp import ops
from habana_mp._lists import DIRECTORY, Listed, read_list


@dataclass(frozen=True)
class Preset:
    """A named set of lists: what runs lower, what runs in float32, what goes to the widest input."""

    name: str
    description: str
    lower: tuple[Listed, ...] = ()
    fp32: tuple[Listed, ...] = ()
    widest: tuple[Listed, ...] = ()
    of_autocast: bool = False
    """Does it do what torch.autocast does, for which the name of a loss does not mean the loss's parts?"""


#: name: (description, lower, fp32, widest); the files of ``lists/`` without ``.txt``.
_FILES: dict[str, tuple[str, str, str, str]] = {
    "hmp-default": ("the default lists of HMP", "hmp_default_bf16", "hmp_default_fp32", ""),
    "hmp-guide-o1": ("the shorter O1 lists of HMP's first guide", "hmp_guide_o1_bf16", "hmp_guide_o1_fp32", ""),
    "hmp-guide-o2": ("the operations that HMP's first guide runs in bf16 under O2", "hmp_guide_o2_bf16", "", ""),
    "resnet50": ("the lists for ResNet50 in HMP's guide", "hmp_guide_resnet50_bf16", "hmp_guide_resnet50_fp32", ""),
    "hpu-autocast": (
        "what torch.autocast does on an HPU",
        "hpu_autocast_lower",
        "hpu_autocast_fp32",
        "hpu_autocast_promote",
    ),
    "torch-cpu": ("what torch.autocast does on a CPU", "torch_cpu_lower", "torch_cpu_fp32", "torch_cpu_promote"),
    "torch-cuda": ("what torch.autocast does on CUDA", "torch_cuda_lower", "torch_cuda_fp32", "torch_cuda_promote"),
    "torch-xpu": ("what torch.autocast does on an XPU", "torch_xpu_lower", "torch_xpu_fp32", "torch_xpu_promote"),
    "xpu-amp-bf16": ("AMP on XPU in bfloat16", "xpu_amp_bf16", "xpu_amp_fp32", "xpu_amp_promote"),
    "xpu-amp-fp16": ("AMP on XPU in float16", "xpu_amp_fp16", "xpu_amp_fp32", "xpu_amp_promote"),
}

#: What torch.autocast does in torch 2.13 beyond its documentation, from which the files are: (lower, fp32, widest).
_UNDOCUMENTED: dict[str, tuple[str, str, str]] = {
    "torch-cpu": ("_addmm_activation", "smooth_l1_loss", ""),
    "torch-cuda": (
        "_convolution conv_tbc convolution einsum linalg_vecdot scaled_dot_product_attention",
        """
            rms_norm huber_loss logsumexp upsample_nearest1d upsample_nearest2d upsample_nearest3d
            _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d
            upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa
        """,
        "vdot",
    ),
}

#: Folder names that tell nothing about the model.
_SILENT = {"pytorch", "habana", "benchmarks", "implementations", "training", "config", "hls-gaudi2-pt", "examples"}


def _file(name: str) -> tuple[Listed, ...]:
    if not name:
        return ()
    return tuple(
        Listed(one.name, f"{name}.txt", one.line, shipped=True) for one in read_list(DIRECTORY / f"{name}.txt")
    )


def _reached_inside(name: str) -> set[str]:
    """Operations in which a preset's torch.autocast meets the matrix products that torch makes of them; see
    `ops/products.py`. (The lists of CUDA and XPU name the others themselves.)"""
    if name == "torch-cpu":
        return {name for name, row in ops.rows().items() if row.made_of_products} | {"gru", "rnn_relu", "rnn_tanh"}
    return {"einsum"} if name == "torch-xpu" else set()


def _shipped(name: str) -> Preset:
    description, *files = _FILES[name]
    lists = [_file(file) for file in files]
    for index, more in enumerate(_UNDOCUMENTED.get(name, ())):
        lists[index] += tuple(Listed(one, f"the preset {name}", 0, shipped=True) for one in more.split())
    inside = sorted(_reached_inside(name))
    lists[0] += tuple(Listed(one, f"the preset {name}", 0, shipped=True, products_only=True) for one in inside)
    lower, fp32, widest = lists
    return Preset(name, description, lower, fp32, widest, of_autocast=name.startswith(("torch-", "hpu-", "xpu-")))


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
    return {**{name: _shipped(name) for name in _FILES}, **_model_presets()}


def preset_named(name: str) -> Preset:
    """The preset of that name."""
    known = presets()
    if not isinstance(name, str) or name not in known:
        shipped = ", ".join(one for one in known if not one.startswith("gaudi/"))
        raise ValueError(
            f"`preset` must be one of {shipped}, or a name that `habana-mp lists` shows; got {name!r}{hint_for(name)}"
        )
    return known[name]


def hint_for(name: object) -> str:
    """The preset that was meant, as the end of an error's text."""
    known = presets()
    near = [one for one in known if one == f"torch-{name}"] or difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


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
