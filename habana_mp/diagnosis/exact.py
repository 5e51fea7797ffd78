"""What it takes to make a call again in float32: its arguments, the random numbers, a block without casts."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from habana_mp import ops
from habana_mp.ops.operation import Castable
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.pytree import tree_map

LOWER = (torch.bfloat16, torch.float16)

#: Parts of the names of operations that may use random numbers.
_RANDOM = re.compile(
    r"dropout|rnn|lstm|gru|attention|rand|bernoulli|multinomial|normal(_|\b)|uniform|rrelu|exponential|poisson\b|"
    "binomial|standard_gamma|dirichlet|geometric|cauchy|fractional"
)


def is_lower(tensor: torch.Tensor) -> bool:
    return tensor.dtype in LOWER


def may_be_random(operation: str) -> bool:
    return _RANDOM.search(operation) is not None


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_Change = Callable[[torch.Tensor], torch.Tensor]


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def with_tensors(change: _Change, values: Any) -> Any:
    """Returns arguments with each tensor changed."""
    return tree_map(lambda one: change(one) if isinstance(one, torch.Tensor) else one, values)


def in_float32(values: Any, other: _Change = as_it_is) -> Any:
    """Returns arguments with each tensor of a lower precision in float32, still tracked by autograd. Applies ``other``
    to the other tensors."""
    return with_tensors(lambda one: one.float() if is_lower(one) else other(one), values)


def repeatable(operation: str, arguments: Arguments) -> Arguments:
    """Returns the arguments for another call, with copies of those that the operation may update (running
    statistics)."""
    return _changed(
        ops.arguments_of(operation), arguments, as_it_is, lambda one: one if one.requires_grad else one.clone()
    )


def with_rounded_operands(operation: str, arguments: Arguments, to: torch.dtype) -> Arguments:
    """Returns the arguments of a product with its operands in lower precision; what is added stays as it is."""
    castable = ops.operands_of(operation)
    return _changed(castable, arguments, lambda one: one.to(to) if one.dtype == torch.float32 else one, as_it_is)


def _changed(castable: Castable | None, arguments: Arguments, change: _Change, change_others: _Change) -> Arguments:
    """Returns the arguments, changed in one way if they may be cast (None: all of them), and otherwise in another."""

    def changed(key: int | str, value: Any) -> Any:
        is_castable = castable is None or (
            key in castable.positions if isinstance(key, int) else key not in castable.kept_keywords
        )
        return with_tensors(change if is_castable else change_others, value)

    by_place, by_name = arguments
    return (
        tuple(changed(place, one) for place, one in enumerate(by_place)),
        {name: changed(name, one) for name, one in by_name.items()},
    )


class RandomState:
    """The state of random numbers: torch's on the CPU and on CUDA, Python's and NumPy's."""

    def __init__(self) -> None:
        self._cpu = torch.random.get_rng_state()
        self._cuda = (
            torch.cuda.get_rng_state_all()
            if torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's has no types
            else None
        )
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else (numpy.random, numpy.random.get_state())

    def restore(self) -> None:
        torch.random.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])


@contextmanager
def apart() -> Iterator[None]:
    """A block whose operations belong to the diagnosis: nothing is cast, and autograd tracks nothing."""
    with casts_off(), torch.no_grad():
        yield
