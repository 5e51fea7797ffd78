"""Changes the tensors of a call from a garbage collection, at each place where one may run within the call.

    python tests/trust/hostile_collections.py LIBRARY [--every N] [SCENARIO...]

LIBRARY is what collector.c was compiled to. To be run with guard_pages.so preloaded, which makes freed memory
unreadable: a kernel that uses it ends the process. Each result must be what the call gives before the change, or after
it.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from habana_mp import _core, hmp, kernels

Tensors = dict[str, torch.Tensor]


class Collector:
    """CPython's garbage collector, made to run at a chosen place."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.PyDLL(library)
        self._library.install(ctypes.py_object(gc.set_threshold))
        self._library.choose.argtypes = [ctypes.c_long]
        self._library.allocations.restype = ctypes.c_long
        #: How many collections changed something, in all calls.
        self.runs = 0
        #: The number of allocations of the last call, without those of the change.
        self.allocations = 0

    def run(self, call: Callable[[], Any], act: Callable[[], None], way: str, number: int) -> Any:
        """The result of `call`, with `act` run by a collection at that allocation."""
        junk = [[] for _ in range(1000)]  # what was allocated counts
        acted: list[int] = []
        of_change = 0

        def once() -> None:
            nonlocal of_change
            if not acted:
                acted.append(1)
                self._library.choose(0)
                act()
                of_change = self._library.allocations()

        def at_start(phase: str, info: Any) -> None:
            if phase == "start":
                once()

        class Finalized:
            def __init__(self) -> None:
                self.itself = self

            def __del__(self) -> None:
                once()

        class Watched:
            def __init__(self) -> None:
                self.itself = self

        reference = None
        if way == "callback":
            gc.callbacks.append(at_start)
        elif way == "finalizer":
            Finalized()
        else:
            watched = Watched()
            reference = weakref.ref(watched, lambda _: once())
            del watched
        self._library.choose(number)
        try:
            return call()
        finally:
            before = number if acted else 0  # `choose` counts from zero again
            self.allocations = before + self._library.allocations() - of_change
            self._library.choose(0)
            if way == "callback":
                gc.callbacks.remove(at_start)
            self.runs += len(acted)
            del junk, reference


def replaced(tensor: torch.Tensor) -> None:
    tensor.data = torch.full_like(tensor, 3.0)


def set_to_another(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.full_like(tensor, 3.0))


def smaller(tensor: torch.Tensor) -> None:
    tensor.data = torch.full((1,) * tensor.dim(), 3.0, dtype=tensor.dtype)


def of_half_the_bytes(tensor: torch.Tensor) -> None:
    tensor.data = torch.full_like(tensor, 3.0, dtype=torch.float16)


def resized(tensor: torch.Tensor) -> None:
    size = tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(2 * size)
    tensor.detach().fill_(3.0)


def transposed(tensor: torch.Tensor) -> None:
    tensor.data = torch.full_like(tensor.t().contiguous(), 3.0).t() if tensor.dim() == 2 else tensor.data.clone()


CHANGES = (replaced, set_to_another, smaller, of_half_the_bytes, resized, transposed)


class Scenario:
    """A call, the tensors that a collection changes, and what it may give."""

    def __init__(
        self,
        prepare: Callable[[], tuple[Callable[[], Any], Tensors]],
        *,
        options: Mapping[str, Any] | None = MappingProxyType({}),
        reads_once: bool = False,
    ) -> None:
        self.prepare = prepare
        #: The options of convert; None where torch stays as it is.
        self.options = options
        #: A call of several parts may see the change between two of them.
        self.reads_once = reads_once


def activation() -> tuple[Callable[[], Any], Tensors]:
    x = torch.ones(64, 32)
    y = torch.ones(32, 16)
    return lambda: torch.mm(x, y), {"x": x}


def large_activation() -> tuple[Callable[[], Any], Tensors]:
    x, y = torch.ones(640, 512), torch.ones(512, 2)
    return lambda: torch.mm(x, y), {"x": x}


def image() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(2, 8, 16, 16), torch.nn.Conv2d(8, 8, 3, padding=1)
    return lambda: layer(x), {"x": x, "weight": layer.weight}


def uneven_rows() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 8, 64).transpose(0, 1), torch.nn.Linear(64, 16)
    return lambda: layer(x), {"x": x}


def kept_weight() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 256).bfloat16(), torch.nn.Linear(256, 256)
    layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    return lambda: layer(x), {"weight": layer.weight, "bias": layer.bias, "x": x}


def new_weight() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 256), torch.nn.Linear(256, 256)
    return lambda: layer(x), {"weight": layer.weight, "bias": layer.bias, "x": x}


def packed_weight() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 256).bfloat16(), torch.nn.Linear(256, 256)
    for _ in range(8):
        layer(x)
    return lambda: layer(x), {"weight": layer.weight, "bias": layer.bias, "x": x}


def packing() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 256).bfloat16(), torch.nn.Linear(256, 256)
    for _ in range(4):
        layer(x)
    return lambda: layer(x), {"weight": layer.weight, "x": x}


def training_step() -> tuple[Callable[[], Any], Tensors]:
    x, layer = torch.ones(4, 64), torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    def call() -> Any:
        layer(x).float().sum().backward()
        optimizer.step()
        return layer(x)

    call()
    return call, {"weight": layer.weight}


