"""What torch.compile's generated code must be kept from.

Code that Inductor generated calls torch's builtins at run time (``extern_kernels.convolution(...)``). What is to be
cast was decided when the graph was traced; answering these calls again would cast a second time, and a kernel would
read memory in a precision that the code around it does not know of. So Inductor gets builtins that nobody answers for.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from habana_mp import _core
from habana_mp._composites import Replacement
from habana_mp._imports import WhenImported
from habana_mp._marks import MARK

_KERNELS = "torch._inductor.select_algorithm"
_CONFIG = "torch._functorch.config"
_RUNTIME = "torch._functorch._aot_autograd.runtime_wrappers"
_DYNAMO = "torch._dynamo"
_TRACING_BEFORE_DISPATCH = "torch.fx.experimental.proxy_tensor"
_TENSORS_IN_DYNAMO = "torch._dynamo.variables.tensor"


def in_rows(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The first factor of a product in a graph, copied where torch would not fold its dimensions into rows.

    In eager code the core does so (``attempt_in_rows`` in src/engine/attempt.cpp)."""
    if tensor.dim() < 3 or other.dim() != 2 or tensor.device.type != "cpu":
        return tensor
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # takes long to import

    expected = None
    for size, stride in reversed([*zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)]):
        if statically_known_true(size == 1):
            continue
        if expected is not None and not statically_known_true(stride == expected):
            return tensor.contiguous()
        expected = size * stride
    return tensor


class KernelTable(WhenImported):
    """Untouched twins of torch's builtins in the table that Inductor's code calls at run time."""

    name = _KERNELS
    _originals: Mapping[str, Any] = types.MappingProxyType({})

    def do(self, module: Any) -> None:
        kernels = module.extern_kernels
        originals: dict[str, Any] = {}
        self._originals = originals

        def set_untouched(namespace: Any, name: str, value: Any) -> None:
            if type(value) is types.BuiltinFunctionType:
                originals[name] = value
                value = _core.untouched_twin(value)
            object.__setattr__(namespace, name, value)

        # Kernels are added to the table as lowerings are registered, so later ones must be seen too.
        type(kernels).__setattr__ = set_untouched  # type: ignore[assignment]  # called as a method
        for name, value in list(vars(kernels).items()):
            setattr(kernels, name, value)

    def undo(self, module: Any) -> None:
        kernels = module.extern_kernels
        if "__setattr__" in vars(type(kernels)):
            del type(kernels).__setattr__
        for name, original in self._originals.items():
            setattr(kernels, name, original)


class GraphCache(WhenImported):
    """No cache from Dynamo's graphs to compiled code: such a graph does not hold our casts, its code does.

    Older releases have no such cache.
    """

    name = _CONFIG
    _before: bool | None = None

    def do(self, module: Any) -> None:
        self._before = getattr(module, "enable_autograd_cache", None)
        if self._before is not None:
            module.enable_autograd_cache = False

    def undo(self, module: Any) -> None:
        if self._before is not None:
            module.enable_autograd_cache = self._before


