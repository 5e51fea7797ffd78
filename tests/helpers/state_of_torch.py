"""Checks that torch is restored."""

from __future__ import annotations

import sys

import torch

from habana_mp import _core, hmp


def modes_of_thread() -> dict[str, object]:
    """Returns the state that torch keeps for a thread or the process, and that a failed test could leave changed."""
    return {
        "gradients": torch.is_grad_enabled(),
        "gradients of forward mode": torch._C._is_fwd_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": {name: torch.is_autocast_enabled(name) for name in ("cpu", "cuda")},
        "cache of autocast": torch.is_autocast_cache_enabled(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tracer": sys.gettrace(),
    }


def assert_torch_is_restored() -> None:
    """Asserts that nothing is patched, and that a GEMM, an activation and an assignment do what torch does."""
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