def division() -> tuple[Callable[[], Any], Tensors]:
    x, y = torch.ones(64, 32), torch.ones(64, 32)

    def call() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.div(x, y)

    return call, {"x": x, "y": y}


def observed() -> tuple[Callable[[], Any], Tensors]:
    call, tensors = activation()

    def observed_call() -> Any:
        _core.observe_calls(lambda function, name, args, kwargs: _core.make_observed_call())
        try:
            return call()
        finally:
            _core.observe_calls(None)

    return observed_call, tensors


SCENARIOS = {
    "activation": Scenario(activation, reads_once=True),
    "large_activation": Scenario(large_activation, reads_once=True),
    "image": Scenario(image),
    "uneven_rows": Scenario(uneven_rows),
    "new_weight": Scenario(new_weight),
    "kept_weight": Scenario(kept_weight),
    "packed_weight": Scenario(packed_weight),
    "packing": Scenario(packing),
    "training_step": Scenario(training_step),
    "guarded": Scenario(division, options={"guard": 1.0}),
    "observed": Scenario(observed, reads_once=True),
    "under_rules": Scenario(training_step, options={"rules": {"linear @ **": "fp32", "sum": "lower"}}),
}
NO_GRAD = SCENARIOS.keys() - {"training_step", "under_rules"}


def outcome(call: Callable[[], Any]) -> Any:
    """Returns the result of a call, or the class of its error: torch refuses some of the changed tensors."""
    try:
        return call().float()
    except (RuntimeError, IndexError) as error:
        return type(error)


def is_among(result: Any, expected: list[Any]) -> bool:
    for one in expected:
        if isinstance(one, torch.Tensor) and isinstance(result, torch.Tensor):
            if one.shape == result.shape and torch.allclose(one, result, rtol=2e-2, atol=2e-2):
                return True
        elif one is result:
            return True
    return False


def changes_of(tensors: Tensors) -> Iterator[tuple[str, str | None, Callable[[torch.Tensor], None]]]:
    for name in tensors:
        for change in CHANGES:
            yield f"{name} {change.__name__}", name, change
    yield "restore", None, lambda _: hmp.restore()
    yield "convert", None, lambda _: hmp.convert()


#: The last two of these changes are made at each eighth place: after them torch must be converted anew, which takes
#: longer than all else.
SELDOM = 8


def begin(scenario: Scenario) -> tuple[Callable[[], Any], Tensors]:
    torch.manual_seed(0)
    if hmp.is_converted() and scenario.options is None:
        hmp.restore()
    if scenario.options is not None and not hmp.is_converted():
        hmp.convert(**scenario.options)
    return scenario.prepare()


def sweep(collector: Collector, name: str, every: int) -> int:
    """Runs the collection at each place in turn. Returns how many ran."""
    scenario, runs = SCENARIOS[name], 0
    _, tensors = begin(scenario)
    with torch.set_grad_enabled(name not in NO_GRAD):
        for words, which, change in changes_of(tensors):
            call, _ = begin(scenario)
            expected = [outcome(call)]
            call, tensors = begin(scenario)
            change(tensors[which] if which else torch.empty(0))
            expected.append(outcome(call))
            finite = all(not isinstance(one, torch.Tensor) or bool(torch.isfinite(one).all()) for one in expected)
            ways = ("callback", "finalizer", "weak reference")
            number, last = 1, 2
            steps = every if which else SELDOM * every
            gc.collect()  # or the first call would collect what earlier ones left, and count its allocations
            while number <= last:
                call, tensors = begin(scenario)
                before = collector.runs

                target = tensors[which] if which else torch.empty(0)

                way = ways[number % len(ways)]
                result = collector.run(partial(outcome, call), partial(change, target), way, number)
                last = max(last, collector.allocations)
                runs += collector.runs - before
                where = f"{name}, {words}, {way} at allocation {number}"
                if isinstance(result, torch.Tensor) and finite:
                    # Fresh memory holds NaNs.
                    assert torch.isfinite(result).all(), f"{where}: {result}"
                if scenario.reads_once and change is replaced:
                    assert is_among(result, expected), f"{where}: {result}"
                number += steps
    return runs


def arrays() -> int:
    """Casts of NumPy arrays whose caller changes them from within."""

    class Threads:
        def __init__(self, act: Callable[[], None]) -> None:
            self._act = act

        def __index__(self) -> int:
            self._act()
            return 1

    for size in (16, 1 << 16):
        array = np.ones(size, np.float32)

        def as_bytes(array: Any = array) -> None:
            array.dtype = np.uint8

        try:
            kernels.to_bfloat16(array, threads=Threads(as_bytes))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        raise AssertionError("an array of another dtype was cast")
    return 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("scenarios", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    collector = Collector(given.library)
    for name in given.scenarios or (*SCENARIOS, "arrays"):
        runs = arrays() if name == "arrays" else sweep(collector, name, given.every)
        assert runs, f"{name}: no collection ran"
        print(f"{name}: {runs}", flush=True)
    hmp.restore()
    sys.exit(0)


if __name__ == "__main__":
    main()
