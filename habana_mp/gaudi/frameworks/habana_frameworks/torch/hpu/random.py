"""The random number generators of the real device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from habana_mp.gaudi import devices

default_generators: tuple[torch.Generator, ...]

__all__ = [
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
]


def _module() -> Any:
    """Returns the module that has these functions: ``torch.random`` for the CPU."""
    return torch.random if devices().real.type == "cpu" else devices().module


def __getattr__(name: str) -> Any:
    if name != "default_generators":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    generators = getattr(devices().module, "default_generators", None)
    return (torch.default_generator,) if generators is None else generators


def get_rng_state(device: Any = "hpu") -> Tensor:
    """Returns the state of the generator."""
    return _module().get_rng_state()  # type: ignore[no-any-return]  # a module's function


def get_rng_state_all() -> list[Tensor]:
    """Returns the state of each device's generator."""
    return list(devices().call_of_module("get_rng_state_all", lambda: [get_rng_state()]))


def set_rng_state(new_state: Tensor, device: Any = "hpu") -> None:
    """Sets the state of the generator."""
    _module().set_rng_state(new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Sets the state of each device's generator."""
    states = list(new_states)
    devices().call_of_module("set_rng_state_all", lambda: set_rng_state(states[0]), states)


def manual_seed(seed: int) -> None:
    """Seeds the generator."""
    _module().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds the generator of each device."""
    getattr(_module(), "manual_seed_all", _module().manual_seed)(int(seed))


def seed() -> None:
    """Seeds the generator with a random number."""
    _module().seed()


def seed_all() -> None:
    """Seeds the generator of each device with a random number."""
    getattr(_module(), "seed_all", _module().seed)()


def initial_seed() -> int:
    """Returns the seed of the generator."""
    return int(_module().initial_seed())
