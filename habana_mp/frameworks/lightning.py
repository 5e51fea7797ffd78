"""Mixed precision for Lightning's Trainer and for Fabric."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import nn

from habana_mp import hmp
from habana_mp.frameworks.common import convert, require, write_report
from habana_mp.patches.tools.in_float32 import value_in_float32

#: The packages of Lightning, each with a class of its own for precision plugins.
_PACKAGES = ("lightning.pytorch", "pytorch_lightning", "lightning.fabric", "lightning_fabric")


class MixedPrecision:
    """A precision plugin: ``Trainer(plugins=MixedPrecision())``, ``Fabric(plugins=MixedPrecision())``.

    Trainer's ``fit``, ``validate``, ``test`` and ``predict`` run in mixed precision, and write the report into the
    Trainer's folder. With Fabric casts begin when ``fabric.setup`` gets the first model, results of models are float32,
    as under Fabric's own mixed precision, and :meth:`report` writes the report.

    Args:
        validation: The arguments of :func:`habana_mp.hmp.autocast` for models that are not in training mode:
            ``{"preset": "torch-cpu"}``, or ``{"enabled": False}`` for float32. None: as in training.
        options: Those of :func:`habana_mp.hmp.convert`, by default the recommended lists.
    """

    def __new__(cls, **_: Any) -> MixedPrecision:
        # Now, not at import: by now the program has imported the package that it uses.
        package = next((one for one in _PACKAGES if one in sys.modules), _PACKAGES[0])
        name = package.partition(".")[0]
        require(name, importlib.import_module(name).__version__, "2.1")
        kind: Any = cls
        return object.__new__(_with_base(kind, importlib.import_module(f"{package}.plugins.precision").Precision))

    def __init__(self, *, validation: Mapping[str, Any] | None = None, **options: Any) -> None:
        self._validation = None if validation is None else dict(validation)
        self._options = options
        self._modules: list[nn.Module] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__mro__[1], (), vars(self)

    def convert_module(self, module: nn.Module) -> nn.Module:
        if not self._modules:
            convert(self._options)
        if getattr(module, "_trainer", None) is None:
            # Trainer's base class, which derives from that of Fabric, calls hooks that a module has under Trainer only.
            _, kind, *bases = type(self).__mro__
            self.__class__ = _with_base(kind, [one for one in bases if one.__name__ == "Precision"][-1])
        self._modules.append(module)
        return module

    def forward_context(self) -> AbstractContextManager[Any]:
        if self._validation is None or any(one.training for one in self._modules):
            return nullcontext()
        device = next((one.device.type for module in self._modules for one in module.parameters()), "cpu")
        return hmp.autocast(device, **self._validation)

    def convert_output(self, data: Any) -> Any:
        # Only Fabric calls it.
        return apply_to_collection(data, torch.Tensor, value_in_float32)

    def teardown(self) -> None:
        # Only Trainer calls it.
        if not self._modules:
            return
        trainer: Any = self._modules[0].trainer
        # After an error the other ranks may wait elsewhere.
        _write_report(trainer, trainer.log_dir or trainer.default_root_dir, of_all_ranks=not trainer.interrupted)
        self._modules.clear()
        hmp.restore()

    def report(self, fabric: Any) -> None:
        """Writes the report into the folder of Fabric's logger. All ranks must call it."""
        _write_report(fabric, getattr(fabric.logger, "log_dir", None) if fabric.loggers else None)


@cache
def _with_base(kind: Any, base: Any) -> type[MixedPrecision]:
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__})


def _write_report(user: Any, folder: str | None, *, of_all_ranks: bool = True) -> None:
    """Writes the report of a Trainer or Fabric."""
    writers = (one.experiment for one in user.loggers if type(one).__name__ == "TensorBoardLogger")
    logger = logging.getLogger(type(user).__module__)  # below the logger of its package
    write_report(folder, logger, next(writers, None), of_all_ranks=of_all_ranks)
