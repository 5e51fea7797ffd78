"""Measures the cost of an audit, as a multiple of a training step with AdamW, and the lost updates it predicts.

    python benchmarks/audited.py [--rounds N]

The models are in bfloat16, where the audit also makes the next step on copies, and in float32. A step is the forward,
the backward and the optimizer's step on a batch of 8 x 128 words.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from diagnosed import COSTS
from models import machine

from habana_mp import hmp


def measure(name: str, dtype: torch.dtype, rounds: int) -> None:
    loss = COSTS[name]()
    model = next(one.cell_contents for one in loss.__closure__ if isinstance(one.cell_contents, torch.nn.Module))
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    times: dict[str, list[float]] = {"step": [], "audit": []}
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss().backward()
        backward = time.perf_counter() - begin
        begin = time.perf_counter()
        found = hmp.audit(model, optimizer)
        times["audit"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        optimizer.step()
        times["step"].append(backward + time.perf_counter() - begin)
    step, audit = (statistics.median(one[1:]) for one in times.values())  # the first round imports and warms up
    lost = max((one.lost or 0.0 for one in found.rows), default=0.0)
    what = str(dtype).removeprefix("torch.")
    print(f"{name:<8}{what:<10}{step:>10.3f}{audit:>10.3f}{audit / step:>8.2f}{lost:>18.1%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(machine(busy=True))
    print(f"{'model':<8}{'dtype':<10}{'step, s':>10}{'audit, s':>10}{'ratio':>8}{'most lost updates':>18}")
    for name in COSTS:
        for dtype in (torch.bfloat16, torch.float32):
            torch.manual_seed(0)
            measure(name, dtype, options.rounds)


if __name__ == "__main__":
    main()
