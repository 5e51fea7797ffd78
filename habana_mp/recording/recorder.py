"""The recorder of a process: writes each call that makes values to a file, as a line of JSON."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import Counter
from functools import partial
from typing import Any, TextIO

import torch

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

#: What identifies a call: its module, operation and phase. Calls with the same key are numbered from 1.
Key = tuple[str, str, str]

#: Operations that write into their first argument, and do not read it.
_ONLY_WRITES = frozenset(
    ("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
     "uniform_", "zero_")
)  # fmt: skip


def plain_name(operation: str) -> str:
    """Returns the name of an operation as lists and reports have it: `*` is mul there."""
    return operation.strip("_") if operation.startswith("__") else operation


class Recorder:
    """Records the calls of a process, in all threads, from :meth:`begin` to :meth:`end`."""

    def __init__(self, file: TextIO, sample: int) -> None:
        self._file: TextIO | None = file
        self._sample = sample
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._numbers: Counter[Key] = Counter()
        #: The results of calls that were described, by identity, with their versions.
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], int, dict[str, Any]]] = {}
        #: The weights whose gradients are recorded, by identity, with the hooks on them.
        self._weights: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
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
        for _, hook in self._weights.values():
            hook.remove()
        with self._lock:
            self._file = None

    def _records(self) -> bool:
        """False after its end, in a fork of the process that began, and while a diagnosis repeats a step."""
        return self._file is not None and os.getpid() == self._process and notes.are_taken

    # ---- calls -------------------------------------------------------------------------------------------------------

    @run_by_python
    def _answer(self, called: Any, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if not self._records() or is_compiling():
            return _core.make_observed_call()
        read = {name: one for name, one in keywords.items() if name != "out"}
        given = list(tensors_in((arguments[1:] if operation in _ONLY_WRITES else arguments, read)))
        inputs = _core.call_unseen(lambda: [self._described(one) for one in given])
        result = _core.make_observed_call()
        results = list(tensors_in(result))
        if results:
            origin, decision = here(), _core.observed_decision() or ("unchanged", "")
            _core.call_unseen(
                lambda: self._record(origin, plain_name(operation), decision, given, inputs, results, None)
            )
        return result

    @run_by_python
    def _call_graph(self, graph: Graph, run: Any, arguments: tuple[Any, ...]) -> Any:
        if not self._records():
            return run(*arguments)
        given = list(tensors_in(arguments))
        inputs = _core.call_unseen(lambda: [self._described(one) for one in given])
        result = run(*arguments)
        results = list(tensors_in(result))
        origin = here()
        _core.call_unseen(
            lambda: self._record(origin, "compiled", ("unchanged", "compiled"), given, inputs, results, graph)
        )
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
        made_by: list[tuple[str, str, int]] = []
        with self._lock:
            number = self._numbered((module, operation, phase))
            if graph is not None:
                paths = [f"{'' if one.module[:1].isalpha() else module}{one.module}" for one in graph.operations]
                keys = [
                    (path, plain_name(one.operation), phase) for path, one in zip(paths, graph.operations, strict=True)
                ]
                names = [(*key[:2], self._numbered(key)) for key in keys]
                made_by = [names[place] if place >= 0 else ("", "", 0) for place in graph.results]
        shown = [self._described(one, is_result=True) for one in results]
        entry = {
            "module": module,
            "operation": operation,
            "phase": phase,
            "number": number,
            "file": origin.file,
            "line": origin.line,
            "precision": decision[0],
            "reason": decision[1],
            "inputs": inputs,
            "results": shown,
        }
        if made_by:
            entry["made_by"] = made_by
        self._write(entry)
        for one in given:
            if one.requires_grad and one.is_leaf:
                self._follow_weight(one, origin, module)
        for place, one in enumerate(results):
            if one.requires_grad and one.grad_fn is not None and not any(one is other for other in given):
                of = made_by[place] if place < len(made_by) and made_by[place][2] else (module, operation, number)
                one.register_hook(partial(self._gradient, of, place, origin))  # type: ignore[no-untyped-call]  # torch's has no types

    def _path(self, module: str) -> str:
        """Returns the path of a module. Outermost modules of one class are numbered within the record."""
        root, dot, rest = module.partition(".")
        if root not in self._roots:
            kind = root.partition("#")[0]
            number = 1 + sum(one.partition("#")[0] == kind for one in self._roots)
            self._roots[root] = kind if number == 1 else f"{kind}#{number}"
        return f"{self._roots[root]}{dot}{rest}"

    def _numbered(self, key: Key) -> int:
        self._numbers[key] += 1
        return self._numbers[key]

    def _described(self, tensor: torch.Tensor, *, is_result: bool = False) -> dict[str, Any]:
        """Returns the data of a tensor. That of a result is kept until the result is written to: it is the input of
        the calls after it."""
        known = self._made.get(id(tensor))
        version = -1 if tensor.is_inference() else tensor._version
        if known is not None and not is_result and known[0]() is tensor and known[1] == version >= 0:
            return known[2]
        found = described(tensor, self._sample)
        if tensor.requires_grad and tensor.is_leaf:
            found["weight"] = True
        if is_result:
            gone = partial(_forget, weakref.ref(self), id(tensor))
            self._made[id(tensor)] = weakref.ref(tensor, gone), version, found
        return found

    # ---- gradients ---------------------------------------------------------------------------------------------------

    @run_by_python
    def _gradient(self, of: tuple[str, str, int], place: int, origin: Origin, gradient: torch.Tensor | None) -> None:
        module, operation, number = of
        name = f"gradient of {operation}" + (f", result {place + 1}" if place else "")
        self._record_gradient(module, name, number, origin, gradient, {})

    def _record_gradient(
        self,
        module: str,
        operation: str,
        number: int,
        origin: Origin,
        gradient: torch.Tensor | None,
        more: dict[str, Any],
    ) -> None:
        if gradient is None or not self._records():
            return
        entry = {
            "module": module,
            "operation": operation,
            "phase": "backward",
            "number": number,
            "file": origin.file,
            "line": origin.line,
            "precision": "unchanged",
            "reason": "",
            "inputs": [],
        }
        self._write(entry | {"results": _core.call_unseen(lambda: [described(gradient, self._sample) | more])})

    def _follow_weight(self, weight: torch.Tensor, origin: Origin, module: str) -> None:
        known = self._weights.get(id(weight))
        if known is not None and known[0]() is weight:
            return
        where, name = self._name_of(weight) or (module, "a tensor")
        hook: Any = partial(self._weight_gradient, where, name, origin)
        self._weights[id(weight)] = weakref.ref(weight), weight.register_hook(hook)  # type: ignore[no-untyped-call]  # torch's has no types

    @run_by_python
    def _weight_gradient(self, module: str, name: str, origin: Origin, gradient: torch.Tensor | None) -> None:
        operation = f"gradient of {name}"
        with self._lock:
            number = self._numbered((module, operation, "backward"))
        self._record_gradient(module, operation, number, origin, gradient, {"weight": True})

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

    def _write(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":"))
        with self._lock:
            if self._file is None:
                return
            try:
                self._file.write(f"{line}\n")
            except OSError as error:
                self._file = None
                warn(f"the record ends here, since its file cannot be written: {error}")


def _forget(recorder: weakref.ref[Recorder], key: int, gone: weakref.ref[torch.Tensor]) -> None:
    alive = recorder()
    if alive is not None and alive._made.get(key, (None,))[0] is gone:
        del alive._made[key]
