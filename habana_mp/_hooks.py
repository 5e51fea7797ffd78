"""Hooks around every optimizer's step, put in and taken out while other threads take steps.

torch goes through its hooks as they are, and what is put in or taken out meanwhile makes that raise.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

from torch.optim import optimizer
from torch.utils.hooks import RemovableHandle

from habana_mp import _core

#: A hook that takes longer waits for us, perhaps.
_PATIENCE_SECONDS = 1.0


def code_around_steps() -> types.CodeType:
    """The code of the wrapper that torch puts around every optimizer's step."""

    def step() -> None: ...

    return optimizer.Optimizer.profile_hook_step(step).__code__


def only_our_hooks_follow_steps() -> bool:
    """Does nobody else have a hook after every optimizer's step?"""
    hooks = optimizer._global_optimizer_post_hooks.values()
    return all(str(getattr(hook, "__module__", "")).startswith("habana_mp.") for hook in list(hooks))


class StepHook:
    """A hook that is called before or after every optimizer's step."""

    def __init__(self, hook: Callable[..., Any], *, before: bool) -> None:
        self._hook = hook
        self._hooks: dict[int, Any] = (
            optimizer._global_optimizer_pre_hooks if before else optimizer._global_optimizer_post_hooks
        )
        self._handle: RemovableHandle | None = None

    def install(self) -> None:
        if self._handle is None:
            self._handle = RemovableHandle(self._hooks)
            self._set(self._handle.id, self._hook)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._set(self._handle.id, None)
            self._handle = None

    def _set(self, key: int, hook: Callable[..., Any] | None) -> None:
        end, caller = time.monotonic() + _PATIENCE_SECONDS, code_around_steps()
        while not _core.set_hook(self._hooks, key, hook, caller, "func"):
            if time.monotonic() > end:
                _core.set_hook(self._hooks, key, hook, None, "")
                return
            time.sleep(1e-4)
