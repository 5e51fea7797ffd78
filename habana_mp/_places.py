"""Places where precision is state (rule 11): constructing modules, optimizer steps, DataLoader workers, the code of
torch.distributed and of a few libraries.

The core finds out where it is; this module tells it what to look for and puts torch's own hooks in.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.optim import Optimizer
from torch.utils.data._utils import worker

from habana_mp import _core
from habana_mp._compiled import HooksOutsideOfGraphs
from habana_mp._disable import disable_casts
from habana_mp._errors import line_of_user, warn
from habana_mp._hooks import StepHook, code_around_steps
from habana_mp._imports import WhenImported
from habana_mp._steps import UnwrappedSteps, in_step
from habana_mp.ops.find import SILENT_WRITERS


class _Distributed(WhenImported):
    """A part of torch.distributed that handles parameters and gradients in Python. Only where one is imported does each
    cast ask who calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        _core.set_distributed_is_imported(True)

    def undo(self, module: Any) -> None:
        _core.set_distributed_is_imported(False)


#: Libraries whose own arithmetic is not lowered: they factorise matrices that bfloat16 leaves without an inverse, or
#: add up what is compared to the last digit. What they call stays covered: a network of torch's modules is lowered.
EXACT_LIBRARIES = ("botorch", "gpytorch", "linear_operator", "torchmetrics")


class _Exact(WhenImported):
    """One of them. Only where one is imported is it asked, before a list lowers something, who calls."""

    files: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def do(self, module: Any) -> None:
        self._set([*self.files, *(f"{path}/" for path in module.__path__)])

    def undo(self, module: Any) -> None:
        self._set([])  # all of them are taken out at once

    def _set(self, files: list[str]) -> None:
        type(self).files = files
        _core.set_exact_files(tuple(files) or None)


