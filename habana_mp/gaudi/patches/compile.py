"""``torch.compile(backend="hpu_backend")``."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.devices import Devices
from habana_mp.gaudi.patches.changes import Changes

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


def change_backends(hpu: Devices, changes: Changes) -> None:
    """Makes Gaudi's backends mean the default one, as long as the stand-in is on."""

    def change(module: Any) -> None:
        def backend(name: str) -> Any:
            def compile_graph(graph: Any, inputs: list[Any], **_: Any) -> Any:
                hpu.log_mapping("torch.compile", name, _DEFAULT)
                return module.lookup_backend(_DEFAULT)(graph, inputs)  # without Gaudi's options

            return compile_graph

        tables = ("_COMPILER_FNS", "_BACKENDS")
        if holds(_REGISTRY, lambda: all(isinstance(vars(module)[one], dict) for one in tables), module.__name__):
            for name in NAMES:
                module.register_backend(backend(name), name=name)
                for table in tables:
                    changes.callback(vars(module)[table].pop, name, None)

    changes.when_imported("torch._dynamo.backends.registry", change)


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
