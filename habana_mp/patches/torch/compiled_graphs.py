"""Calls of the graphs that torch.compile makes, with what each of their operations was before."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.compiled_functions import forget_compiled_code, leave_to_python
from habana_mp.patches.tools.when_imported import WhenImported
from habana_mp.patches.torch.compiled_runs import line_of_node

_GRAPHS = Assumption(
    "torch.dynamo-graphs",
    assumed="`OutputGraph._call_user_compiler` of `torch._dynamo.output_graph` returns the function that runs a graph",
    check="it is there",
    otherwise="a record has no calls of compiled code",
)


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


class FollowedGraphs(WhenImported):
    """Lets a function make the calls of all graphs that are compiled meanwhile."""

    name = "torch._dynamo.output_graph"

    def __init__(self, follow: Follow) -> None:
        super().__init__()
        self._follow = follow
        self._is_on = self._was_on = False

    def do(self, module: Any) -> None:
        if not holds(_GRAPHS, lambda: callable(module.OutputGraph._call_user_compiler)):
            return
        compile_graph, run = module.OutputGraph._call_user_compiler, self._run

        def call_user_compiler(self: Any, graph: Any, *given: Any) -> Any:
            compiled = compile_graph(self, graph, *given)
            running = functools.wraps(compiled)(functools.partial(run, _read(graph), compiled))
            leave_to_python(running)
            return running

        # traced_calls.py exchanges the method that calls this one.
        self.exchanged.exchange(module.OutputGraph, "_call_user_compiler", call_user_compiler)
        self._is_on = True
        if not self._was_on:  # graphs that were compiled for it before are followed again
            forget_compiled_code()
        self._was_on = True

    def _run(self, graph: Graph, run: Callable[..., Any], *args: Any) -> Any:
        return self._follow(graph, run, args) if self._is_on else run(*args)

    def undo(self, module: Any) -> None:
        self._is_on = False


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
