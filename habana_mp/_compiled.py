"""What torch.compile's generated code must be kept from.

Code that Inductor generated calls torch's builtins at run time (``extern_kernels.convolution(...)``). What is to be
cast was decided when the graph was traced; answering these calls again would cast a second time, and a kernel would
read memory in a precision that the code around it does not know of. So Inductor gets builtins that nobody answers for.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from habana_mp import _core
from habana_mp._composites import Replacement
from habana_mp._imports import WhenImported

_KERNELS = "torch._inductor.select_algorithm"
_CONFIG = "torch._functorch.config"
_RUNTIME = "torch._functorch._aot_autograd.runtime_wrappers"
_DYNAMO = "torch._dynamo"


class KernelTable(WhenImported):
    """Untouched twins of torch's builtins in the table that Inductor's code calls at run time."""

    name = _KERNELS

    def do(self, module: Any) -> None:
        kernels = module.extern_kernels
        self._originals: dict[str, Any] = {}
        originals = self._originals

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
        del type(kernels).__setattr__
        for name, original in self._originals.items():
            setattr(kernels, name, original)


class GraphCache(WhenImported):
    """No cache from Dynamo's graphs to compiled code: such a graph does not hold our casts, its code does."""

    name = _CONFIG

    def do(self, module: Any) -> None:
        self._before = module.enable_autograd_cache
        module.enable_autograd_cache = False

    def undo(self, module: Any) -> None:
        module.enable_autograd_cache = self._before


class Runtime(WhenImported):
    """Compiled code calls operators of torch.ops as their users do; while it runs they are not cast again.

    AOTAutograd calls a backward through a function of its utilities, and wraps everything else into a function that it
    writes anew each time (in releases before that, it went through the utilities too).
    """

    name = _RUNTIME

    def do(self, module: Any) -> None:
        def run(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            with _compiled_code_runs():
                return original(*arguments, **keywords)

        def wrap(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            wrapper, compiled, *others = arguments
            return original(wrapper, _outside_of_lists(compiled), *others, **keywords)

        self._replacements = [
            Replacement(module.call_func_at_runtime_with_args, run),
            Replacement(module.RuntimeWrapper.post_compile, wrap),
        ]
        for replacement in self._replacements:
            replacement.install()

    def undo(self, module: Any) -> None:
        for replacement in self._replacements:
            replacement.uninstall()


@contextlib.contextmanager
def _compiled_code_runs() -> Iterator[None]:
    _core.compiled_code_begins()
    try:
        yield
    finally:
        _core.compiled_code_ends()


def _outside_of_lists(compiled: Any) -> Any:
    @functools.wraps(compiled)  # keeps how its arguments are to be given
    def run(*args: Any, **kwargs: Any) -> Any:
        with _compiled_code_runs():
            return compiled(*args, **kwargs)

    return run


class Compiled:
    """All of it."""

    def __init__(self) -> None:
        self._runtime = Runtime()
        self._parts = (KernelTable(), GraphCache(), self._runtime)

    def install(self, *, lists_hold_operators: bool) -> None:
        """Where no list names an operator of torch.ops, compiled code is called as before."""
        for part in self._parts:
            if part is not self._runtime or lists_hold_operators:
                part.install()
            else:
                part.uninstall()
        forget_compiled_code()

    def uninstall(self) -> None:
        for part in self._parts:
            part.uninstall()
        forget_compiled_code()


def forget_compiled_code() -> None:
    """Code that was compiled under another policy must be compiled again; Dynamo guards on much, but not on that."""
    # Another thread may be importing it at this moment: then it has compiled nothing yet.
    reset = getattr(sys.modules.get(_DYNAMO), "reset", None)
    if reset is not None:
        reset()
