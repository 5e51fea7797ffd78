"""Makes one call in float32, with inputs that are not rounded, and without casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from habana_mp import ops
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.pytree import tree_map
from habana_mp.reporting.judging import tensors_in

LOWER = (torch.bfloat16, torch.float16)

#: Parts of the names of operations that may use random numbers.
_RANDOM = (
    *("dropout", "rnn", "lstm", "gru", "attention", "rand", "bernoulli", "multinomial", "normal_", "uniform_"),
    *("rrelu", "exponential", "poisson", "binomial", "gamma", "dirichlet", "geometric_", "cauchy_", "fractional"),
)


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Returns the tensors in arguments or results, also those in lists."""
    if isinstance(values, torch.Tensor):
        return [values]
    return list(tensors_in(values))


def is_lower(tensor: torch.Tensor) -> bool:
    return tensor.dtype in LOWER


def may_be_random(operation: str) -> bool:
    return any(part in operation for part in _RANDOM)


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def repeatable(operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Arguments:
    """Returns the arguments for another call, with copies of those that the operation may update (running
    statistics)."""
    castable = ops.arguments_of(operation)
    if castable is None:
        return arguments, keywords
    return (
        tuple(one if i in castable.positions else _copied(one) for i, one in enumerate(arguments)),
        {key: _copied(one) if key in castable.kept_keywords else one for key, one in keywords.items()},
    )


def _copied(value: Any) -> Any:
    is_updated = isinstance(value, torch.Tensor) and not value.requires_grad
    return value.clone() if is_updated else value


def detached_in_float32(arguments: Arguments) -> Arguments:
    """Returns arguments with each tensor detached, in float32 if its precision is lower."""

    def detached(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().float() if is_lower(value) else value.detach()

    mapped: Arguments = tree_map(detached, arguments)
    return mapped


def in_float32(value: Any, other: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor) -> Any:
    """Returns an argument with each tensor of a lower precision in float32, still tracked by autograd. Applies
    ``other`` to the other tensors."""

    def raised(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return one.float() if is_lower(one) else other(one)

    return tree_map(raised, value)


def with_rounded_operands(
    operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any], to: torch.dtype
) -> Arguments:
    """Returns the arguments of a product with its operands in lower precision; what is added stays as it is."""
    castable = ops.operands_of(operation)

    def rounded(value: Any) -> Any:
        is_float32 = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        return value.to(to) if is_float32 else value

    if castable is None:
        mapped: Arguments = tree_map(rounded, (arguments, keywords))
        return mapped
    return (
        tuple(tree_map(rounded, one) if i in castable.positions else one for i, one in enumerate(arguments)),
        {name: one if name in castable.kept_keywords else tree_map(rounded, one) for name, one in keywords.items()},
    )


class RandomState:
    """The state of torch's random numbers, on the CPU and on the devices in use."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        self._cuda = (
            torch.cuda.get_rng_state_all()
            if torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's has no types
            else None
        )

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


@contextmanager
def apart() -> Iterator[None]:
    """A block whose operations belong to the diagnosis: nothing is cast, and autograd tracks nothing."""
    with casts_off(), torch.no_grad():
        yield
