"""Trains a small model of every architecture of transformers under the default lists, and compares it with FP32.

    python benchmarks/architectures.py [--kinds causal,masked,...] [--only TYPE] [--ways WAY,...]

Each model is trained for one step in FP32, converted, and under torch.autocast, from the same weights. Close means a
loss within 2 % of FP32's and gradients with a cosine over 0.98 to FP32's. The output has each failure, each
architecture that is not close, and the counts. The exit status is 1 if a model fails that trains in FP32. --all also
prints the models that do not train in FP32. The ways are "recommended", "hmp" (the default lists), "within" (these with
within="modules"), "autocast", and each preset. --findings records lines, prints each finding about wrong results, and
counts the findings of each kind. No finding about wrong results is expected, since these models are healthy. --guard
checks all calls (`guard=1.0`), prints each warning of the guard, and counts them; no warning is expected either.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from states import autocast, converted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from habana_mp import HmpWarning, hmp
from helpers.architectures import KINDS, distance, make_batch, make_model, pairs, train_step

SECONDS, PARAMETERS, ADDRESS_SPACE = 60, 40_000_000, 16 << 30

#: The kinds of findings about wrong results (docs/report.md).
WRONG_RESULTS = (
    "rounded counts",
    "rounded angles",
    "compared counts",
    "carried state",
    "lower statistics",
    "loss in lower precision",
    "rounded probabilities",
    "float64",
)

#: The states of a whole step and of its forward.
WAYS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "hmp": lambda **options: (converted(**options), None),
    "within": lambda **options: (converted(within="modules", **options), None),
    "autocast": lambda **_: (contextlib.nullcontext(), autocast()),
}


def way(name: str, **options: Any) -> tuple[Any, Any]:
    return WAYS[name](**options) if name in WAYS else (converted(preset=name, **options), None)


@contextlib.contextmanager
def guarded(name: str, title: str, alarms: collections.Counter[str] | None) -> Iterator[None]:
    """Prints and counts the warnings of the guard, if they are to be counted."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        if alarms is not None:
            warnings.simplefilter("always", HmpWarning)
        yield
    for one in caught:
        text = str(one.message)
        if " made " in text or "finite" in text:
            assert alarms is not None
            alarms[title] += 1
            print(f"{name}: {title}: the guard warns: {text}", flush=True)


def count_findings(name: str, title: str, counts: collections.Counter[str]) -> None:
    """Counts the findings of the step before by kind, and prints those about wrong results."""
    found = hmp.report(show=False).findings
    hmp.reset_report()
    for one in found:
        counts[one.kind] += 1
        if one.kind in WRONG_RESULTS:
            print(f"{name}: {title}: {one.kind}: {one.text}", flush=True)


class TooSlowError(Exception):
    """One architecture took more processor time than its limit."""


@contextlib.contextmanager
def limited_to(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooSlowError(f"over {seconds} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def place(error: BaseException) -> str:
    """Returns the message of an exception, and the innermost lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    models = [frame for frame in frames if "/transformers/models/" in frame.filename]
    where = " <- ".join(f"{Path(one.filename).name}:{one.lineno} {one.line}" for one in (frames[-1], *models[-1:]))
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]} [{where}]"


def sweep(
    kind: str,
    model_type: str,
    counts: collections.Counter[str],
    *,
    titles: Sequence[str],
    show_all: bool,
    found: collections.Counter[str] | None = None,
    alarms: collections.Counter[str] | None = None,
) -> None:
    """Trains one architecture in FP32 and in each way, prints the failures, and counts. Counts findings if `found` is
    given, and warnings of the guard if `alarms` is given."""
    name = f"{kind} {model_type}"
    try:
        with limited_to(SECONDS):
            model = make_model(kind, model_type)
            if sum(one.numel() for one in model.parameters()) > PARAMETERS:
                raise MemoryError("too many parameters")
            batch = make_batch(kind, model)
            plain = train_step(model, batch)
            if not plain.finite:
                raise FloatingPointError("not finite")
    except Exception as error:
        counts["no step"] += 1
        if show_all:
            print(f"{name}: no step in FP32: {place(error)}", flush=True)
        return
    counts["FP32"] += 1
    distances = {}
    for title in titles:
        chosen: dict[str, Any] = {} if found is None else {"report": "lines"}
        chosen |= {} if alarms is None else {"guard": 1.0}
        around, forward = way(title, **chosen)
        try:
            with guarded(name, title, alarms), limited_to(SECONDS), around:
                step = train_step(model, batch, forward)
                if found is not None:
                    count_findings(name, title, found)
            faults = step.faults(plain)
            if faults:
                raise FloatingPointError("; ".join(faults)[:300])
        except Exception as error:
            print(f"{name}: {title} fails: {place(error)}", flush=True)
            continue
        counts[title] += 1
        distances[title] = distance(step, plain)
        counts[f"close {title}"] += distances[title].close
    if any(not one.close for one in distances.values()):
        print(f"{name}: {'; '.join(f'{title} {one}' for title, one in distances.items())}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", default=",".join(KINDS), help="of " + ", ".join(KINDS))
    parser.add_argument("--only", metavar="TYPE", help="one type of model, as transformers calls it")
    parser.add_argument(
        "--ways", default="recommended,hmp,autocast", metavar="WAY,...", help="what is compared to FP32"
    )
    parser.add_argument("--findings", action="store_true", help="record lines, and print findings about wrong results")
    parser.add_argument("--guard", action="store_true", help="check all calls, and print warnings of the guard")
    parser.add_argument("--all", action="store_true", help="also print what does not train in FP32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # A model that needs more memory than this fails, and the other models still run.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    titles = options.ways.split(",")
    columns = ["FP32", *[column for title in titles for column in (title, f"close {title}")], "no step"]
    total: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] | None = collections.Counter() if options.findings else None
    alarms: collections.Counter[str] | None = collections.Counter() if options.guard else None
    print_rows = [f"{'kind':10}" + "".join(f"{column:>16}" for column in columns)]
    for kind in options.kinds.split(","):
        counts: collections.Counter[str] = collections.Counter()
        for _, model_type in pairs((kind,)):
            if options.only in (None, model_type):
                sweep(kind, model_type, counts, titles=titles, show_all=options.all, found=found, alarms=alarms)
        print_rows.append(f"{kind:10}" + "".join(f"{counts[column]:16}" for column in columns))
        total += counts
    print_rows.append(f"{'total':10}" + "".join(f"{total[column]:16}" for column in columns))
    print("\n" + "\n".join(print_rows))
    if found is not None:
        print("findings: " + (", ".join(f"{kind} {count}" for kind, count in found.most_common()) or "none"))
    if alarms is not None:
        print("warnings of the guard: " + (", ".join(f"{title} {count}" for title, count in alarms.items()) or "none"))
    is_wrong = bool(alarms) or any((found or {}).get(kind) for kind in WRONG_RESULTS)
    return int(is_wrong or any(total[title] < total["FP32"] for title in titles if title != "autocast"))


if __name__ == "__main__":
    sys.exit(main())
