"""The recorder of a process: writes each call that makes values to a file, as a line of JSON."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TextIO

import torch

from habana_mp import _core
from habana_mp.common.errors import warn
from habana_mp.patches.tools.compiled_functions import is_compiling, run_by_python
from habana_mp.patches.tools.notes import no_notes
from habana_mp.patches.torch.compiled_graphs import Graph, follow
from habana_mp.patches.torch.module_holders import named_modules
from habana_mp.patches.torch.module_paths import outermost_modules, path_in
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

#: The golden ratio's fraction: its multiples are spread evenly, whatever the number of values.
_STEP = (5**0.5 - 1) / 2


class Recorder:
    """Records the calls of a process, in all threads, from :meth:`begin` to :meth:`end`."""

    def __init__(self, opened: Callable[[], TextIO], sample: int) -> None:
        """``opened``: opens the file, when there is something to write. A process that multiprocessing starts does not
        know its own name before."""
        self._opened, self._sample = opened, sample
        self._file: TextIO | None = None
        self._is_on = False
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may call torch meanwhile
        self._numbers: Counter[tuple[str, str, str]] = Counter()
        #: By a weight's identity: the path of its module, its name there, and the module's weights.
        self._names: dict[int, tuple[str, str, dict[str, Any]]] = {}
        #: The names of outermost modules in this record, by their names in this process.
        self._roots: dict[str, str] = {}
        #: The hooks on weights, by identity. That of a weight which is gone has no dict of hooks.
        self._hooks: dict[int, Any] = {}
        self._has_begun = False

    def begin(self) -> None:
        """Begins, or goes on after :meth:`end`."""
        follow(self._call_graph, anew=not self._has_begun)
        self._has_begun = self._is_on = True

    def end(self) -> None:
        self._is_on = False
        follow(None)
        for hook in tuple(self._hooks.values()):
            hook.remove()
        self._hooks.clear()
        self._names.clear()  # it has the weights of all models
        with self._lock:
            self._close()

    def _records(self) -> bool:
        """False after its end, in a fork of the process that began, and while a diagnosis repeats a step."""
        return self._is_on and os.getpid() == self._process and not no_notes.entrances

    # ---- calls -------------------------------------------------------------------------------------------------------

    @run_by_python
    def answer(self, called: Any, operation: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
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
        given = tensors_in(arguments)
        inputs = _core.call_unseen(lambda: [self._described(one) for one in given])
        result = call()
        results = tensors_in(result)
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
        thread = threading.current_thread()
        if phase == "forward" and thread is not threading.main_thread():
            phase = f"forward in {thread.name}"  # its calls have numbers of their own
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
        shown = [self._described(one) for one in results]
        self._write(of, phase, origin, decision, inputs, shown, **({"made_by": made_by} if made_by else {}))
        for one in filter(_is_weight, given):
            known = self._hooks.get(id(one))
            if known is None or known.hooks_dict_ref() is None:
                where, name = self._name_of(one) or (module, "a tensor")
                self._hooks[id(one)] = _on_gradient(one, partial(self._gradient, where, name, None, "backward", origin))
        of_phase = phase.replace("forward", "backward")  # it has the number of the call in its phase
        for place, one in enumerate(results):
            if _has_gradient(one) and not any(one is other for other in given):
                maker = made_by[place] if place < len(made_by) and made_by[place][2] else of
                name = maker[1] + (f", result {place + 1}" if place else "")
                _on_gradient(one, partial(self._gradient, maker[0], name, maker[2], of_phase, origin))

    def _path(self, module: str) -> str:
        """Returns the path of a module. Outermost modules of one class are numbered within the record."""
        root, dot, rest = module.partition(".")
        if root not in self._roots:
            kind = root.partition("#")[0]
            number = 1 + sum(one.partition("#")[0] == kind for one in list(self._roots))
            self._roots[root] = kind if number == 1 else f"{kind}#{number}"
        return f"{self._roots[root]}{dot}{rest}"

    def _numbered(self, module: str, operation: str, phase: str) -> _Call:
        self._numbers[module, operation, phase] += 1
        return module, operation, self._numbers[module, operation, phase]

    def _described(self, tensor: torch.Tensor) -> dict[str, Any]:
        found = described(tensor, self._sample)
        return found | {"weight": True} if _is_weight(tensor) else found

    @run_by_python
    def _gradient(
        self, module: str, name: str, number: int | None, phase: str, origin: Origin, gradient: torch.Tensor | None
    ) -> None:
        """Records the gradient of a call's result, which has the number of the call, or of a weight."""
        if gradient is None or not self._records():
            return
        operation, shown = f"gradient of {name}", _core.call_unseen(lambda: described(gradient, self._sample))
        if number is None:
            shown["weight"] = True
            with self._lock:
                number = self._numbered(module, operation, phase)[2]
        self._write((module, operation, number), phase, origin, ("unchanged", ""), [], [shown])

    def _name_of(self, weight: torch.Tensor) -> tuple[str, str] | None:
        """Returns the path of the module that has this weight, and its name there."""
        where, name, holder = self._names.get(id(weight), ("", "", {}))
        if holder.get(name) is not weight:  # not known, or an earlier one had its address
            self._names = {
                id(one): (".".join((Origin("", 0, (root,)).module, *path_in(root, path))), key, module._parameters)
                for root in outermost_modules()
                for path, module in named_modules(root)
                if isinstance(module._parameters, dict)  # a scripted module has the weights of a plain one
                for key, one in list(module._parameters.items())
            }
            where, name, _ = self._names.get(id(weight), ("", "", {}))
        return (self._path(where), name) if name else None

    # ---- the file ----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        """Closes the file, which writes what is left. The lock is held."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

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
            if not self._is_on:
                return
            try:
                self._file = self._file or self._opened()
                self._file.write(f"{line}\n")
            except OSError as error:
                self._is_on = False
                with suppress(OSError):
                    self._close()
                warn(f"the record ends here, since its file cannot be written: {error}")


