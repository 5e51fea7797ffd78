"""Functions of torch that make weights, running statistics or learning rates of other ones (rule 11).

They run outside of an optimizer's step and of a constructor, and write what they computed where it stays: averaged and
fused weights, pruned ones, the vectors of spectral norm, what an observer has seen. Nothing is cast inside of them.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from habana_mp._compiled import WhenImported
from habana_mp._composites import forwarding_code, full_name, untouched
from habana_mp._disable import disable_casts

#: By module: functions and methods; ``*`` stands for every class of the module that has such a method of its own.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "torch.optim.swa_utils": ("AveragedModel.update_parameters",),
    "torch.optim.lr_scheduler": ("*.step", "*._initial_step"),
    "torch.nn.utils.fusion": ("fuse_conv_bn_weights", "fuse_linear_bn_weights"),
    "torch.nn.utils.parametrize": (
        "register_parametrization",
        "remove_parametrizations",
        "ParametrizationList.right_inverse",
    ),
    "torch.nn.utils.parametrizations": ("_SpectralNorm.forward",),
    "torch.nn.utils.spectral_norm": ("SpectralNorm.compute_weight",),
    "torch.nn.utils.prune": ("BasePruningMethod.apply", "BasePruningMethod.remove"),
    "torch.ao.quantization.observer": ("*.forward", "*.calculate_qparams"),
}


def functions_of(module: types.ModuleType, names: tuple[str, ...]) -> Iterator[types.FunctionType]:
    """The functions of a module that :data:`FUNCTIONS` means, each once."""
    found: dict[int, types.FunctionType] = {}
    for name in names:
        owner, _, attribute = name.rpartition(".")
        owners: list[Any] = [module]
        if owner == "*":
            owners = [one for one in vars(module).values() if isinstance(one, type)]
            owners = [one for one in owners if one.__module__ == module.__name__]
        elif owner:
            owners = [getattr(module, owner, None)]
        for one in owners:
            value = getattr(one, "__dict__", {}).get(attribute)
            value = getattr(value, "__func__", value)  # of a class method
            if isinstance(value, types.FunctionType):
                found[id(value)] = value
    return iter(found.values())


_originals: dict[str, types.FunctionType] = {}


def without_casts(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """What the code of each such function is exchanged for."""
    with disable_casts():
        return _originals[name](*arguments, **keywords)


class _WithoutCasts(WhenImported):
    """The functions of one module."""

    def __init__(self, name: str, functions: tuple[str, ...]) -> None:
        super().__init__()
        self.name = name
        self._functions = functions
        self._codes: list[tuple[types.FunctionType, types.CodeType]] = []

    def do(self, module: Any) -> None:
        for function in functions_of(module, self._functions):
            self._codes.append((function, function.__code__))
            _originals[full_name(function)] = untouched(function)
            function.__code__ = forwarding_code(function, without_casts, imported=__name__)

    def undo(self, module: Any) -> None:
        for function, code in self._codes:
            function.__code__ = code
        self._codes = []


class State:
    """All of them, those of modules that are imported later too."""

    def __init__(self) -> None:
        self._parts = [_WithoutCasts(name, functions) for name, functions in FUNCTIONS.items()]

    def install(self) -> None:
        for part in self._parts:
            part.install()

    def uninstall(self) -> None:
        for part in self._parts:
            part.uninstall()
