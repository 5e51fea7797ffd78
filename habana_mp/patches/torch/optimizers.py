"""The private parts of torch's optimizers that habana_mp.optim uses."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import optimizer

from habana_mp.common.ledger import Assumption, UnmetError, holds

_F = TypeVar("_F", bound=Callable[..., Any])

_INSIDES = Assumption(
    "torch.optimizer-insides",
    assumed="AdamW, Adam, SGD and Adagrad gather what a step needs by `_init_group`; `_use_grad_for_differentiable` "
    "wraps it",
    check="both are there, `_init_group` with as many parameters as we give, and a check of captured graphs",
    otherwise="the steps of habana_mp.optim's classes are torch's own",
)

_FOREACH = Assumption(
    "torch.foreach",
    assumed="`torch._foreach_mul_` and its like do to many tensors what the tensors' methods of these names do to one",
    check="those that are used are there",
    otherwise="tensors are worked on one after the other",
)
_USED = ("add", "add_", "addcdiv_", "addcmul_", "div", "div_", "lerp_", "mul", "mul_", "norm", "sqrt", "sqrt_")

#: The number of lists that each of them fills. In older releases AdamW also takes ``amsgrad``.
_LISTS = {torch.optim.AdamW: (6, 7), torch.optim.Adam: (6,), torch.optim.SGD: (3,), torch.optim.Adagrad: (4,)}

#: torch's first check in a step of Adam, and its name in older releases.
_CAPTURE_CHECKS = ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")


def _are_known() -> bool:
    owner: Any
    for owner, counts in _LISTS.items():
        count = len(inspect.signature(owner._init_group).parameters) - 2
        if count not in counts:
            raise UnmetError(f"`{owner.__name__}._init_group` takes {count} lists")
    has_check = any(hasattr(torch.optim.Adam, name) for name in _CAPTURE_CHECKS)
    return has_check and callable(optimizer._use_grad_for_differentiable)


INSIDES_ARE_KNOWN = holds(_INSIDES, _are_known)

#: True for older releases: AdamW does not derive from Adam, and takes ``amsgrad`` between the gradients and the state.
ADAMW_ASKS_FOR_AMSGRAD = INSIDES_ARE_KNOWN and "amsgrad" in inspect.signature(torch.optim.AdamW._init_group).parameters


def as_torchs_step(step: _F) -> _F:
    """Wraps a step, so that autograd tracks it only if its optimizer is ``differentiable``."""
    wrap: Any = optimizer._use_grad_for_differentiable if INSIDES_ARE_KNOWN else lambda function: function
    return wrap(step)  # type: ignore[no-any-return]  # of the same type


def gather(stepped: Any, group: dict[str, Any], *lists: Any) -> Any:
    """Fills the lists with the weights that have gradients, and with their state. Returns true if some weights are
    complex (for SGD: if some gradients are sparse; for Adagrad both, as a pair: sparse, complex)."""
    return stepped._init_group(group, *lists)


def check_capture(stepped: Any) -> None:
    """Runs torch's own first check in a step of Adam."""
    newer, older = _CAPTURE_CHECKS
    getattr(stepped, newer if hasattr(stepped, newer) else older)()


class Foreach:
    """``foreach.mul_(tensors, ...)`` calls ``torch._foreach_mul_``, or without it the method of each tensor."""

    def __init__(self) -> None:
        # Checked here, so that no step has to wait for it.
        self._is_there = holds(_FOREACH, lambda: all(hasattr(torch, f"_foreach_{name}") for name in _USED))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _USED:
            raise AttributeError(name)
        if self._is_there:
            return getattr(torch, f"_foreach_{name}")  # type: ignore[no-any-return]  # a function

        def one_after_the_other(tensors: Sequence[Tensor], *arguments: Any, **options: Any) -> tuple[Any, ...]:
            return tuple(
                getattr(tensor, name)(
                    *(one[i] if isinstance(one, list | tuple) else one for one in arguments), **options
                )
                for i, tensor in enumerate(tensors)
            )

        return one_after_the_other


foreach = Foreach()


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the norm of all tensors together, on the device of the first."""
    norms: Sequence[Tensor] = foreach.norm(tensors)
    total: Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return total
