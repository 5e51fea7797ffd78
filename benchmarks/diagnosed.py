"""Diagnoses a healthy step of a small model of every architecture of transformers. No finding is expected.

    python benchmarks/diagnosed.py [--kinds causal,masked,...] [--only TYPE] [--presets recommended,hmp-default]
    python benchmarks/diagnosed.py --cost

Prints the counts, and each architecture that has a finding or deviates from float32 by more than its own noise. With
--all it prints the largest deviation of each architecture, as a multiple of the allowed deviation. --cost instead
measures the time and the memory of a diagnosis, as multiples of those of the step.
"""

from __future__ import annotations

import argparse
import collections
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from architectures import PARAMETERS, SECONDS, limited_to, place
from states import converted
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

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


def bert() -> Callable[[], torch.Tensor]:
    model = BertForMaskedLM(
        BertConfig(vocab_size=8192, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
    )
    words, labels = torch.randint(0, 8192, (8, 128)), torch.randint(0, 8192, (8, 128))
    return lambda: model(words, labels=labels).loss


def llama() -> Callable[[], torch.Tensor]:
    sizes = {"hidden_size": 512, "intermediate_size": 1376, "num_hidden_layers": 6, "num_attention_heads": 8}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8192, **sizes))
    words = torch.randint(0, 8192, (8, 128))
    return lambda: model(words, labels=words).loss


COSTS = {"bert": bert, "llama": llama}


def measure(name: str, what: str) -> None:
    """Measures a step or a diagnosis. Prints its seconds, and the bytes of its peak of memory above the model's
    memory."""
    step = COSTS[name]()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with converted(preset="recommended"):
        times = []
        for _ in range(6):
            begin = time.perf_counter()
            if what == "step":
                step().backward()
            else:
                assert hmp.diagnose(step).healthy
            times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(statistics.median(times[1:]), peak * 1024)


def show_costs(rounds: int = 5) -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {rounds} rounds")
    print(f"{'a training step':<16}{'seconds':>10}{'diagnosis':>12}{'MB':>8}{'diagnosis':>12}")
    for name in COSTS:
        found: dict[str, list[tuple[float, float]]] = {"step": [], "diagnosis": []}
        for _ in range(rounds):
            for what, values in found.items():
                command = [sys.executable, __file__, "--measure", name, what]
                printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                seconds, peak = map(float, printed.split())
                values.append((seconds, peak))
        seconds, peak = (statistics.median(one[place] for one in found["step"]) for place in (0, 1))
        longer, larger = (statistics.median(one[place] for one in found["diagnosis"]) for place in (0, 1))
        print(
            f"{name:<16}{seconds:>10.3f}{longer / seconds:>12.2f}{peak / 1e6:>8.0f}{larger / peak:>12.2f}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--only", metavar="TYPE", help="one type of model, as transformers calls it")
    parser.add_argument("--presets", default="recommended,hmp-default", metavar="PRESET,...")
    parser.add_argument("--all", action="store_true", help="print the largest deviation of each")
    parser.add_argument("--cost", action="store_true", help="measure time and memory")
    parser.add_argument(
        "--measure", nargs=2, metavar=("MODEL", "WHAT"), help="for --cost: measure this in this process"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.measure:
        measure(*options.measure)
        return
    if options.cost:
        show_costs()
        return
    torch.set_num_threads(1)
    counts: collections.Counter[str] = collections.Counter()
    for kind, model_type in pairs(tuple(options.kinds.split(","))):
        if options.only in (None, model_type):
            for preset in options.presets.split(","):
                look(kind, model_type, preset, counts, show_all=options.all)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


if __name__ == "__main__":
    main()
