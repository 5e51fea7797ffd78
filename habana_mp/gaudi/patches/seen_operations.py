"""The operations that torch runs, seen one by one below autograd: they are reported, or recorded for replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from habana_mp.patches.tools.dispatch_modes import Mode, require_modes, written_by
from habana_mp.patches.tools.pytree import tree_leaves


class Seen(Mode):  # type: ignore[misc]  # see `Mode`
    """Reports each operation by its name, the name of its first tensor argument, and that tensor."""

    def __init__(self, tell: Callable[[str, str, Tensor], None]) -> None:
        require_modes()
        super().__init__()
        self._report = tell

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            first = next((one for one in tree_leaves(value) if isinstance(one, Tensor)), None)
            if first is not None:
                self._report(func.overloadpacket.__name__, argument.name, first)
                break
        return func(*args, **kwargs)


class Recording(Mode):  # type: ignore[misc]  # see `Mode`
    """Operations that were called between :meth:`capture_begin` and :meth:`capture_end`. They can be replayed with the
    same tensors.

    Writes to tensors from before the recording are undone at the end: a device only records them in a capture.
    """

    def __init__(self) -> None:
        require_modes()
        super().__init__()
        self._is_open = False
        self.reset()

    def reset(self) -> None:
        self._calls: list[tuple[Any, Any, dict[str, Any], list[Tensor | None]]] | None = None
        #: Tensors from before the recording that were written to, with copies of their former values.
        self._before: list[tuple[Tensor, Tensor]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert self._calls is not None
        kwargs = kwargs or {}
        for tensor in written_by(func, args, kwargs):
            if tensor.untyped_storage().data_ptr() not in self._known:
                self._before.append((tensor, tensor.clone()))
        result = func(*args, **kwargs)
        views = [one.alias_info is not None for one in func._schema.returns]
        given = result if isinstance(result, tuple) else (result,)
        kept: list[Tensor | None] = []
        for place, one in enumerate(given):
            for leaf in tree_leaves(one):
                is_made = isinstance(leaf, Tensor) and not views[min(place, len(views) - 1)]
                kept.append(leaf if is_made else None)
                if is_made:
                    self._known.add(leaf.untyped_storage().data_ptr())
        self._calls.append((func, args, kwargs, kept))
        return result

    def capture_begin(self) -> None:
        if self._is_open:
            raise RuntimeError("this graph is being captured already: call `capture_end` first")
        self.reset()
        self._calls = []
        self.__enter__()
        self._is_open = True

    def capture_end(self) -> None:
        if not self._is_open:
            raise RuntimeError("no capture has begun: call `capture_begin` first")
        self.__exit__(None, None, None)
        self._is_open = False
        with torch.no_grad():
            for tensor, before in reversed(self._before):
                tensor.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        if self._calls is None or self._is_open:
            raise RuntimeError("nothing was captured: call `capture_begin` and `capture_end` first")
        with torch.no_grad():
            for func, args, kwargs, kept in self._calls:
                result = func(*args, **kwargs)
                for old, new in zip(kept, tree_leaves(result), strict=True):
                    if old is not None and old is not new:
                        old.copy_(new)
