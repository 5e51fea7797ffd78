"""Values that become a Parameter, a buffer or a tensor's ``.data`` (rule 11): those that were lowered are made float32
again, with a warning."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook

from habana_mp import _core
from habana_mp._disable import disable_casts
from habana_mp._errors import line_of_user, warn
from habana_mp._ledger import Assumption, holds
from habana_mp.patches.base import Patch, Settings

_NODES = Assumption(
    "torch.graph-nodes",
    assumed="autograd names the node of a conversion `ToCopyBackward0`, and that of a leaf has it as `variable`",
    check="torch has these two nodes, the latter with such an attribute",
    otherwise="a buffer or Parameter that is made of a lowered result which autograd recorded keeps its low precision",
)

_BUFFERS = Assumption(
    "torch.module-buffers",
    assumed="a module has its buffers in the dictionary `_buffers`",
    check="torch.nn.Module declares it",
    otherwise="there is no warning where a buffer in float32 is replaced by one in lower precision",
)


class StoredValues(Patch):
    """Installs a hook of torch's that sees buffers. The core calls `look_at_weight` for Parameters and ``.data``."""

    def __init__(self) -> None:
        self._handle: Any = None

    def install(self, settings: Settings) -> None:
        if self._handle is None:
            for tells in (_tells_nodes, _tells_buffers):
                tells()  # so that the ledger has the answer before anything is stored
            look: Any = _look_at_buffer  # torch's annotation has no return value
            self._handle = register_module_buffer_registration_hook(look)

    def uninstall(self) -> None:
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _tells_nodes() -> bool:
    return holds(_NODES, _names_nodes)


def _names_nodes() -> bool:
    nodes: Any = torch._C._functions
    return hasattr(nodes, "ToCopyBackward0") and hasattr(nodes.AccumulateGrad, "variable")


def _tells_buffers() -> bool:
    return holds(_BUFFERS, lambda: "_buffers" in torch.nn.Module.__annotations__)


#: The lines that were warned about.
_warned: set[tuple[str, int]] = set()


def _look_at_buffer(module: torch.nn.Module, name: str, value: Any) -> torch.Tensor | None:
    """What becomes the buffer instead, if anything."""
    if torch.compiler.is_compiling():
        return None
    if not isinstance(value, torch.Tensor):
        return None
    what, former = f"the buffer `{name}` of {type(module).__name__}", _buffer(module, name)
    if _is_lowered(value):
        return _raised_again(what, value)
    if (
        former is not None
        and former.dtype is torch.float32
        and value.dtype in (torch.bfloat16, torch.float16)
        and _core.lists_speak_here()  # what torch keeps of a pruned weight, say, may follow the weight
    ):
        _warn_of_state(f"{what} {_PERHAPS_LOWERED}; compute it under hmp.disable_casts() to keep it in float32")
    return None


def _buffer(module: torch.nn.Module, name: str) -> torch.Tensor | None:
    return module._buffers.get(name) if _tells_buffers() else None


def look_at_weight(what: str, values: torch.Tensor, former: torch.Tensor | None) -> torch.Tensor:
    """The values that a Parameter, or a tensor's ``.data``, gets."""
    if _is_lowered(values):
        return _raised_again(what, values)
    if isinstance(former, torch.nn.Parameter) and _core.casts_are_made_here() and not _is_cast_of(former, values):
        return _raised_again(f"the `.data` of a float32 Parameter {_PERHAPS_LOWERED}", values, "")
    return values


_PERHAPS_LOWERED = "is assigned a tensor in lower precision, perhaps computed from results that habana_mp lowered"
_KNOWN_TO_BE_LOWERED = " is made from a result that habana_mp lowered"


def _raised_again(what: str, values: torch.Tensor, why: str = _KNOWN_TO_BE_LOWERED) -> torch.Tensor:
    _warn_of_state(
        f"{what}{why}; it stays in float32, but its values were rounded: compute them in a module's __init__ or under "
        "hmp.disable_casts() to have them exact"
    )
    with disable_casts():
        return values.float()


def _is_cast_of(former: torch.Tensor, values: torch.Tensor) -> bool:
    """True if `values` are `former` in lower precision, as where a model is converted, or if that cannot be found out.
    It compares at most 16 places of each dimension."""
    if type(values) is not torch.Tensor or values.is_meta or torch.nn.parameter.is_lazy(former):
        return True
    if values.device != former.device or values.shape != former.shape or values.layout is not torch.strided:
        return True
    part = (slice(16),) * values.dim()
    try:
        if not (_has_memory(former) and _has_memory(values)):
            return True
        with disable_casts(), torch.no_grad():
            cast = former[part].to(values.dtype)
            return bool(((cast == values[part]) | cast.isnan()).all())
    except Exception:  # a transform: whatever it is, it is no reason to warn
        return True


def _has_memory(tensor: torch.Tensor) -> bool:
    """True if its memory was not freed, as sharding does."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.numel() == 0 or tensor.untyped_storage().nbytes() >= needed


def _is_lowered(values: torch.Tensor) -> bool:
    """True for a result that was lowered, or a view of one. The core remembers those that autograd does not track; the
    graph shows where the others come from. Either answer depends on these values alone."""
    if _core.was_lowered(values):
        return True
    return _core.may_be_lowered_in_graph(values) and _tells_nodes() and _comes_from_float32(values.grad_fn)


#: Nodes of autograd's graph that pass values on as they are, without "Backward" and the number behind it.
_SAME_VALUES = frozenset(
    (
        *("Alias", "AsStrided", "Clone", "Diagonal", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
        *("SplitWithSizes", "Squeeze", "T", "Transpose", "Unbind", "Unfold", "UnsafeSplit", "UnsafeView", "Unsqueeze"),
        "View",
    )
)


def _comes_from_float32(node: Any) -> bool:
    """True where the results of this node were computed, not just converted, from a leaf in float32."""
    while node is not None and node.name().partition("Backward")[0] in _SAME_VALUES:
        node = node.next_functions[0][0]
    if node is None or node.name() == "ToCopyBackward0":
        return False
    nodes: Any = torch._C._functions
    waiting = [node]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        # Only of torch's own node: a user's autograd.Function may have an attribute of that name.
        leaf = node.variable if isinstance(node, nodes.AccumulateGrad) else None
        if isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float32:
            return True
        if node not in seen:
            seen.add(node)
            waiting += [one for one, _ in node.next_functions if one is not None]
    return False


def _warn_of_state(text: str) -> None:
    line = line_of_user()
    if line not in _warned:
        _warned.add(line)
        warn(text)


def forget_warnings() -> None:
    """Warn again, as in a new process."""
    _warned.clear()
