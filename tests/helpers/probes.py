"""Probes of the current state, and the values that many tests compute with."""

from __future__ import annotations

import torch

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
#: No test writes into these.
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous() * 0.7
X = torch.linspace(-1, 1, 64).reshape(8, 8)
#: The rows of M in another order, as an index and as one of each element.
INDEX = torch.tensor([3, 1, 0, 2])
SQUARE = INDEX[None].expand(4, 4)


def dtype_of_product() -> torch.dtype:
    return torch.mm(M, M).dtype


def is_cast() -> bool:
    """True if a product of float32 matrices is made in bfloat16."""
    return dtype_of_product() is torch.bfloat16


def rows_of_report() -> dict[tuple[str, str], tuple[int, int, int]]:
    """Returns the calls, casts and bytes of each operation in each precision."""
    sums: dict[tuple[str, str], tuple[int, int, int]] = {}
    for row in hmp.report(show=False):
        calls, casts, size = sums.get((row.operation, row.precision), (0, 0, 0))
        sums[row.operation, row.precision] = calls + row.calls, casts + row.casts, size + row.bytes
    return sums
