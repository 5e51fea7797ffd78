"""Counts torch's operations that run on mixed bfloat16 and float32 inputs: plain torch, torch.autocast, habana_mp.

python benchmarks/operations.py

The operations are those of torch's own database that have two or more float inputs, and kernels for both dtypes on a
CPU. An operation counts if every sample that runs in float32 also runs with its inputs alternating between the two
dtypes, whichever comes first.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from states import autocast, converted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.operation_database import entries_of_several_inputs, mixtures, name_of


def failure(call: Any, function: Any) -> str | None:
    try:
        call.copied().run(function)
    except Exception as error:
        return str(error).splitlines()[0]
    return None


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "plain torch": nullcontext,
    "torch.autocast": autocast,
    "habana_mp": converted,
}


def main() -> None:
    warnings.simplefilter("ignore")
    counts = dict.fromkeys(STATES, 0)
    for op in entries_of_several_inputs():
        calls = [mixed for plain, mixed in mixtures(op, limit=8) if failure(plain, op.op) is None]
        for name, state in STATES.items():
            with state():
                failures = [found for call in calls if (found := failure(call, op.op)) is not None]
            counts[name] += not failures
            if failures and name == "habana_mp":
                print(f"{name_of(op)}: {failures[0]}")
    print(
        f"{len(entries_of_several_inputs())} entries; run on mixed inputs: "
        + ", ".join(f"{n} {c}" for n, c in counts.items())
    )


if __name__ == "__main__":
    main()
