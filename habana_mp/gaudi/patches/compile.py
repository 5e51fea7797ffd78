"""``torch.compile(backend="hpu_backend")``."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.when_imported import WhenImported

_REGISTRY = Assumption(
    "dynamo.backends",
    assumed="Dynamo keeps its backends by name in a dictionary `_COMPILER_FNS`, and their names in `_BACKENDS`",
    check="both are dictionaries",
    otherwise='torch.compile refuses backend="hpu_backend"; leave it out',
)

_COMPILED_AUTOGRAD = Assumption(
    "dynamo.compiled-autograd",
    assumed="`torch._dynamo.config.compiled_autograd` makes torch.compile compile the backward as a whole",
    check="it is there and true or false",
    otherwise="`enable_compiled_autograd` raises NotImplementedError",
)

#: The names of Gaudi's backends in its releases.
NAMES = ("hpu_backend", "aot_hpu_training_backend", "aot_hpu_inference_backend")

#: The device's default backend.
_DEFAULT = "inductor"


class HpuBackends(WhenImported):
    """Makes Gaudi's backends mean the default one, as long as the stand-in is on."""

    name = "torch._dynamo.backends.registry"

    def __init__(self, meaning: Meaning) -> None:
        super().__init__()
        self._meaning = meaning
        self._added: list[str] = []

    def do(self, module: Any) -> None:
        if not holds(_REGISTRY, lambda: _is_as_expected(module), self.name):
            return
        for name in NAMES:
            if name not in module._COMPILER_FNS and name not in module._BACKENDS:
                module.register_backend(self._backend(module, name), name=name)
                self._added.append(name)

    def undo(self, module: Any) -> None:
        while self._added:
            name = self._added.pop()
            module._COMPILER_FNS.pop(name, None)
            module._BACKENDS.pop(name, None)

    def _backend(self, module: Any, name: str) -> Any:
        def compile_graph(graph: Any, inputs: list[Any], **_: Any) -> Any:
            self._meaning.tell("torch.compile", name, _DEFAULT)
            return module.lookup_backend(_DEFAULT)(graph, inputs)  # without Gaudi's options

        return compile_graph


def compile_backward(enabled: bool) -> None:
    """Makes torch.compile compile the backward as a whole too.

    Raises:
        NotImplementedError: this torch has no such switch.
    """
    config: Any = importlib.import_module("torch._dynamo.config")
    if not holds(_COMPILED_AUTOGRAD, lambda: isinstance(config.compiled_autograd, bool)):
        raise NotImplementedError(
            f"`enable_compiled_autograd`: torch {torch.__version__} cannot compile a backward as a whole; leave it out"
        )
    config.compiled_autograd = enabled


def _is_as_expected(module: Any) -> bool:
    return isinstance(module._COMPILER_FNS, dict) and isinstance(module._BACKENDS, dict)
