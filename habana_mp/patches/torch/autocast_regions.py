"""Regions of torch.autocast (rule 10): those that are open when lists come into force, and those that torch itself
enters in user-defined autograd functions."""

from __future__ import annotations

import inspect
import sys
import types
from functools import cache
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.devices import ACCELERATORS, devices
from habana_mp.common.errors import warn
from habana_mp.common.ledger import Assumption, holds
from habana_mp.common.places import line_of_user
from habana_mp.patches.tools.compiled_functions import is_compiling
from habana_mp.patches.tools.notes import no_notes

_WRAPPERS = Assumption(
    "torch.custom-fwd",
    assumed="the wrappers of torch.amp.custom_fwd and custom_bwd have variables `args`, the former `cast_inputs` too",
    check="their code has variables of these names",
    otherwise="such a function has the casts of any other in a region of `autocast`, and its backward may run without",
)


def disabled_regions() -> int:
    """Returns how many regions of torch.autocast this thread is in, or 0 if one of them is enabled."""
    depth = _core.autocast_depth(torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
    return 0 if _is_enabled() else depth


def _is_enabled() -> bool:
    """True if autocast is on in this thread, for a usual device: the package uses the flags of unusual ones."""
    return any(map(torch.is_autocast_enabled, filter(torch.amp.is_autocast_available, ("cpu", *ACCELERATORS))))


def warn_if_in_autocast() -> None:
    """Warns if a region of torch.autocast is open when lists come into force."""
    if _is_enabled():
        warn_of_autocast()


def codes_of_wrappers() -> tuple[types.CodeType, types.CodeType]:
    """Returns the code of the wrappers of ``torch.amp.custom_fwd`` and ``torch.amp.custom_bwd``. The latter enters
    torch.autocast without a request of the user: as it was in the forward. If it was off, casts are still wanted."""
    codes = _code_of(torch.amp.custom_fwd), _code_of(torch.amp.custom_bwd)
    return codes if holds(_WRAPPERS, lambda: _have_variables(*codes)) else (_never_called.__code__,) * 2


def _have_variables(forward: types.CodeType, backward: types.CodeType) -> bool:
    return "args" in forward.co_varnames and "cast_inputs" in forward.co_freevars and "args" in backward.co_varnames


def _code_of(decorator: Any) -> types.CodeType:
    code: types.CodeType = decorator(device_type="cpu")(_never_called).__code__
    return code


def _never_called(*_: Any) -> None: ...


def custom_fwd_asks() -> bool:
    """Runs when the wrapper of ``torch.amp.custom_fwd`` checks, in a region of ``hmp.autocast``, if autocast is on.

    Returns True if the function has `cast_inputs` and the lists apply: the wrapper then casts the inputs, and runs the
    function without casts. The state is stored in the function's context, because the backward must run as the forward
    does. Under convert alone such a function has the same casts as any other.
    """
    variables = sys._getframe(1).f_locals
    casts_inputs = variables["cast_inputs"] is not None and _core.lists_apply_here()
    state = _core.current_state()
    variables["args"][0]._habana_mp_state = state | _core.state_without_casts if casts_inputs else state
    return casts_inputs


def custom_bwd_state() -> int | None:
    # From here through autocast.__enter__ to the wrapper of torch.amp.custom_bwd.
    arguments = sys._getframe(2).f_locals.get("args")
    state: int | None = getattr(arguments[0], "_habana_mp_state", None) if arguments else None
    return state


#: The warnings that were given, which appear once. Not an Event: its lock stays locked if memory runs out when it is
#: released.
_given: set[str] = set()


#: The places of regions that switch casts off for a device that is not here, with its type.
disabled_for_no_device: dict[tuple[str, int], str] = {}


def autocast_is_entered(device_type: str | None, enabled: bool) -> None:
    """Runs when the user enters torch.autocast while casts are on. None stands for CUDA."""
    if enabled:
        warn_of_autocast()
        return
    device = device_type or "cuda"
    caller = inspect.currentframe()
    is_left = caller is not None and caller.f_back is not None and caller.f_back.f_code.co_name == "__exit__"
    # A compiler enters regions by itself, to restore the state.
    if not is_left and not no_notes.entrances and not is_compiling() and device not in _devices_here():
        disabled_for_no_device.setdefault(line_of_user(), device)


@cache
def _devices_here() -> tuple[str, ...]:
    return tuple(devices())


#: What switches a framework's own autocast on, by the package whose code enters it.
_SWITCHES = {
    "accelerate": "`mixed_precision=` of Accelerate, which Trainer sets for `bf16=True` and `fp16=True`",
    "ignite": "`amp_mode=` of Ignite",
    "lightning": "`precision=` of Lightning",
    "lightning_fabric": "`precision=` of Lightning",
    "pytorch_lightning": "`precision=` of Lightning",
    "transformers": "transformers, as for `bf16=True` of Trainer",
}


def warn_of_autocast() -> None:
    if "autocast" in _given:
        return
    _given.add("autocast")
    warn(
        f"torch.autocast is enabled while habana_mp casts{_by_framework()}: autocast acts after the lists, so an "
        "operation that it lowers runs in its precision whatever they say; use one of the two"
    )


def _by_framework() -> str:
    """Names the framework whose code enters torch.autocast, and the line of the script that calls it."""
    frame, switch = inspect.currentframe(), ""
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in ("torch", "habana_mp", "contextlib"):
            switch = switch or _SWITCHES.get(package, "")
            if not switch:
                break
            if "/site-packages/" not in frame.f_code.co_filename:
                return f", by {switch}, in the call at {frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def forget_warnings() -> None:
    """Resets the warnings, so that they appear again as in a new process."""
    _given.clear()
