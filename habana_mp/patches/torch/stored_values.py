"""Values that become a Parameter, a buffer, an attribute of a module or a tensor's ``.data`` (rule 11).

Lowered values are made float32 again, with a warning. So is any lower value that replaces a float32 tensor, unless it
is a conversion that is stored outside of a module's call: then the owner of the tensor has asked for it. Within a call
the dtype of a conversion is often that of an activation, which the lists may have lowered.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook

from habana_mp import _core
from habana_mp.common.errors import warn
from habana_mp.common.ledger import Assumption, holds
from habana_mp.common.places import line_of_user
from habana_mp.patches.tools.casts_off import casts_off
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.tapped_calls import CODE_OF_CALLS

_ORIGIN = Assumption(
    "torch.stored-values",
    assumed="`to`, `bfloat16`, `half` and `type` of Tensor are methods of C, and `__setattr__` of torch.nn.Module is a "
    "function of Python; autograd names the node of a conversion `ToCopyBackward0`, and that of a leaf has `variable`",
    check="the core looks at how they are called, and torch has these two nodes",
    otherwise="a lower value that is stored over a float32 tensor, or that autograd recorded, stays lower",
)


class StoredValues(Patch):
    """Installs a torch hook that sees buffers. The core calls `look_at_value` for all other values."""

    def __init__(self) -> None:
        self._handle: Any = None

    def install(self, settings: Settings) -> None:
        if self._handle is None:
            if _origin_is_known():
                _core.tap_state(_set_function(), False)
            look: Any = _look_at_buffer  # torch's annotation has no return value
            self._handle = register_module_buffer_registration_hook(look)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _origin_is_known() -> bool:
    return holds(_ORIGIN, _can_find_origin)


def _can_find_origin() -> bool:
    _core.tap_state(_set_function(), True)
    nodes: Any = torch._C._functions
    return hasattr(nodes, "ToCopyBackward0") and hasattr(nodes.AccumulateGrad, "variable")


def _set_function() -> Any:
    return vars(torch.nn.Module)["__setattr__"]


#: The lines that warnings were issued for.
_warned: set[tuple[str, int]] = set()


def _look_at_buffer(module: torch.nn.Module, name: str, value: Any) -> torch.Tensor | None:
    """Returns the tensor that becomes the buffer instead, or None."""
    if torch.compiler.is_compiling() or not isinstance(value, torch.Tensor):
        return None
    former = module._buffers.get(name)
    is_float32 = former is not None and former.dtype is torch.float32
    kept = look_at_value(f"the buffer `{name}` of {type(module).__name__}", value, former if is_float32 else None)
    return None if kept is value else kept


def look_at_value(what: str, values: torch.Tensor, former: torch.Tensor | None) -> torch.Tensor:
    """Returns the values for a Parameter, a buffer, an attribute of a module, or a tensor's ``.data``. `former` is the
    float32 tensor that they replace, if any."""
    if values.dtype not in (torch.bfloat16, torch.float16):
        return values
    if _is_lowered(values):
        return _in_float32(what, values, "is made from a result that habana_mp lowered")
    if former is not None and _core.casts_are_made_here() and not _is_meant(former, values):
        if _is_conversion(values) and _has_values_of(former, values):
            # Converted from the tensor that it replaces: no rounding is needed. As a conversion does, the copy has its
            # own memory, and gradients flow through it if autograd recorded the conversion.
            with casts_off(), torch.set_grad_enabled(values.grad_fn is not None):
                return former.clone()
        why = "is assigned a tensor in lower precision, perhaps computed from results that habana_mp lowered"
        return _in_float32(what, values, why)
    return values


def _in_float32(what: str, values: torch.Tensor, why: str) -> torch.Tensor:
    line = line_of_user()
    if line not in _warned:
        _warned.add(line)
        warn(
            f"{what} {why}; it stays in float32, but its values were rounded. Compute them under hmp.disable_casts(), "
            "or use hmp.keep on the module that computes them, to have them exact; call .float() to store them rounded"
        )
    with casts_off():
        return values.float()


def _is_meant(former: torch.Tensor, values: torch.Tensor) -> bool:
    """True if a tensor method converted float32 values to these lower ones outside of a module's call, or if this is
    unknown. Also true if the memory of a tensor was freed, as by sharding: then no value is stored."""
    if type(values) is not torch.Tensor or torch.nn.parameter.is_lazy(former) or not _origin_is_known():
        return True
    return _was_freed(former) or _was_freed(values) or (not _is_in_module_call() and _is_conversion(values))


def _is_conversion(values: torch.Tensor) -> bool:
    """True if a method of a float32 tensor converted these values."""
    return _core.was_converted(values) or _first_computing(values.grad_fn)[0] == _CONVERTS


def _has_values_of(former: torch.Tensor, values: torch.Tensor) -> bool:
    """True if these are the rounded values of the former tensor."""
    if former.shape != values.shape or former.is_meta or values.is_meta:
        return False
    with casts_off(), torch.no_grad():
        return torch.equal(former.to(values.dtype), values)


def _is_in_module_call() -> bool:
    """True if the innermost torch function around is a module's call. False within ``Module.to`` and similar methods: a
    call may also convert a whole model."""
    calls, conversion = CODE_OF_CALLS, torch.nn.Module._apply.__code__
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is calls:
            return True
        if frame.f_code is conversion:
            return False
    return False


def _was_freed(tensor: torch.Tensor) -> bool:
    try:
        return tensor.numel() != 0 and tensor.untyped_storage().nbytes() == 0
    except (NotImplementedError, RuntimeError):  # without a storage: sparse, or in a transform
        return False


def _is_lowered(values: torch.Tensor) -> bool:
    """True for a result that was lowered, or a view of one. The core remembers those that autograd does not track; for
    the others the graph shows their origin. Both checks depend only on these values."""
    if _core.was_lowered(values):
        return True
    return _core.may_be_lowered_in_graph(values) and _origin_is_known() and _comes_from_float32(values.grad_fn)


_CONVERTS = "ToCopyBackward0"

#: Nodes of autograd's graph that do not change values, without "Backward" and the number after it.
_SAME_VALUES = frozenset(
    (
        *("Alias", "AsStrided", "Clone", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "UnsafeSplit", "UnsafeView", "Unsqueeze"),
        "View",
    )
)


def _first_computing(node: Any) -> tuple[str, Any]:
    """Returns the first node at or behind this one that changes values, after its name, which is empty without one."""
    while node is not None and node.name().partition("Backward")[0] in _SAME_VALUES:
        node = node.next_functions[0][0]
    return ("" if node is None else node.name()), node


def _comes_from_float32(node: Any) -> bool:
    """True if the results of this node were computed, not only converted, from a float32 leaf."""
    name, node = _first_computing(node)
    nodes: Any = torch._C._functions
    waiting = [] if name in ("", _CONVERTS) else [node]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        # Checked for torch's own node only: a user-defined autograd.Function may have an attribute of that name.
        leaf = node.variable if isinstance(node, nodes.AccumulateGrad) else None
        if leaf is not None and leaf.dtype is torch.float32:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [one for one, _ in node.next_functions if one is not None]
    return False


def forget_warnings() -> None:
    """Resets the warnings, so that they appear again as in a new process."""
    _warned.clear()
