"""Cached casts of weights: when the core may cache them, and the writes to weights that it must see."""

from __future__ import annotations

from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import UnmetError, holds
from habana_mp.ops.find import HANDS_OUT_MEMORY, UNCOUNTED_METHODS
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.tracked_casts import CachedCast
from habana_mp.patches.torch.accelerators import accelerator_of, free_memory, wait_for_stream
from habana_mp.patches.torch.uncounted_writers import WRITERS, operators_have_builtins

#: A view of a weight with fewer elements is cast separately: finding the weight and the same part of its cast takes
#: as long.
LEAST_PART = 1 << 14

#: A weight with fewer elements whose gradient is tracked by autograd is cast by torch within the call, if torch can do
#: so: a training step uses it once or a few times, and a cached cast must then be made again and added to the graph.
LEAST_TRACKED = 1 << 14

#: The largest limit in bytes that the core takes.
_LARGEST_LIMIT = 2**64 - 1


class WeightCache(Patch):
    """The cache of casts."""

    def install(self, settings: Settings) -> None:
        limit = settings.options.weight_cache_limit
        if not settings.options.weight_cache or why_none_is_cached():
            self.uninstall()
            return
        _core.weights_tap(_methods())
        view = _core.unpatched_copy(torch.ops.aten._unsafe_view.default._op)
        most_bytes = None if limit is None else min(limit, _LARGEST_LIMIT)
        _core.weights_configure(
            on=True,
            view=view,
            recorded=CachedCast.apply,
            most_bytes=most_bytes,
            least_part=LEAST_PART,
            least_tracked=LEAST_TRACKED,
            accelerator_of=accelerator_of,
            free_memory=free_memory,
            wait_for_stream=wait_for_stream,
        )

    def uninstall(self) -> None:
        # Drops all casts.
        _core.weights_configure(on=False)
        _core.weights_untap()


def why_none_is_cached() -> str:
    """Returns why this process can cache no cast of a weight, or an empty text if it can. Torch must be bound."""
    if not _core.looks_inside():
        return "it could not be found out how torch stores a tensor"
    sees_who_writes = operators_have_builtins() and holds(WRITERS, _has_methods, "methods")
    return "" if sees_who_writes else "some writes into weights cannot be seen"


#: Methods that older releases of torch lack.
_MAY_BE_MISSING = ("const_data_ptr", "_lazy_clone")


def _methods() -> dict[str, Any]:
    methods = {name: getattr(torch._C.TensorBase, name, None) for name in (*HANDS_OUT_MEMORY, *UNCOUNTED_METHODS)}
    methods["storage.data_ptr"] = torch._C.StorageBase.data_ptr  # type: ignore[attr-defined]  # torch's stubs lack it
    return methods


def _has_methods() -> bool:
    missing = [name for name, method in _methods().items() if method is None and name not in _MAY_BE_MISSING]
    if missing:
        raise UnmetError(f"{', '.join(missing)} missing")
    return True
