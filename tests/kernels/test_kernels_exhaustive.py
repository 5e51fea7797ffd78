"""Every float32 there is, against torch: in every instruction set that this processor has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from habana_mp import _core

TARGETS: dict[str, tuple[np.dtype[Any], torch.dtype, int]] = {
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), torch.bfloat16, 0x7F80),
    "float16": (np.dtype(np.float16), torch.float16, 0x7C00),
}
CHUNK = 1 << 24


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_float32_becomes_what_torch_makes_of_it(target: str) -> None:
    dtype, torch_dtype, infinity = TARGETS[target]
    paths = _core.kernels_paths()
    out = np.empty(CHUNK, dtype)
    inputs = torch.empty(CHUNK, dtype=torch.int32)
    expected = torch.empty(CHUNK, dtype=torch_dtype)
    ours = torch.from_numpy(out.view(np.int16))
    for start in range(0, 1 << 32, CHUNK):
        first = start - (1 << 32) if start >= 1 << 31 else start
        torch.arange(first, first + CHUNK, dtype=torch.int32, out=inputs)
        expected.copy_(inputs.view(torch.float32))
        expected_bits = expected.view(torch.int16)
        for path in paths:
            _core.kernels_cast_with(inputs.numpy().view(np.float32), dtype, out, 2, path)
            differing = (ours != expected_bits).nonzero().ravel()
            if differing.numel() == 0:
                continue
            both_nan = ((ours[differing] & 0x7FFF) > infinity) & ((expected_bits[differing] & 0x7FFF) > infinity)
            wrong = differing[~both_nan]
            assert wrong.numel() == 0, (
                f"{path}: {start + int(wrong[0]):#010x} became "
                f"{int(ours[wrong[0]]) & 0xFFFF:#06x}, "
                f"but torch gives {int(expected_bits[wrong[0]]) & 0xFFFF:#06x}; {wrong.numel()} such in this chunk"
            )
