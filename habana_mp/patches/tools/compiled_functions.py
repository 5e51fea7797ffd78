"""What torch.compile reads off a function: that it is constant, or is to be left to Python; what it leaves there."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch

_F = TypeVar("_F", bound=Callable[..., Any])

#: What the names of attributes begin with that torch.compile leaves on a function that it compiled.
_ON_COMPILED = ("_torchdynamo", "_is_torch_compile", "_isolate_recompiles_id", "get_compiler_config", "aot_compile")


def forget_that_it_was_compiled(function: Any) -> None:
    """Take off what torch.compile leaves on a function that it compiled."""
    for name in [one for one in vars(function) if one.startswith(_ON_COMPILED)]:
        delattr(function, name)


def constant_in_graph(function: _F) -> _F:
    """torch.compile calls this function when it compiles, and takes what it returns for a constant."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # Dynamo looks for it
    return function


def leave_to_python(function: Any) -> None:
    """Dynamo runs this function as it is, and does not look inside."""
    function._torchdynamo_disable = True


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
    leave_to_python(refusing)
    refusing._torchdynamo_disable_msg = "it changes torch"  # type: ignore[attr-defined]  # Dynamo looks for it
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
    reset = getattr(sys.modules.get("torch._dynamo"), "reset", None)
    if reset is not None:
        reset()
