"""Process groups for the device: gloo works on the device's memory, without copies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

NAME = "pretended_gloo"


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return torch.pretended.core.Group(dist.ProcessGroupGloo(store, rank, size, timeout))


def register() -> None:
    dist.Backend.register_backend(NAME, _create, devices=["pretended"])
    dist.Backend.default_device_backend_map["pretended"] = NAME