class Runtime(WhenImported):
    """Compiled code calls operators of torch.ops as their users do, and the Python code that custom ones consist of.

    While it runs no operator is cast again, and the lists are silent. What Inductor's writes into its inputs is counted
    before, in older releases not at all.

    AOTAutograd calls a backward through a function of its utilities, and wraps everything else into a function that it
    writes anew each time (in releases before that, it went through the utilities too).
    """

    name = _RUNTIME
    _replacements: Sequence[Replacement] = ()

    def do(self, module: Any) -> None:
        def wrap(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            wrapper, compiled, *others = arguments
            wrapped = original(wrapper, _outside_of_lists(compiled), *others, **keywords)
            written = keywords["runtime_metadata"].mutated_graph_handled_indices
            return _writer(wrapped, written) if written else wrapped

        self._replacements = [
            Replacement(module.call_func_at_runtime_with_args, _run_compiled),
            Replacement(module.RuntimeWrapper.post_compile, wrap),
        ]
        for replacement in self._replacements:
            replacement.install()

    def undo(self, module: Any) -> None:
        for replacement in self._replacements:
            replacement.uninstall()


def _run_compiled(compiled: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    # By the core: an exception of a signal's handler would come between the beginning and the call.
    return _core.call_compiled(compiled, arguments, keywords)


def _outside_of_lists(compiled: Any) -> Any:
    @functools.wraps(compiled)  # keeps how its arguments are to be given
    def run(*args: Any, **kwargs: Any) -> Any:
        return _run_compiled(compiled, args, kwargs)

    return run


def _writer(compiled: Any, written: list[int]) -> Any:
    @functools.wraps(compiled)
    def run(inputs: list[Any]) -> Any:  # which it empties
        return _core.call_writer(compiled, inputs, [inputs[i] for i in written])

    return run


def _leave_to_python(functions: list[Any], eval_frame: Any) -> None:
    for function in functions:
        function._torchdynamo_disable = True
        eval_frame.skip_code(function.__code__)


class OwnCode(WhenImported):
    """Functions of ours that change the state of a thread: Dynamo runs them as they are, and does not look inside."""

    name = "torch._dynamo.eval_frame"
    functions: ClassVar[list[Any]] = []

    def do(self, module: Any) -> None:
        _leave_to_python(self.functions, module)

    def undo(self, module: Any) -> None:
        """They are nobody else's."""


class HooksOutsideOfGraphs(WhenImported):
    """The hooks around optimizers' steps, in a Dynamo that cannot be told to skip the code that calls them, nor to set
    autocast's flags in a graph (older releases): it leaves the graph for each, so that the core recognises the step."""

    name = _DYNAMO
    functions: ClassVar[list[Any]] = []

    def do(self, module: Any) -> None:
        if not hasattr(module, "skip_frame"):
            _leave_to_python(self.functions, module.eval_frame)

    def undo(self, module: Any) -> None:
        """They are nobody else's."""


class GuardOnState(WhenImported):
    """A guard of our own on which casts are made, in a Dynamo that does not guard on autocast (older releases)."""

    name = "torch._dynamo.output_graph"
    _replacement: Replacement | None = None

    def do(self, module: Any) -> None:
        def guard() -> Any:
            guards_on = functools.partial(_guard_on_state, _core.current_state())
            return module.GlobalStateSource().make_guard(guards_on)

        def add_guard(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            original(*arguments, **keywords)
            arguments[0].guards.add(guard())

        self._replacement = Replacement(module.OutputGraph.init_ambient_guards, add_guard)
        self._replacement.install()
        tracing = torch._guards.TracingContext.try_get()
        if tracing is None:
            forget_compiled_code()  # it has no such guard
        else:  # for the first region of the process; what is being compiled cannot be forgotten
            tracing.guards_context.dynamo_guards.add(guard())

    def undo(self, module: Any) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()


def _dynamo_guards_on_autocast() -> bool:
    guard: Any = torch._C._dynamo.guards.GlobalStateGuard()
    flag = _core.disabled_flag
    was_on = torch.is_autocast_enabled(flag)
    torch.set_autocast_enabled(flag, not was_on)
    follows = not guard.check()
    torch.set_autocast_enabled(flag, was_on)
    return follows


def _guard_on_state(state: int, builder: Any, guard: Any) -> None:
    if torch._dynamo.config.enable_cpp_guard_manager:
        lambda_guard = functools.partial(_state_is, state)
        builder.guard_manager.root.add_lambda_guard(lambda_guard, [f"habana_mp's state is {state}"])
    else:
        builder._produce_guard_code(guard, [f"__import__({__name__!r}, fromlist=['_'])._state_is({state})"])


def _state_is(state: int, *_: Any) -> bool:
    return _core.current_state() == state


class WholeInPlaceOperations(WhenImported):
    """``x.addcmul_(y, z, value=2)`` stays one in-place operation, which keeps its precision (rule 3).

    Dynamo takes it apart, into a product among others, and the lists would have a say in that.
    """

    name = _TENSORS_IN_DYNAMO
    _taken_apart = ("addcmul_", "addcdiv_")
    _entries: Mapping[str, Any] = types.MappingProxyType({})
    _originals: Mapping[str, Any] = types.MappingProxyType({})

    def do(self, module: Any) -> None:
        tensor: Any = module.TensorVariable
        # Since torch 2.15 a table says which handler is whose.
        table = vars(tensor).get("tp_methods", {})
        self._entries = {name: table[name] for name in self._taken_apart if name in table}
        handlers = {f"method_{name}" for name in self._taken_apart}
        self._originals = {name: vars(tensor)[name] for name in handlers if name in vars(tensor)}

        def whole(original: Any) -> Any:
            def method(self: Any, *arguments: Any, value: Any = None) -> Any:  # the tracer, in newer releases, and two
                # A tensor as `value` would have to be read, which breaks the graph.
                return original(self, *arguments, value=value) if isinstance(value, tensor) else None

            return method

        for name, original in self._originals.items():
            setattr(tensor, name, whole(original))
        for name, entry in self._entries.items():
            table[name] = type(entry)(whole(entry.handler))

    def undo(self, module: Any) -> None:
        for name, original in self._originals.items():
            setattr(module.TensorVariable, name, original)
        if self._entries:
            module.TensorVariable.tp_methods.update(self._entries)


class RegionsInExport(WhenImported):
    """Regions without casts in a strict export.

    A strict export traces Dynamo's graph once more. torch then notes where a region of torch.autocast begins and ends,
    but does not enter it, while the casts are decided right there.
    """

    name = _TRACING_BEFORE_DISPATCH
    _original: Any = None

    def do(self, module: Any) -> None:
        mode: Any = module.PreDispatchTorchFunctionMode
        self._original = original = mode.__torch_function__
        leave_mode = mode.__exit__  # inherited
        enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast

        def entering_regions(tracing: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = original(tracing, function, types, args, kwargs)
            if function is enter:
                vars(tracing).setdefault("_habana_mp_regions", []).append(_enter_noted_region(*args))
            elif function is leave and vars(tracing).get("_habana_mp_regions"):
                _leave_noted_region(tracing._habana_mp_regions.pop())
            return result

        def leaving_all(tracing: Any, *error: Any) -> Any:
            # An exception passes by the ends of the regions that it leaves.
            for state in reversed(vars(tracing).pop("_habana_mp_regions", [])):
                _leave_noted_region(state)
            return leave_mode(tracing, *error)

        mode.__torch_function__ = entering_regions
        mode.__exit__ = leaving_all

    def undo(self, module: Any) -> None:
        mode: Any = module.PreDispatchTorchFunctionMode
        if self._original is not None:
            mode.__torch_function__ = self._original
        if "__exit__" in vars(mode):
            del mode.__exit__


def _enter_noted_region(device: str, dtype: torch.dtype, enabled: bool, *_: Any) -> int | None:
    """Do here what a region of torch.autocast does where it is entered; the state before, None where torch has entered
    it already, and will leave it."""
    state = _core.current_state()
    if device == MARK:
        torch.set_autocast_dtype(device, dtype)
        wanted = _core.current_state() & ~_core.state_without_casts
    elif enabled == (device == _core.disabled_flag):
        wanted = state | _core.state_without_casts
    else:
        return None
    _core.exchange_state(wanted)
    return None if wanted == state else state


def _leave_noted_region(state: int | None) -> None:
    if state is not None:
        _core.exchange_state(state)


class Compiled:
    """All of it."""

    def __init__(self) -> None:
        self._parts = (
            *(KernelTable(), GraphCache(), Runtime(), OwnCode(), HooksOutsideOfGraphs(), WholeInPlaceOperations()),
            *(RegionsInExport(), *([] if _dynamo_guards_on_autocast() else [GuardOnState()])),
        )

    def install(self) -> None:
        """Code that was compiled stays: before the rules of this thread become others, :func:`forget_compiled_code`."""
        for part in self._parts:
            part.install()

    def uninstall(self) -> None:
        for part in self._parts:
            part.uninstall()
        forget_compiled_code()


_F = TypeVar("_F", bound=Callable[..., Any])


def refused_in_graphs(function: _F) -> _F:
    """A function that changes torch itself, and so raises where it is called in a function that is compiled."""

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        if _is_in_compiled_function():
            raise RuntimeError(
                f"`hmp.{function.__name__}` was called in a function that torch.compile compiles; it changes torch, "
                "and code that is compiled already would not follow: call it where nothing is compiled"
            )
        return function(*args, **kwargs)

    # Dynamo leaves it to Python, instead of reading what it does. With `fullgraph=True` its own error tells why.
    refusing._torchdynamo_disable = True  # type: ignore[attr-defined]  # Dynamo looks for it
    refusing._torchdynamo_disable_msg = "it changes torch"  # type: ignore[attr-defined]  # as above
    return refusing  # type: ignore[return-value]  # the same parameters


def _is_in_compiled_function() -> bool:
    """Would Dynamo compile what is called here?"""
    if torch.compiler.is_dynamo_compiling():  # it tries to compile the caller: it need not look further
        return True
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)()
    return callable(callback)


def forget_compiled_code() -> None:
    """Code that was compiled under another policy must be compiled again; Dynamo guards on much, but not on that."""
    # Another thread may be importing it at this moment: then it has compiled nothing yet.
    reset = getattr(sys.modules.get(_DYNAMO), "reset", None)
    if reset is not None:
        reset()
