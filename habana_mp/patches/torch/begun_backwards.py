"""The tensors from which a backward begins, and losses that a gradient scaler scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp.common.places import line_of_user
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions
from habana_mp.patches.tools.notes import no_notes
from habana_mp.patches.tools.pytree import tree_leaves
from habana_mp.policy.precisions import PRECISIONS

#: The function that begins a backward.
BEGINS_BACKWARD: Table = {"torch.autograd": ("backward",)}

_Listener = Callable[[torch.Tensor], None]

#: Those that get each tensor from which a backward begins, with those that get each loss that a scaler is about to
#: scale.
_listeners: dict[_Listener, _Listener | None] = {}


def notify_loss(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of the function that begins a backward."""
    for loss in _tensors_in(arguments[:1]):
        _note_if_lower(loss)
        for listener in tuple(_listeners):
            listener(loss)
    return original(*arguments, **keywords)


def notify_scaled(losses: tuple[Any, ...]) -> None:
    """A gradient scaler is about to scale these losses."""
    for loss in _tensors_in(losses[:1]) if _listeners else ():
        for listener in filter(None, tuple(_listeners.values())):
            listener(loss)


def _tensors_in(losses: tuple[Any, ...]) -> list[torch.Tensor]:
    leaves = losses if losses and isinstance(losses[0], torch.Tensor) else tree_leaves(losses)
    return [one for one in leaves if isinstance(one, torch.Tensor)]


_BACKWARD = assumption_of_functions(
    "torch.begun-backwards",
    "`torch.autograd.backward` takes the tensors that it begins from first",
    "the report does not warn of a loss in lower precision, and the guard does not check losses",
)

BACKWARD = Exchange(notify_loss, BEGINS_BACKWARD, assumption=_BACKWARD, positional=1)


def listen(to_loss: _Listener, to_scaled: _Listener | None = None) -> None:
    """Calls ``to_loss`` with each tensor from which a backward begins while lists are in force, and ``to_scaled`` with
    each loss that a gradient scaler is about to scale."""
    _listeners[to_loss] = to_scaled


def stop_listening(to_loss: _Listener) -> None:
    _listeners.pop(to_loss, None)


#: The precision of the first lower loss from which a backward began, and the file and line.
lower_loss: list[tuple[str, str, int]] = []


def _note_if_lower(loss: torch.Tensor) -> None:
    """Notes, for the report, that a backward begins from a loss in lower precision."""
    is_lower = loss.dtype in (torch.bfloat16, torch.float16)
    if is_lower and not lower_loss and not no_notes.entrances and loss.numel() == 1:
        lower_loss.append((PRECISIONS[loss.dtype], *line_of_user()))
