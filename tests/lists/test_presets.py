"""The lists and presets that are shipped: each can be read, and each name leads somewhere."""

from __future__ import annotations

import json
import warnings

from habana_mp import HmpWarning, hmp, ops
from habana_mp.ops.find import builtins_named, composite_named
from habana_mp.policy import presets
from habana_mp.policy.lists import DIRECTORY, read_list
from helpers.each import each

MODEL_LISTS = json.loads((DIRECTORY / "gaudi_model_lists.json").read_text("utf-8"))


def test_the_model_lists_are_all_there() -> None:
    assert len(MODEL_LISTS) == 92
    assert len({name for entry in MODEL_LISTS for name in entry["ops"]}) == 123


@each("name", sorted(presets.presets()))
def test_every_preset_loads(name: str) -> None:
    preset = presets.presets()[name]
    assert preset.description
    assert preset.lower or preset.fp32 or preset.operands
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        hmp.convert(preset=name)
    assert hmp.is_converted()


def test_every_model_list_is_in_a_preset() -> None:
    in_presets = {
        (side, tuple(one.name for one in listed))
        for preset in presets.presets().values()
        for side, listed in (("bf16", preset.lower), ("fp32", preset.fp32))
    }
    missing = [entry["model"] for entry in MODEL_LISTS if (entry["kind"], tuple(entry["ops"])) not in in_presets]
    assert missing == []


def test_every_shipped_name_leads_to_torch_or_is_explained() -> None:
    names = {one.name for file in DIRECTORY.glob("*.txt") for one in read_list(file)}
    names |= {name for entry in MODEL_LISTS for name in entry["ops"]}
    assert names <= presets.shipped_names() | names
    unexplained = []
    for name in sorted(names):
        resolved = ops.resolve(name)
        if resolved is None:
            if name not in {*ops.EXPLAINED, "cholesky", "qr"}:  # the two are gone from torch 2.15
                unexplained.append(name)
        else:
            for one in resolved.exact:
                assert builtins_named(one) or composite_named(one), name
    assert unexplained == []
