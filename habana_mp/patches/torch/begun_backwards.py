"""The tensors from which a backward begins, and losses that a gradient scaler scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp.common.places import line_of_user
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.tools.notes import notes
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.pytree import tree_leaves
from habana_mp.policy.precisions import PRECISIONS

#: The function that begins a backward.
BEGINS_BACKWARD: Table = {"torch.autograd": ("backward",)}

_Listener = Callable[[torch.Tensor], None]
_listeners: list[_Listener] = []
_of_scaled: list[_Listener] = []


def notify_loss(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of the function that begins a backward."""
    _notify(_listeners, *arguments[:1])
    return original(*arguments, **keywords)


def notify_scaled(losses: tuple[Any, ...]) -> None:
    """A gradient scaler is about to scale these losses."""
    _notify(_of_scaled, *losses[:1])


def _notify(listeners: list[_Listener], losses: Any = ()) -> None:
    if not listeners:
        return
    for one in (losses,) if isinstance(losses, torch.Tensor) else tree_leaves(losses):
        if isinstance(one, torch.Tensor):
            for listener in tuple(listeners):
                listener(one)


_BACKWARD = assumption_of_functions(
    "torch.begun-backwards",
    "`torch.autograd.backward` takes the tensors that it begins from first",
    "the report does not warn of a loss in lower precision, and the guard does not check losses",
)

(_backward,) = Exchange(notify_loss, BEGINS_BACKWARD, assumption=_BACKWARD, positional=1).patches()


def listen(to_loss: _Listener, to_scaled: _Listener | None = None) -> None:
    """Calls ``to_loss`` with each tensor from which a backward begins, and ``to_scaled`` with each loss that a gradient
    scaler is about to scale. A listener that was given before is not added again."""
    before, scaled_before = _listeners.copy(), _of_scaled.copy()
    try:
        for listener, listeners in ((to_loss, _listeners), (to_scaled, _of_scaled)):
            if listener is not None and listener not in listeners:
                listeners.append(listener)
        _backward.install(Settings())
    except BaseException:
        _listeners[:], _of_scaled[:] = before, scaled_before
        _uninstall_if_unused()
        raise


def stop_listening(to_loss: _Listener, to_scaled: _Listener | None = None) -> None:
    for listener, listeners in ((to_loss, _listeners), (to_scaled, _of_scaled)):
        if listener in listeners:
            listeners.remove(listener)
    _uninstall_if_unused()


def _uninstall_if_unused() -> None:
    if not _listeners:
        _backward.uninstall()


_LOWER = (torch.bfloat16, torch.float16)

#: The precision of the first lower loss from which a backward began, and the file and line.
lower_loss: list[tuple[str, str, int]] = []


class LowerLosses(Patch):
    """Notes, for the report, that a backward begins from a loss in lower precision."""

    def install(self, settings: Settings) -> None:
        listen(_note_if_lower)

    def uninstall(self) -> None:
        stop_listening(_note_if_lower)


def _note_if_lower(loss: torch.Tensor) -> None:
    if loss.dtype in _LOWER and not lower_loss and notes.are_taken and loss.numel() == 1:
        lower_loss.append((PRECISIONS[loss.dtype], *line_of_user()))
