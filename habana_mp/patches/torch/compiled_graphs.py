"""Calls of the graphs that torch.compile makes, with what each of their operations was before."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from habana_mp.patches.tools.compiled_functions import forget_compiled_code, leave_to_python
from habana_mp.patches.torch.compiled_runs import line_of_node

#: The variable by which compiled code reaches a module, at the begin of the module's path.
_VARIABLE = re.compile(r"[LG]\['\w+'\]")


class Made(NamedTuple):
    """An operation of a graph, as a record names it in eager code."""

    #: The path of its module: it begins with a dot, or is empty, if it begins in the module whose code was compiled.
    module: str
    operation: str
    file: str
    line: int


class Graph(NamedTuple):
    """The operations of a graph, in order, and for each of its results the position of the one that made it, or -1."""

    operations: tuple[Made, ...]
    results: tuple[int, ...]


#: Makes a call of a graph: gets its operations, the function that runs it, and the arguments.
Follow = Callable[[Graph, Callable[..., Any], tuple[Any, ...]], Any]

#: The function that makes the calls of graphs, while there is one.
_followed_by: list[Follow] = []


def follow(function: Follow | None, *, anew: bool = False) -> None:
    """Lets a function make the calls of all graphs that are compiled from now on, and of those that were compiled for
    an earlier one. None: graphs run as they are. ``anew``: other graphs are compiled again."""
    _followed_by[:] = filter(None, [function])
    if anew:
        forget_compiled_code()


def followed(graph: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that runs a graph. While there is a function of :func:`follow`, that one makes its calls."""
    if not _followed_by:
        return run
    read = _read(graph)

    @functools.wraps(run)
    def running(*args: Any) -> Any:
        function = next(iter(_followed_by), None)  # another thread may end it meanwhile
        return run(*args) if function is None else function(read, run, args)

    leave_to_python(running)
    return running


def _read(graph: Any) -> Graph:
    nodes = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    places = {node: place for place, node in enumerate(nodes)}
    results = output.args[0] if isinstance(output.args[0], list | tuple) else (output.args[0],)
    return Graph(tuple(map(_made, nodes)), tuple(places.get(node, -1) for node in results))


def _made(node: torch.fx.Node) -> Made:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = ""
    if stack:
        outermost, kind = stack[0]
        variable = _VARIABLE.match(outermost)
        root = kind.__name__ if variable is not None and variable[0] == outermost else ""
        module = root + _VARIABLE.sub("", stack[-1][0])
    target: Any = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "").partition(".")[0]
    return Made(module, name, *line_of_node(node))
