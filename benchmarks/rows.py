"""Times ``F.linear`` in bfloat16 by torch and by habana_mp, for few rows to many, without gradients.

python benchmarks/rows.py [--float32-result] [--rows N ...] [--sizes OUTxIN ...]

Each number is torch's time divided by habana_mp's in the same round, the median of the rounds: above 1 habana_mp is
faster. ``--float32-result`` times ``linear -> fp32`` against torch's rounded product.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial

import torch
import torch.nn.functional as F
from states import converted
from timing import Contender, run

ROWS = [1, 2, 4, 8, 16, 17, 31, 32, 33, 48, 64, 65, 96, 98, 128, 197, 256, 392, 512, 1500, 6272]
SIZES = ["96x384", "384x96", "512x512", "768x3072", "3072x768", "1024x1024", "4096x4096"]


def ratio(rows: int, outer: int, inner: int, options: dict[str, object], rounds: int) -> float:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, inner).bfloat16(), torch.randn(outer, inner).bfloat16(), torch.randn(outer)
    by_torch = Contender("torch", partial(F.linear, x, weight, bias.bfloat16()))
    given = bias if "rules" in options else bias.bfloat16()  # what is added to a float32 result keeps its precision
    by_habana_mp = Contender("habana_mp", partial(F.linear, x, weight, given), partial(converted, **options))
    with torch.no_grad():
        run([by_torch, by_habana_mp], rounds=rounds, target_seconds=0.03)
    return by_torch.ratio_to(by_habana_mp)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--float32-result", action="store_true", help="linear -> fp32")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="OUTxIN")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    state: dict[str, object] = {"preset": "half"}
    if options.float32_result:
        state = {"preset": "recommended", "within": "everywhere", "rules": {"linear": "bf16 -> fp32"}}
    found = []
    print(f"| | {' | '.join(map(str, options.rows))} |\n|{'---|' * (len(options.rows) + 1)}")
    for size in options.sizes:
        outer, inner = map(int, size.split("x"))
        ratios = [ratio(rows, outer, inner, state, options.rounds) for rows in options.rows]
        found += ratios
        print(f"| {outer} x {inner} | {' | '.join(f'{one:.2f}' for one in ratios)} |", flush=True)
    below = sum(one < 0.95 for one in found)
    print(f"geometric mean {statistics.geometric_mean(found):.2f}; {below} of {len(found)} below .95")


if __name__ == "__main__":
    main()
