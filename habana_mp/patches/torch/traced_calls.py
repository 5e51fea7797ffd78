"""Counts each call in a graph of torch.compile or torch.export once, and no other call that a compiler makes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from habana_mp import _core
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_functions
from habana_mp.patches.torch.compiled_graphs import followed

_CALLS = assumption_of_functions(
    "torch.traced-calls",
    "a compiler works in `compile_context`; Dynamo runs each operation of a graph by `get_fake_value`, with its node "
    "and the translator of the code, and compiles the graph by `call_user_compiler`; torch.export has these functions",
    "the report also counts what a compiler calls, and has no places of compiled code; a record has no calls of it",
)


#: The numbers of graphs. 1 stands for calls that never count.
_numbers = itertools.count(2)
#: The translators of the code whose operations run now, the innermost one last.
translators: list[Any] = []


@contextmanager
def _collecting(graph: int = 1) -> Iterator[None]:
    before = _core.exchange_traced_graph(graph)
    try:
        yield
    finally:
        _core.exchange_traced_graph(before)


@contextmanager
def compiling(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Iterator[Any]:
    """Replaces a context in which a compiler works."""
    with _collecting(), original(*arguments, **keywords) as given:
        yield given


def without_count(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    with _collecting():
        return original(*arguments, **keywords)


def counted_once(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces a function that traces code by running it."""
    with _collecting(number := next(_numbers)):
        made = original(*arguments, **keywords)
        _core.count_traced(number)
    return made


def collected(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the function that runs an operation of a graph on examples."""
    translators.append(arguments[1])
    try:
        with _collecting(vars(arguments[1].output).setdefault("_habana_mp_number", next(_numbers))):
            return original(*arguments, **keywords)
    finally:
        translators.pop()


def compiled(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Replaces the method that compiles a graph. Some backends return the graph itself, whose operations are calls."""
    _core.count_traced(vars(arguments[0]).get("_habana_mp_number", 0))
    made = original(*arguments, **keywords)
    graph = getattr(made, "__self__", None)
    if isinstance(graph, torch.fx.GraphModule):
        _LazyGraphModule.force_recompile(graph)  # otherwise its first run is the call of a module
        return followed(arguments[1], lambda *args: without_count(graph.forward, args, {}))
    return followed(arguments[1], made)


OF_COMPILERS = (
    Exchange(compiling, {"torch._guards": ("compile_context",)}, _CALLS),
    Exchange(collected, {"torch._dynamo.utils": ("get_fake_value",)}, _CALLS, positional=2),
    Exchange(compiled, {"torch._dynamo.output_graph": ("OutputGraph.call_user_compiler",)}, _CALLS, positional=2),
    Exchange(counted_once, {"torch.export._trace": ("_non_strict_export",)}, _CALLS),
    Exchange(without_count, {"torch.export._trace": ("_strict_export",)}, _CALLS),
)