def _is_weight(tensor: torch.Tensor) -> bool:
    """True for a leaf that gets a gradient. torch refuses to tell that of a view which was made without gradients."""
    with suppress(Exception):  # a class of tensors may raise anything
        return tensor.requires_grad and tensor.is_leaf
    return False


def _has_gradient(tensor: torch.Tensor) -> bool:
    with suppress(Exception):
        return tensor.requires_grad and tensor.grad_fn is not None
    return False


def _on_gradient(tensor: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    return tensor.register_hook(function)  # type: ignore[no-untyped-call]  # torch's has no types


# ---- a tensor --------------------------------------------------------------------------------------------------------


def described(tensor: torch.Tensor, most: int) -> dict[str, Any]:
    """Returns the data of a tensor with at most this many of its values. Tensors of other classes than torch's own have
    only their type and sizes."""
    found: dict[str, Any] = {"dtype": "unknown", "sizes": []}
    with suppress(Exception), torch.no_grad():  # a class of tensors may raise anything
        found["dtype"] = str(tensor.dtype).removeprefix("torch.")
        found["sizes"] = list(map(int, tensor.shape))
        local = getattr(tensor, "to_local", None)  # the part of a distributed tensor that this process holds
        plain = tensor if local is None else local()
        if type(plain) in (torch.Tensor, torch.nn.Parameter):
            found |= _values(plain.detach(), most)
    return found


def _values(tensor: torch.Tensor, most: int) -> dict[str, Any]:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.numel() or tensor.device.type == "meta":
        return {}
    wide = torch.float32 if tensor.device.type == "mps" else torch.float64
    sample = torch.take(tensor, _positions(tensor.numel(), most, tensor.device)).to(wide)
    # Values that are repeated in memory are read once.
    once = tensor[tuple(slice(1) if step == 0 else slice(None) for step in tensor.stride())]
    sizes = once.to(torch.uint8) if once.dtype == torch.bool else once.abs()
    whole = torch.cat((_largest_and_sum(sizes, wide), sample)).tolist()  # one copy from a device
    not_finite = 0
    if not math.isfinite(whole[0]):
        is_finite = torch.isfinite(sizes)
        not_finite = sizes.numel() - int(is_finite.sum())
        whole[:2] = _largest_and_sum(torch.where(is_finite, sizes, 0), wide).tolist()
    count = sizes.numel()
    return {
        "largest": whole[0],
        "mean": whole[1] / max(1, count - not_finite),
        "not_finite": not_finite / count,
        "values": whole[2:],
    }


def _largest_and_sum(sizes: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    rows = sizes.reshape(1) if not sizes.dim() else sizes
    in_rows = torch.float32 if rows.is_floating_point() and rows.dtype != torch.float64 else wide
    return torch.stack((rows.amax().to(wide), rows.sum(-1, dtype=in_rows).sum(dtype=wide)))


@lru_cache(maxsize=4096)
def _positions(count: int, most: int, device: torch.device) -> torch.Tensor:
    """Returns the positions of the sample: they depend on the number of values alone."""
    chosen = range(count) if count <= most else sorted({int((i + 0.5) * _STEP % 1 * count) for i in range(most)})
    with torch.inference_mode(mode=False):
        return torch.tensor(list(chosen), device=device)
