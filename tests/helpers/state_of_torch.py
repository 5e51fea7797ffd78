"""Is torch as it was?"""

from __future__ import annotations

import torch

from habana_mp import _core, hmp


def assert_torch_is_restored() -> None:
    """Nothing is covered, and a GEMM, an activation and an assignment do what torch does."""
    assert not hmp.is_converted()
    assert _core.installed_count() == 0
    matrix = torch.ones(2, 2)
    assert torch.mm(matrix, matrix).dtype is torch.float32
    assert (matrix @ matrix).dtype is torch.float32
    assert torch.relu(matrix).dtype is torch.float32
    assert matrix.t().dtype is torch.float32
    assert torch.softmax(matrix.bfloat16(), -1).dtype is torch.bfloat16
    assert not torch.nn.modules.module._global_parameter_registration_hooks
    assert not torch.nn.modules.module._global_buffer_registration_hooks
