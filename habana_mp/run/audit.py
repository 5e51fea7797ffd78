"""``habana-mp run --audit``: audits each optimizer of a script before its first step."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from habana_mp import hmp
from habana_mp.patches.torch.module_holders import all_modules
from habana_mp.patches.torch.stepped_weights import copies
from habana_mp.run.script import say


def audit_first_steps() -> None:
    """From now on, audits each optimizer with its models before its first step, and says the results line by line."""
    seen: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def look(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer in seen or optimizer in copies:
            return
        seen.add(optimizer)
        named = type(optimizer).__name__
        try:
            for model in list(_models(optimizer)):
                say(f"audit of {type(model).__name__} before the first step of {named}:")
                for line in filter(None, str(hmp.audit(model, optimizer)).splitlines()):
                    say(line)
        except Exception as error:  # the script runs on
            say(f"the audit of {named} failed: {type(error).__name__}: {error}")

    register_optimizer_step_pre_hook(look)


def _models(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Module]:
    """Yields the outermost modules that have a weight of the optimizer."""
    weights = {id(one) for group in optimizer.param_groups for one in group["params"]}
    holders = [one for one in all_modules() if any(id(weight) in weights for weight in one.parameters())]
    inner = {id(part) for one in holders for part in one.modules() if part is not one}
    return (one for one in holders if id(one) not in inner)
