"""Every float32 there is, against torch: in every instruction set that this processor has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from habana_mp import _core
from helpers.arrays import BITS, DTYPES, PATHS, TORCH, assert_same_bits

CHUNK = 1 << 24


@pytest.mark.slow
@pytest.mark.parametrize("target", ["bfloat16", "float16"])
def test_every_float32_becomes_what_torch_makes_of_it(target: str) -> None:
    out = np.empty(CHUNK, DTYPES[target])
    inputs = torch.empty(CHUNK, dtype=torch.int32)
    expected = torch.empty(CHUNK, dtype=TORCH[target])
    ours, bits = out.view(BITS[target]), expected.view(torch.int16).numpy().view(BITS[target])
    for start in range(0, 1 << 32, CHUNK):
        first = start - (1 << 32) if start >= 1 << 31 else start
        torch.arange(first, first + CHUNK, dtype=torch.int32, out=inputs)
        expected.copy_(inputs.view(torch.float32))
        for path in PATHS:
            _core.kernels_cast(inputs.numpy().view(np.float32), DTYPES[target], out, 2, path)
            if not np.array_equal(ours, bits):  # NaNs may have other bits
                assert_same_bits(ours, bits, target, inputs.numpy().view(np.uint32))
