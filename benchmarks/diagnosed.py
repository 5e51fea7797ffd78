"""Diagnoses a healthy step of every architecture of transformers, small: there should be no finding.

    python benchmarks/diagnosed.py [--kinds causal,masked,...] [--only TYPE] [--presets recommended,hmp-default]

Prints each architecture with a finding, or that deviates from float32 by more than its own noise, and the counts. With
--all it prints the largest deviation of each, as a multiple of what is allowed.
"""

from __future__ import annotations

import argparse
import collections
import sys
import warnings
from pathlib import Path

import torch
from architectures import PARAMETERS, SECONDS, limited_to, place
from states import converted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from habana_mp import hmp
from helpers.architectures import KINDS, make_batch, make_model, pairs


def look(kind: str, model_type: str, preset: str, counts: collections.Counter[str], *, show_all: bool) -> None:
    name = f"{kind} {model_type}, {preset}"
    try:
        with limited_to(SECONDS):
            model = make_model(kind, model_type)
            if sum(one.numel() for one in model.parameters()) > PARAMETERS:
                return
            batch = make_batch(kind, model)
            torch.manual_seed(2)
            model(**batch).loss.backward()
            model.zero_grad()
    except Exception:  # it does not train in float32 either
        return
    counts["looked at"] += 1
    try:
        with converted(preset=preset), limited_to(4 * SECONDS):
            found = hmp.diagnose(lambda: model(**batch).loss)
    except Exception as error:
        print(f"{name}: {place(error)}", flush=True)
        counts["failed"] += 1
        return
    counts["healthy"] += found.healthy
    counts["with findings"] += bool(found.findings)
    if not found.healthy or show_all:
        what = max(found.excess, key=lambda one: found.excess[one], default="")
        print(f"{name}: {found.excess.get(what, 0):.2f} for {what}, {found.runs} runs", flush=True)
        for one in found.findings:
            print(f"    {one.text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--only", metavar="TYPE", help="one type of model, as transformers calls it")
    parser.add_argument("--presets", default="recommended,hmp-default", metavar="PRESET,...")
    parser.add_argument("--all", action="store_true", help="print the largest deviation of each")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    for kind, model_type in pairs(tuple(options.kinds.split(","))):
        if options.only in (None, model_type):
            for preset in options.presets.split(","):
                look(kind, model_type, preset, counts, show_all=options.all)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
