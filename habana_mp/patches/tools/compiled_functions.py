"""How torch.compile treats functions: attributes by which it takes one as constant or leaves it to Python, attributes
that it sets, whether it compiles now, and running what it has compiled as it is written."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from habana_mp.common.ledger import Assumption, holds

_F = TypeVar("_F", bound=Callable[..., Any])

_eval_frame: Any = torch._C._dynamo.eval_frame

#: Prefixes of the attributes that torch.compile sets on a function that it has compiled.
_ON_COMPILED = ("_torchdynamo", "_is_torch_compile", "_isolate_recompiles_id", "get_compiler_config", "aot_compile")


def forget_that_it_was_compiled(function: Any) -> None:
    """Removes the attributes that torch.compile sets on a function that it has compiled."""
    for name in [one for one in vars(function) if one.startswith(_ON_COMPILED)]:
        delattr(function, name)


def constant_in_graph(function: _F) -> _F:
    """Makes torch.compile call this function while it compiles, and use the result as a constant."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # read by Dynamo
    return function


def leave_to_python(function: Any) -> None:
    """Makes Dynamo run this function as it is, without reading its code."""
    function._torchdynamo_disable = True


_CALLBACK = Assumption(
    "torch.dynamo-callback",
    assumed="`torch._C._dynamo.eval_frame.set_eval_frame(None)` makes Dynamo leave code to Python, in this thread, and "
    "returns what makes it read code again",
    check="the function is there",
    otherwise="torch.compile may compile functions of this package that find the module of a call",
)

#: The functions that `run_by_python` has made, for `patches.torch.dynamo.OwnCode`.
run_as_they_are: list[Any] = []


def run_by_python(function: _F) -> _F:
    """Makes a function that the core calls, and all functions that it calls, run as they are: the call may come from
    code that Dynamo compiles, and Dynamo would compile these functions too."""

    @functools.wraps(function)
    def running(*args: Any) -> Any:
        if not holds(_CALLBACK, lambda: callable(_eval_frame.set_eval_frame)):
            return function(*args)
        before = _eval_frame.set_eval_frame(None)
        try:
            return function(*args)
        finally:
            _eval_frame.set_eval_frame(before)

    run_as_they_are.append(running)
    return running  # type: ignore[return-value]  # the same parameters


def refused_in_graphs(function: _F) -> _F:
    """Makes a function that changes torch itself raise if it is called in a function that is compiled."""

    @functools.wraps(function)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        if _is_in_compiled_function():
            raise RuntimeError(
                f"`hmp.{function.__name__}` was called in a function that torch.compile compiles; it changes torch, "
                "and code that is compiled already would not follow: call it where nothing is compiled"
            )
        return function(*args, **kwargs)

    # Dynamo leaves it to Python, and does not read its code. With `fullgraph=True`, Dynamo's own error says why.
    leave_to_python(refusing)
    refusing._torchdynamo_disable_msg = "it changes torch"  # type: ignore[attr-defined]  # read by Dynamo
    return refusing  # type: ignore[return-value]  # the same parameters


def _is_in_compiled_function() -> bool:
    """True if Dynamo would compile a function that is called here."""
    if torch.compiler.is_dynamo_compiling():  # Dynamo is compiling the caller: no need to check further
        return True
    callback = getattr(_eval_frame, "get_eval_frame_callback", lambda: None)()
    return callable(callback)


def forget_compiled_code() -> None:
    """Drops all compiled code, because Dynamo's guards do not check under which policy it was compiled."""
    # Another thread may be importing it at this moment: then it has compiled nothing yet.
    reset = getattr(sys.modules.get("torch._dynamo"), "reset", None)
    if reset is not None:
        reset()


_COMPILING = Assumption(
    "torch.compile-context",
    assumed="`torch._guards.CompileContext.current_compile_id()` is not None while a graph is compiled in this thread: "
    "until torch 2.8 nothing public tells",
    check="it answers",
    otherwise="a record may have calls that a compiler makes while it compiles, and the report places of its regions; "
    "before torch 2.9, compiled products with a float32 result may keep more digits of their operands",
)


def is_compiling() -> bool:
    """True while a compiler works in this thread: on examples of tensors, or on constants."""
    context: Any = torch._guards.CompileContext
    return holds(_COMPILING, lambda: context.current_compile_id() or True) and context.current_compile_id() is not None


class EagerMode:
    """Runs compiled functions as they are written, so that each of their operations can be seen."""

    def __init__(self) -> None:
        #: The arguments of set_stance before it began, as it was found before anything was changed.
        self._before: dict[str, Any] | None = None

    def begin(self) -> None:
        if "torch._dynamo" not in sys.modules:
            return
        if self._before is None:
            stance = getattr(torch._dynamo.eval_frame, "_stance", None)  # private; without it, the default comes back
            self._before = {
                "stance": getattr(stance, "stance", "default"),
                "skip_guard_eval_unsafe": getattr(stance, "skip_guard_eval_unsafe", False),
                "force_backend": getattr(stance, "backend", None),
            }
        with contextlib.suppress(RuntimeError):  # not inside of compiled code; the next step is seen
            torch.compiler.set_stance("force_eager")

    def end(self) -> None:
        if self._before is not None:
            with contextlib.suppress(RuntimeError):
                torch.compiler.set_stance(**self._before)
            self._before = None
