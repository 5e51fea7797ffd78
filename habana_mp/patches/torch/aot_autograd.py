"""AOTAutograd: how compiled code runs, and which of it is cached between processes."""

from __future__ import annotations

import functools
from typing import Any

from habana_mp import _core
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.dynamo import can_change


class GraphCache(WhenImported):
    """Disables the cache from Dynamo's graphs to compiled code, since a graph does not show the casts in its code."""

    name = "torch._functorch.config"

    def do(self, module: Any) -> None:
        if can_change("cache", lambda: isinstance(module.enable_autograd_cache, bool)):
            self.exchanged.exchange(module, "enable_autograd_cache", False)


class Runtime(WhenImported):
    """Runs compiled code, which calls operators of torch.ops as user code does, and Python code of custom operators.

    While it runs, operators are not cast again and the lists are suspended. Inductor's code increments the version
    counters of the inputs that it writes into before it writes.

    AOTAutograd calls a backward through a function in its utilities. It wraps all other code in a function that it
    generates each time, or uses the utilities for this too.
    """

    name = "torch._functorch._aot_autograd.runtime_wrappers"

    def do(self, module: Any) -> None:
        if not can_change("runtime", lambda: _is_as_expected(module)):
            return

        def wrap(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            wrapper, compiled, *others = arguments
            wrapped = original(wrapper, _outside_of_lists(compiled), *others, **keywords)
            written = keywords["runtime_metadata"].mutated_graph_handled_indices
            return _writer(wrapped, written) if written else wrapped

        self.exchanged.replace(module.call_func_at_runtime_with_args, _run_compiled)
        self.exchanged.replace(module.RuntimeWrapper.post_compile, wrap)


def _is_as_expected(module: Any) -> bool:
    codes = module.call_func_at_runtime_with_args.__code__, module.RuntimeWrapper.post_compile.__code__
    return all(one.co_argcount >= 2 for one in codes) and "runtime_metadata" in codes[1].co_varnames


def _run_compiled(compiled: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    # Done by the core: in Python, a signal handler could raise between the beginning and the call.
    return _core.call_compiled(compiled, arguments, keywords)


def _outside_of_lists(compiled: Any) -> Any:
    @functools.wraps(compiled)  # keeps how its arguments are to be passed
    def run(*args: Any, **kwargs: Any) -> Any:
        return _run_compiled(compiled, args, kwargs)

    return run


def _writer(compiled: Any, written: list[int]) -> Any:
    @functools.wraps(compiled)
    def run(inputs: list[Any]) -> Any:  # the compiled code empties this list
        return _core.call_writer(compiled, inputs, [inputs[i] for i in written])

    return run
