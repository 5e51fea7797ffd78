"""Hooks around every optimizer's step (rule 11)."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from habana_mp import _core
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.torch import stepped_weights


def code_around_steps() -> types.CodeType:
    """Returns the code of the wrapper that torch puts around every optimizer's step."""

    def step() -> None: ...

    return Optimizer.profile_hook_step(step).__code__


class OptimizerSteps(Patch):
    """Notifies the core at the beginning and the end of each step, by hooks."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []

    def install(self, settings: Settings) -> None:
        if not self._handles:
            self._handles.append(register_optimizer_step_pre_hook(before_step))
            self._handles.append(register_optimizer_step_post_hook(after_step))

    def uninstall(self) -> None:
        while self._handles:
            self._handles[-1].remove()
            self._handles.pop()


def before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outside = _outside_of_step
    if torch.compiler.is_compiling():
        if type(optimizer).__module__.startswith("torch.optim."):
            # torch's optimizers break the graph anyway. The wrapper then runs as it is, and the core recognises it.
            torch._dynamo.skip_frame("the step of an optimizer")
        # Dynamo may trace another optimizer's step as a whole: then the flag of disable_casts is set in the graph.
        _disabled_before.append(torch.is_autocast_enabled(_core.disabled_flag))
        torch.set_autocast_enabled(_core.disabled_flag, True)
        outside = _outside_of_traced_step
    else:
        _core.optimizer_step_begins()
    # A closure computes the loss: it runs the model's forward, not the optimizer's arithmetic.
    if "closure" in kwargs and callable(kwargs["closure"]):
        return args, {**kwargs, "closure": outside(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], outside(args[1]), *args[2:]), kwargs
    return None


def after_step(optimizer: Optimizer, *_: Any) -> None:
    if torch.compiler.is_compiling():
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before.pop())
    else:
        _core.optimizer_step_ends()
        stepped_weights.look_at(optimizer)


#: The flag as it was before each step that is being traced.
_disabled_before: list[bool] = []


def _outside_of_step(closure: Any) -> Any:
    def closure_outside_of_step() -> Any:
        steps = _core.exchange_optimizer_steps(0)
        try:
            return closure()
        finally:
            _core.exchange_optimizer_steps(steps)

    return closure_outside_of_step


def _outside_of_traced_step(closure: Any) -> Any:
    def closure_outside_of_traced_step() -> Any:
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before[-1])
        loss = closure()
        torch.set_autocast_enabled(_core.disabled_flag, True)
        return loss

    return closure_outside_of_traced_step