class Places:
    """The hooks that are in torch while a policy is installed."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._step_hooks = [StepHook(_before_step, before=True), StepHook(_after_step, before=False)]
        self._unwrapped_steps = UnwrappedSteps(_before_step, _after_step)
        self._distributed = [
            _Distributed("torch.distributed.fsdp"),
            _Distributed("torch.distributed.algorithms.ddp_comm_hooks"),
        ]
        self._exact = [_Exact(name) for name in EXACT_LIBRARIES]

    def install(self) -> None:
        if self._handles:
            return
        regions = _disabled_regions()  # before what it asks is watched
        _core.watch_builtins(
            torch.set_autocast_enabled,
            torch.set_autocast_dtype,
            torch.autocast_increment_nesting,
            torch.autocast_decrement_nesting,
            torch._C._log_api_usage_once,
            torch.Tensor._make_subclass,
            torch.is_autocast_enabled,
            torch._C._to_dlpack,
            getattr(torch._C, "_to_dlpack_versioned", None),
            torch._C._autograd._unsafe_set_version_counter,
            tuple(_silent_writers()),
        )
        _core.set_places(
            (code_around_steps(), in_step.__code__),
            vars(worker),
            _look_at_weight,
            _warn_of_autocast,
            _codes_of_regions(),
            _code_of_custom_fwd(),
            _custom_fwd_asks,
            _custom_bwd_state,
            _files(_INSIDE),
            _files(_BETWEEN),
            (*_files(_BETWEEN + _THROUGH), f"{Path(__file__).parent}/"),
        )
        _core.install_in_disabled_regions(regions)
        if _is_child_process():
            _core.set_in_child_process()
        for part in (*self._distributed, *self._exact):
            part.install()
        for hook in self._step_hooks:
            hook.install()
        self._unwrapped_steps.install()
        look: Any = _look_at_buffer  # torch's annotation forgets that what it returns is taken
        self._handles = [register_module_buffer_registration_hook(look)]

    def uninstall(self) -> None:
        for hook in self._step_hooks:
            hook.uninstall()
        self._unwrapped_steps.uninstall()
        for handle in self._handles:
            handle.remove()
        for part in (*self._distributed, *self._exact):
            part.uninstall()
        self._handles = []


#: Where torch says in Python what an operation consists of: for tracing, and for tensors without data. Such an
#: operation was decided as a whole. Its code in C++ is not asked again either.
_INSIDE = (
    *("_decomp/", "_refs/", "_prims/", "_prims_common/", "_inductor/", "_subclasses/"),
    *("_meta_registrations.py", "_export/decomp_utils.py"),
)
#: Through these such code calls other operations (``1 - x`` is ``Tensor.__rsub__``), and Inductor the operators of a
#: graph, to learn what they give.
_BETWEEN = (
    *("_tensor.py", "functional.py", "nn/functional.py", "_ops.py", "fx/interpreter.py"),
    "fx/passes/fake_tensor_prop.py",
)

#: Code of torch that computes for whoever calls it.
_THROUGH = ("distributions/", "quasirandom.py")


def _files(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(str(Path(torch.__file__).parent / name) + "/" * name.endswith("/") for name in names)


#: Methods of torch.distributed's ProcessGroup, and of a backend behind it, that write into their tensors without
#: counting the versions up; with an underscore at the end, operators of torch.ops.c10d.
_SILENT_COLLECTIVES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "recv", "recv_anysource", "recv_any_source", "gather"),
    *("scatter", "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall"),
    *("alltoall_base", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    # newer releases
    *("all_to_all_single", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "gather_single", "gather_into_tensor"),
)
#: Operators for the same, which functional collectives consist of.
_SILENT_FUNCTIONAL = (
    *("all_reduce_", "all_reduce_coalesced_", "broadcast_", "all_gather_into_tensor_out", "reduce_scatter_tensor_out"),
)


def _silent_writers() -> Iterator[Any]:
    # What Dynamo has in the place of `.data`; and what turns a tensor's sign.
    for place, name in ((torch._C._autograd, "_get_data_attr"), (torch._C, "_set_neg")):
        if hasattr(place, name):
            yield getattr(place, name)
    collectives = [f"{name}_" for name in _SILENT_COLLECTIVES]
    for operators, names in ((torch.ops.c10d, collectives), (torch.ops._c10d_functional, _SILENT_FUNCTIONAL)):
        for name in names:
            if hasattr(operators, name):
                yield from _of_operator(getattr(operators, name))
    distributed = getattr(torch._C, "_distributed_c10d", None)
    for group in (getattr(distributed, "ProcessGroup", None), getattr(distributed, "Backend", None)):
        for name in _SILENT_COLLECTIVES:
            method = getattr(group, name, None)
            if method is not None:
                yield getattr(method, "__func__", method)
    for name in SILENT_WRITERS:
        if hasattr(torch, name):
            yield getattr(torch, name)
        if hasattr(torch.ops.aten, name):
            yield from _of_operator(getattr(torch.ops.aten, name))


def _of_operator(operator: Any) -> Iterator[Any]:
    yield operator._op
    yield from (getattr(operator, overload)._op for overload in operator.overloads())


def _is_child_process() -> bool:
    """Did multiprocessing start this process? A forked one is noticed by the core itself."""
    process: Any = multiprocessing.current_process()
    # A spawned process runs the main script again before it learns who its parent is.
    return multiprocessing.parent_process() is not None or getattr(process, "_inheriting", False)


def _disabled_regions() -> int:
    """How many regions of torch.autocast this thread is in, when none of them is enabled."""
    depth = _core.autocast_depth(torch.autocast_increment_nesting, torch.autocast_decrement_nesting)
    return 0 if torch._C._is_any_autocast_enabled() else depth


def warn_if_in_autocast() -> None:
    """Warn of a region of torch.autocast that is open where lists come into force."""
    devices = filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "hpu", "mps"))  # older releases lack mps
    if any(map(torch.is_autocast_enabled, devices)):
        _warn_of_autocast()


def _codes_of_regions() -> tuple[types.CodeType, ...]:
    """The backward of ``torch.amp.custom_bwd`` runs under torch.autocast as its forward did. Where autocast was off,
    that is no wish to do without casts."""
    decorate: Any = torch.amp.custom_bwd(device_type="cpu")
    return (decorate(lambda *_: None).__code__,)


def _code_of_custom_fwd() -> types.CodeType:
    decorate: Any = torch.amp.custom_fwd(device_type="cpu")
    code: types.CodeType = decorate(lambda *_: None).__code__
    return code


def _custom_fwd_asks() -> bool:
    """The wrapper of ``torch.amp.custom_fwd`` asks whether autocast is on, in a region of ours.

    Its backward is to run as its forward does, so that is noted with its context. And where it casts its inputs it does
    so, and goes on without casts, when it is told that autocast is on. Under convert alone such a function has the
    casts of any other.
    """
    variables = sys._getframe(1).f_locals
    casts_inputs = variables["cast_inputs"] is not None and _core.lists_speak_here()
    state = _core.current_state()
    variables["args"][0]._habana_mp_state = state | _core.state_without_casts if casts_inputs else state
    return casts_inputs


def _custom_bwd_state() -> int | None:
    # Through autocast.__enter__ to the wrapper of torch.amp.custom_bwd.
    arguments = sys._getframe(2).f_locals.get("args")
    state: int | None = getattr(arguments[0], "_habana_mp_state", None) if arguments else None
    return state


def _before_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outside = _outside_of_step
    if torch.compiler.is_compiling():
        if type(optimizer).__module__.startswith("torch.optim."):
            # These break the graph anyway. torch's wrapper then runs as it is, and the core recognises it.
            torch._dynamo.skip_frame("the step of an optimizer")
        # Somebody else's step may be traced whole: then the flag of disable_casts is set in the graph.
        _disabled_before.append(torch.is_autocast_enabled(_core.disabled_flag))
        torch.set_autocast_enabled(_core.disabled_flag, True)
        outside = _outside_of_traced_step
    else:
        _core.optimizer_step_begins()
    # A closure computes the loss: it is the model's forward, not the optimizer's arithmetic.
    if "closure" in kwargs and callable(kwargs["closure"]):
        return args, {**kwargs, "closure": outside(kwargs["closure"])}
    if len(args) > 1 and callable(args[1]):
        return (args[0], outside(args[1]), *args[2:]), kwargs
    return None


def _after_step(*_: Any) -> None:
    if torch.compiler.is_compiling():
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before.pop())
    else:
        _core.optimizer_step_ends()


HooksOutsideOfGraphs.functions += [_before_step, _after_step]

#: What the flag was outside of each step that is being traced.
_disabled_before: list[bool] = []


def _outside_of_step(closure: Any) -> Any:
    def closure_outside_of_step() -> Any:
        steps = _core.exchange_optimizer_steps(0)
        try:
            return closure()
        finally:
            _core.exchange_optimizer_steps(steps)

    return closure_outside_of_step


def _outside_of_traced_step(closure: Any) -> Any:
    def closure_outside_of_traced_step() -> Any:
        torch.set_autocast_enabled(_core.disabled_flag, _disabled_before[-1])
        loss = closure()
        torch.set_autocast_enabled(_core.disabled_flag, True)
        return loss

    return closure_outside_of_traced_step


#: The lines that were warned about.
_warned: set[tuple[str, int]] = set()


def _look_at_buffer(module: torch.nn.Module, name: str, value: Any) -> torch.Tensor | None:
    """What becomes the buffer instead, if anything."""
    if torch.compiler.is_compiling():
        return None
    if not isinstance(value, torch.Tensor):
        return None
    what, former = f"the buffer `{name}` of {type(module).__name__}", module._buffers.get(name)
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


def _look_at_weight(what: str, values: torch.Tensor, former: torch.Tensor | None) -> torch.Tensor:
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
    """Are they the same values in lower precision, as where a model is converted? Or is there no telling? By a part."""
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
    """It may have been freed, as where weights are sharded."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + last + 1) * tensor.element_size()
    return tensor.numel() == 0 or tensor.untyped_storage().nbytes() >= needed


