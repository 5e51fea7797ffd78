"""The recorder of a process: writes each call that makes values to a file, as a line of JSON."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, TextIO

import torch
from torch.utils.weak import WeakIdKeyDictionary

from habana_mp import _core
from habana_mp.common.errors import warn
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.tools.notes import notes
from habana_mp.patches.torch.compiled_graphs import FollowedGraphs, Graph, is_compiling
from habana_mp.patches.torch.module_holders import named_modules
from habana_mp.patches.torch.module_paths import outermost_modules, path_in
from habana_mp.recording.values import described
from habana_mp.reporting.judging import tensors_in
from habana_mp.reporting.origins import Origin, here
from habana_mp.reporting.records import plain_name

#: The module and the operation of a call, and its number among those of one phase, from 1.
_Call = tuple[str, str, int]

#: Operations that write into their first argument, and do not read it.
_ONLY_WRITES = frozenset(
    ("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
     "uniform_", "zero_")
)  # fmt: skip


class Recorder:
    """Records the calls of a process, in all threads, from :meth:`begin` to :meth:`end`."""

    def __init__(self, file: TextIO, sample: int) -> None:
        self._file: TextIO | None = file
        self._sample = sample
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._numbers: Counter[tuple[str, str, str]] = Counter()
        #: The results of calls that were described, with their versions.
        self._made: MutableMapping[torch.Tensor, tuple[int, dict[str, Any]]] = WeakIdKeyDictionary()
        #: The weights whose gradients are recorded, with the hooks on them.
        self._weights: MutableMapping[torch.Tensor, Any] = WeakIdKeyDictionary()
        self._names: dict[int, tuple[str, str]] = {}
        #: The names of outermost modules in this record, by their names in this process.
        self._roots: dict[str, str] = {}
        self._graphs = FollowedGraphs(self._call_graph)
        self._former: Any = None

    def begin(self) -> None:
        self._former = _core.observe_calls(self._answer)
        self._graphs.install()

    def end(self) -> None:
        self._graphs.uninstall()
        _core.observe_calls(self._former)
        for hook in self._weights.values():
            hook.remove()
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _records(self) -> bool:
        """False after its end, in a fork of the process that began, and while a diagnosis repeats a step."""
        return self._file is not None and os.getpid() == self._process and notes.are_taken

    # ---- calls -------------------------------------------------------------------------------------------------------

    @run_by_python
    def _answer(self, called: Any, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if is_compiling():
            return _core.make_observed_call()
        read = {name: one for name, one in keywords.items() if name != "out"}
        given = (arguments[1:] if operation in _ONLY_WRITES else arguments, read)
        return self._recorded(_core.make_observed_call, given, plain_name(operation))

    @run_by_python
    def _call_graph(self, graph: Graph, run: Any, arguments: tuple[Any, ...]) -> Any:
        return self._recorded(partial(run, *arguments), arguments, "compiled", graph)

    def _recorded(self, call: Callable[[], Any], arguments: Any, operation: str, graph: Graph | None = None) -> Any:
        """Makes a call, and records it if it makes tensors."""
        if not self._records():
            return call()
        given = list(tensors_in(arguments))
        inputs = _core.call_unseen(lambda: [self._described(one) for one in given])
        result = call()
        results = list(tensors_in(result))
        if results:
            origin, decision = here(), _core.observed_decision() or ("unchanged", "")
            if graph is not None:
                decision = "unchanged", "compiled"
            _core.call_unseen(lambda: self._record(origin, operation, decision, given, inputs, results, graph))
        return result

    def _record(
        self,
        origin: Origin,
        operation: str,
        decision: tuple[str, str],
        given: list[torch.Tensor],
        inputs: list[dict[str, Any]],
        results: list[torch.Tensor],
        graph: Graph | None,
    ) -> None:
        phase = "backward" if _core.computes_gradient() else "forward"
        module = self._path(origin.module)
        made_by: list[_Call] = []
        with self._lock:
            of = self._numbered(module, operation, phase)
            if graph is not None:
                paths = (one.module if one.module[:1].isalpha() else module + one.module for one in graph.operations)
                made = [
                    self._numbered(path, plain_name(one.operation), phase)
                    for path, one in zip(paths, graph.operations, strict=True)
                ]
                made_by = [made[place] if place >= 0 else ("", "", 0) for place in graph.results]
        shown = [self._described(one, is_result=True) for one in results]
        self._write(of, phase, origin, decision, inputs, shown, **({"made_by": made_by} if made_by else {}))
        for one in given:
            if one.requires_grad and one.is_leaf and one not in self._weights:
                where, name = self._name_of(one) or (module, "a tensor")
                self._weights[one] = _on_gradient(one, partial(self._gradient, where, name, None, origin))
        for place, one in enumerate(results):
            if one.requires_grad and one.grad_fn is not None and not any(one is other for other in given):
                maker = made_by[place] if place < len(made_by) and made_by[place][2] else of
                name = maker[1] + (f", result {place + 1}" if place else "")
                _on_gradient(one, partial(self._gradient, maker[0], name, maker[2], origin))

    def _path(self, module: str) -> str:
        """Returns the path of a module. Outermost modules of one class are numbered within the record."""
        root, dot, rest = module.partition(".")
        if root not in self._roots:
            kind = root.partition("#")[0]
            number = 1 + sum(one.partition("#")[0] == kind for one in self._roots)
            self._roots[root] = kind if number == 1 else f"{kind}#{number}"
        return f"{self._roots[root]}{dot}{rest}"

    def _numbered(self, module: str, operation: str, phase: str) -> _Call:
        self._numbers[module, operation, phase] += 1
        return module, operation, self._numbers[module, operation, phase]

    def _described(self, tensor: torch.Tensor, *, is_result: bool = False) -> dict[str, Any]:
        """Returns the data of a tensor. That of a result is kept until the result is written to: it is the input of
        the calls after it."""
        version = -1 if tensor.is_inference() else tensor._version
        known = self._made.get(tensor)
        if known is not None and not is_result and known[0] == version >= 0:
            return known[1]
        found = described(tensor, self._sample)
        if tensor.requires_grad and tensor.is_leaf:
            found["weight"] = True
        if is_result:
            self._made[tensor] = version, found
        return found

    @run_by_python
    def _gradient(
        self, module: str, name: str, number: int | None, origin: Origin, gradient: torch.Tensor | None
    ) -> None:
        """Records the gradient of a call's result, which has the number of the call, or of a weight."""
        if gradient is None or not self._records():
            return
        operation, shown = f"gradient of {name}", _core.call_unseen(lambda: described(gradient, self._sample))
        if number is None:
            shown["weight"] = True
            with self._lock:
                number = self._numbered(module, operation, "backward")[2]
        self._write((module, operation, number), "backward", origin, ("unchanged", ""), [], [shown])

    def _name_of(self, weight: torch.Tensor) -> tuple[str, str] | None:
        """Returns the path of the module that has this weight, and its name there."""
        if id(weight) not in self._names:
            for outermost in outermost_modules():
                root = Origin("", 0, (outermost,)).module
                for path, module in named_modules(outermost):
                    where = ".".join((root, *path_in(outermost, path)))
                    self._names |= {id(one): (where, name) for name, one in module._parameters.items()}
        found = self._names.get(id(weight))
        return None if found is None else (self._path(found[0]), found[1])

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _write(
        self,
        of: _Call,
        phase: str,
        origin: Origin,
        decision: tuple[str, str],
        inputs: list[dict[str, Any]],
        results: list[dict[str, Any]],
        **more: Any,
    ) -> None:
        entry = {
            **dict(zip(("module", "operation", "number"), of, strict=True)),
            "phase": phase,
            "file": origin.file,
            "line": origin.line,
            **dict(zip(("precision", "reason"), decision, strict=True)),
            "inputs": inputs,
            "results": results,
            **more,
        }
        line = json.dumps(entry, separators=(",", ":"))
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(f"{line}\n")
            except OSError as error:
                self._file = None
                warn(f"the record ends here, since its file cannot be written: {error}")


def _on_gradient(tensor: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    return tensor.register_hook(function)  # type: ignore[no-untyped-call]  # torch's has no types
