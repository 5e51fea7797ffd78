"""Constructors of modules, in which nothing is cast: they create weights.

``nn.Module.__init__`` first logs itself, by a builtin whose calls the core taps. In a torch where it does not, its
code is replaced by code that notifies the core.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds, require
from habana_mp.patches.tools.code_exchange import ReplacedFunction
from habana_mp.patches.tools.patch import Settings

_SIGN = Assumption(
    "torch.constructor-logs-itself",
    assumed="`torch.nn.Module.__init__` calls `torch._C._log_api_usage_once('python.nn_module')`",
    check="its code names both",
    otherwise="its code is exchanged for one that tells the core",
)


class Constructors(ReplacedFunction):
    """Replaces ``nn.Module.__init__`` if it does not log itself."""

    assumption = Assumption(
        "torch.module-constructor",
        assumed="`torch.nn.Module.__init__` is a function of Python",
        check="it is, and takes the module",
        otherwise="convert refuses",
    )

    def check(self, settings: Settings) -> None:
        super().check(settings)
        require(self.assumption, self._is_as_expected)

    def install(self, settings: Settings) -> None:
        if not holds(_SIGN, _logs_itself):
            super().install(settings)

    @staticmethod
    def find() -> Any:
        return torch.nn.Module.__init__

    @staticmethod
    def call(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        _core.construction_begins(arguments[0])
        return original(*arguments, **keywords)


def _logs_itself() -> bool:
    code = inspect.unwrap(torch.nn.Module.__init__).__code__
    return "_log_api_usage_once" in code.co_names and "python.nn_module" in code.co_consts