def _is_lowered(values: torch.Tensor) -> bool:
    """Are they a result that was lowered? Recorded results are not remembered: there the graph has to tell."""
    return _core.was_lowered(values) or (_core.may_be_lowered_in_graph(values) and _comes_from_float32(values.grad_fn))


#: Nodes of autograd's graph that pass values on as they are.
SAME_VALUES = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("Alias", "AsStrided", "Clone", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Squeeze", "T"),
        *("Transpose", "Unsqueeze", "UnsafeView", "View"),
    )
    for number in (0, 1)
)


def _comes_from_float32(node: Any) -> bool:
    """Were the results of this node computed, not just converted, from a leaf in float32?"""
    while node is not None and node.name() in SAME_VALUES:
        node = node.next_functions[0][0]
    if node is None or node.name() == "ToCopyBackward0":
        return False
    waiting = [node]
    seen: set[Any] = set()
    while waiting and len(seen) < 1000:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
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


_warned_of_autocast = threading.Event()


def _warn_of_autocast() -> None:
    if _warned_of_autocast.is_set():
        return
    _warned_of_autocast.set()
    warn(
        "torch.autocast is enabled while habana_mp casts: autocast acts after the lists, so an operation that it "
        "lowers runs in its precision whatever they say; use one of the two"
    )


def forget_warnings() -> None:
    """Warn again, as in a new process."""
    _warned.clear()
    _warned_of_autocast.clear()
