"""User hooks that autograd calls: the lists are suspended in them, and their results get the right precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from habana_mp import _core
from habana_mp.patches.tools.in_float32 import in_precision_of
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_functions
from habana_mp.patches.tools.region_dtypes import lists_apply, lists_suspended


def given_uncast_hook(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that takes a tensor and its hooks."""
    tensor, *hooks = (*arguments, *keywords.values())
    return original(tensor, *map(_uncast_hook, hooks))


def _uncast_hook(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the hook with the lists suspended. Its result gets the gradient's precision, as autograd requires."""

    @functools.wraps(hook, updated=())
    def uncast(gradient: Any) -> Any:
        if not lists_apply():
            return hook(gradient)
        if torch.compiler.is_dynamo_compiling():
            with lists_suspended():
                result = hook(gradient)
        else:  # cheaper than a region, which also raises if torch.compile cannot distinguish more of them
            result = _core.call_with_lists_suspended(hook, gradient)
        return result if gradient is None else in_precision_of(gradient.dtype, result)

    return uncast


def given_faithful_hooks(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that stores a module's hooks of its full backward: those of input gradients, and those of
    output gradients."""
    keeper, module, *hooks = arguments
    return original(keeper, module, *([*map(_faithful, each)] for each in hooks))


def _faithful(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook of a module and its gradients, such that the gradients it returns keep their precision."""

    @functools.wraps(hook, updated=())
    def faithful(module: Any, gradients: Any, *others: Any) -> Any:
        results = hook(module, gradients, *others)
        if not isinstance(results, (tuple, list)) or len(results) != len(gradients):
            return results
        return tuple(
            in_precision_of(gradient.dtype, result) if isinstance(gradient, torch.Tensor) else result
            for gradient, result in zip(gradients, results, strict=True)
        )

    return faithful


def given_faithful_packing(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that takes two hooks of saved tensors: one packs the tensors that autograd saves, the other
    unpacks them. Hooks of torch itself are used as they are: they return what they were given."""
    keeper, pack, unpack = arguments
    if str(getattr(pack, "__module__", None)).startswith("torch."):
        return original(keeper, pack, unpack)

    @functools.wraps(pack, updated=())
    def faithful_pack(tensor: torch.Tensor) -> tuple[torch.dtype, Any]:
        # A hook may reuse the memory that it packs: no other code owns torch's own cast of a weight. So it gets a copy
        # of a cached cast.
        given = _core.call_with_lists_suspended(torch.clone, tensor) if _core.is_cached_memory(tensor) else tensor
        return tensor.dtype, _core.call_without_casts_inside(pack, given)

    @functools.wraps(unpack, updated=())
    def faithful_unpack(packed: tuple[torch.dtype, Any]) -> Any:
        dtype, value = packed
        return in_precision_of(dtype, unpack(value))

    return original(keeper, faithful_pack, faithful_unpack)


def as_backward(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that runs the backward of a function written in Python."""
    return _core.call_backward(original, arguments, keywords)


_HOOKS = assumption_of_functions(
    "torch.functions-that-take-hooks",
    "torch has the functions that take hooks of gradients, modules and saved tensors, and run backwards in Python",
    "what a hook computes goes by the lists, and autograd refuses a result in another precision",
)

_TAKE_HOOKS = ("Tensor.register_hook", "Tensor.register_post_accumulate_grad_hook")
EXCHANGES = (
    Exchange(given_uncast_hook, {"torch._tensor": _TAKE_HOOKS}, _HOOKS, positional=2),
    Exchange(given_faithful_hooks, {"torch.utils.hooks": ("BackwardHook.__init__",)}, _HOOKS, positional=2),
    Exchange(given_faithful_packing, {"torch.autograd.graph": ("saved_tensors_hooks.__init__",)}, _HOOKS, positional=3),
    Exchange(as_backward, {"torch.autograd.function": ("BackwardCFunction.apply",)}, _HOOKS),
)
