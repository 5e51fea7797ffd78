"""The tensors from which a backward begins, and losses that a gradient scaler scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from habana_mp.common.places import line_of_user
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_functions
from habana_mp.patches.tools.notes import no_notes
from habana_mp.patches.tools.pytree import tree_leaves
from habana_mp.policy.precisions import PRECISIONS

_Listener = Callable[[torch.Tensor], None]

#: Those that get each tensor from which a backward begins, with those that get each loss that a scaler is about to
#: scale.
_listeners: dict[_Listener, _Listener | None] = {}


def notify_loss(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of the function that begins a backward."""
    for loss in _tensors_in(arguments[:1]):
        _note(loss, is_weighted=any(one is not None for one in arguments[1:2]))
        for listener in tuple(_listeners):
            listener(loss)
    return original(*arguments, **keywords)


def notify_scaled(losses: tuple[Any, ...]) -> None:
    """A gradient scaler is about to scale these losses."""
    unscaled[:] = [None]
    for loss in _tensors_in(losses[:1]) if _listeners else ():
        for listener in filter(None, tuple(_listeners.values())):
            listener(loss)


def _tensors_in(losses: tuple[Any, ...]) -> list[torch.Tensor]:
    leaves = losses if losses and isinstance(losses[0], torch.Tensor) else tree_leaves(losses)
    return [one for one in leaves if isinstance(one, torch.Tensor)]


_BACKWARD = assumption_of_functions(
    "torch.begun-backwards",
    "`torch.autograd.backward` takes the tensors that it begins from first, and `_input_metadata` of a node of its "
    "graph has the dtypes of the node's results",
    "the report does not warn of a loss in lower precision or without a scale, and the guard does not check losses",
)

BACKWARD = Exchange(notify_loss, {"torch.autograd": ("backward",)}, _BACKWARD, positional=1)


def listen(to_loss: _Listener, to_scaled: _Listener | None = None) -> None:
    """Calls ``to_loss`` with each tensor from which a backward begins while lists are in force, and ``to_scaled`` with
    each loss that a gradient scaler is about to scale."""
    _listeners[to_loss] = to_scaled


def stop_listening(to_loss: _Listener) -> None:
    _listeners.pop(to_loss, None)


#: The precision of the first lower loss from which a backward began, and the file and line.
lower_loss: list[tuple[str, str, int]] = []


#: File and line of the first backward from a loss that was computed in float16 and not scaled. None: a scaler scales.
unscaled: list[tuple[str, int] | None] = []


def _note(loss: torch.Tensor, *, is_weighted: bool) -> None:
    """Notes, for the report, that a backward begins from a loss in lower precision, or in float16 without a scale."""
    if loss.numel() != 1 or no_notes.entrances:
        return
    if loss.dtype in (torch.bfloat16, torch.float16) and not lower_loss:
        lower_loss.append((PRECISIONS[loss.dtype], *line_of_user()))
    if not unscaled and not is_weighted and _is_unscaled_float16(loss.grad_fn):
        unscaled.append(line_of_user())


def _is_unscaled_float16(last: Any) -> bool:
    """True if the lower results next to a loss in its graph are in float16, and its last operation scales nothing."""
    nodes = [] if last is None or last.name() == "MulBackward0" else [last]
    for node in nodes:  # it grows
        lower = {one.dtype for one in getattr(node, "_input_metadata", ())} & {torch.float16, torch.bfloat16}
        if lower or len(nodes) > 200:
            return torch.float16 in lower
        nodes += [one for one, _ in node.next_functions if one is not None]
    return False
