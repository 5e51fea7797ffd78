"""A script for test_reference_counts.py: what each entry of the package leaves behind, object by object.

    python reference_counts.py ROUNDS [ENTRY ...]

For each entry a line is printed: its name, and what has grown with the rounds. Each entry runs many times. Afterwards
the references of every object that the collector knows or that such an object refers to are compared with those before:
one reference that a round leaves, to whatever object, is seen as many, and so is one that it takes too often. So is an
object, or a block of memory, that each round leaves.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch import nn

from habana_mp import _core, hmp
from habana_mp.reporting import guard

guard._MOST_CALLS = 4  # so that the rounds before those that are compared reach it

X = torch.linspace(-1, 1, 64).reshape(8, 8)
W = torch.linspace(-1, 1, 64).reshape(8, 8)
MODEL = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8))
TRAINED = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
OPTIMIZER = torch.optim.AdamW(TRAINED.parameters(), lr=1e-3)
WRAPPED = hmp.op_wrap(lambda x: x @ x, to="bf16")
LOGGER = logging.Logger("references", logging.INFO)
LOGGER.addHandler(logging.NullHandler())

_entries: dict[str, tuple[Callable[[], None], dict[str, Any] | None]] = {}


def entry(**converted: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Add an entry that runs under `convert` with these arguments."""

    def add(function: Callable[[], None]) -> Callable[[], None]:
        _entries[function.__name__] = function, converted
        return function

    return add


def alone(function: Callable[[], None]) -> Callable[[], None]:
    """Add an entry that converts by itself."""
    _entries[function.__name__] = function, None
    return function


@contextlib.contextmanager
def raising(*errors: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except errors:
        pass
    else:
        raise AssertionError("nothing was raised")


@entry()
def builtins_and_methods() -> None:
    torch.matmul(X, W), X.matmul(W), X @ W, torch.softmax(X, -1), X.softmax(dim=-1), X.exp(), torch.add(X, W, alpha=2)
    bound = X.matmul
    bound(W)


@entry()
def operators_of_torch_ops() -> None:
    torch.ops.aten.mm(X, W)
    torch.ops.aten.mm.default(X, W)


@entry()
def training() -> None:
    OPTIMIZER.zero_grad()
    TRAINED(X).square().mean().backward()
    OPTIMIZER.step()


@entry()
def convolutions_and_lists_of_tensors() -> None:
    image = X.reshape(1, 1, 8, 8)
    nn.functional.conv2d(image, image[..., :3, :3])
    torch.cat([X, W.bfloat16()]), torch.stack((X, W)), torch.einsum("ij,jk->ik", X, W)


@entry()
def assignments_and_subscripts() -> None:
    made = torch.zeros(8, 8, dtype=torch.bfloat16, requires_grad=True)
    made[[0, 0]].sum().backward()
    target = torch.zeros(8, 8)
    target[0] = X[0].bfloat16()
    target += X.bfloat16()
    target.bfloat16().masked_fill_(target > 0, torch.finfo(torch.float32).min)


@entry()
def calls_that_fail() -> None:
    with raising(RuntimeError):
        torch.matmul(X, torch.ones(3, 3))
    with raising(TypeError):
        torch.matmul(X)  # type: ignore[call-overload]  # wrong on purpose
    with raising(TypeError):
        X.softmax(nonsense=1)  # type: ignore[call-overload]  # wrong on purpose
    with raising(RuntimeError):
        torch.cat([X, torch.ones(3, 3).bfloat16()])


@entry()
def functions_in_python_and_calls_without_a_kernel() -> None:
    nn.functional.normalize(X)
    2.0 / X
    torch.fft.rfft(X @ W)
    torch.linalg.inv((X @ W) + torch.eye(8))


@entry()
def wrapped_functions() -> None:
    WRAPPED(X)
    hmp.op_wrap(lambda x: x @ x, to="fp32")(X)
    with raising(RuntimeError):
        WRAPPED(torch.ones(2, 3))


@entry()
def regions() -> None:
    with hmp.autocast("cpu"), hmp.disable_casts():
        X @ W
    with hmp.autocast("cpu", torch.float16):
        X @ W
    with torch.autocast("cpu", enabled=False):
        X @ W


@entry(rules={"linear @ **": "fp32", "* @ 3": "fp32", "relu": "lower"})
def rules_by_module() -> None:
    # No new modules: the table of what holds them forgets dead ones only when it has many.
    MODEL(X)
    with raising(RuntimeError):
        MODEL(torch.ones(2, 3))


@entry(guard=1.0)
def guarded_calls() -> None:
    MODEL(X).square().mean().backward()
    with raising(RuntimeError):
        torch.matmul(X, torch.ones(3, 3))


@entry()
def observed_calls() -> None:
    _core.observe_calls(lambda function, name, args, kwargs: _core.make_observed_call())
    MODEL(X)
    with raising(RuntimeError):
        torch.matmul(X, torch.ones(3, 3))
    _core.observe_calls(None)


@entry()
def diagnoses() -> None:
    hmp.diagnose(lambda: TRAINED(X).square().mean())


@entry(report="lines")
def watched_lines() -> None:
    MODEL(X)
    WRAPPED(X)
    with raising(RuntimeError):
        MODEL(torch.ones(2, 3))


@entry(report="modules")
def reports() -> None:
    MODEL(X)
    report = hmp.report(show=False)
    str(report), report.to_dict()
    hmp.reset_report()


@entry(log=LOGGER, isVerbose="why")
def the_log() -> None:
    X @ W
    with hmp.disable_casts():
        X @ W


@entry()
def autograd_functions_and_hooks() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x @ x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient @ gradient

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        x = X.clone().requires_grad_()
        y = Own.apply(x)
        y.register_hook(lambda gradient: gradient)
        (y @ W).sum().backward()


@alone
def conversion() -> None:
    hmp.convert()
    X @ W
    hmp.convert("O2", within="modules", report="lines")
    MODEL(X)
    hmp.restore()


@alone
def conversion_that_fails() -> None:
    with raising(ValueError):
        hmp.convert("O7")
    with raising(ValueError):
        hmp.convert(preset="none of them")
    with raising(OSError):
        hmp.convert(bf16_file_path="/nowhere/at/all")


def settle() -> None:
    """Nothing waits to be collected."""
    gc.collect()
    sys._clear_type_cache()  # which holds names of attributes, also of classes that are gone


class Objects:
    """All objects that can be found: those that the collector knows, and what these refer to."""

    def __init__(self) -> None:
        gc.collect()
        tracked = gc.get_objects()
        found = {id(one): one for one in tracked}
        found.update((id(one), one) for one in gc.get_referents(*tracked))
        for one in (tracked, found):
            found.pop(id(one), None)
        self._all = list(found.values())

    def references(self) -> Any:
        """How many references each has, as an array: objects of Python would have references themselves."""
        settle()
        return numpy.fromiter(map(sys.getrefcount, self._all), numpy.int64, len(self._all))

    def __getitem__(self, number: int) -> Any:
        return self._all[number]


def kinds() -> Counter[type]:
    counted: Counter[type] = Counter()  # of nothing: abstract classes would remember the type of what it is made of
    for one in gc.get_objects():
        counted[type(one)] += 1
    return counted


def grown(objects: Objects, work: Callable[[], None], rounds: int) -> list[str]:
    """What has at least one reference more, or less, for each round; and kinds of objects of which each left one."""
    for _ in range(5):
        work()
    kinds_before, before = kinds(), objects.references()
    settle()
    blocks = sys.getallocatedblocks()
    for _ in range(rounds):
        work()
    settle()
    more_blocks = sys.getallocatedblocks() - blocks
    change = objects.references() - before
    enough = rounds * 9 // 10
    said = [
        f"{change[number]:+} references of {type(objects[number]).__name__} {objects[number]!r:.80}"
        for number in numpy.flatnonzero(abs(change) >= enough).tolist()
    ]
    more_kinds = kinds() - kinds_before
    said += [f"{count:+} objects {kind.__name__}" for kind, count in more_kinds.items() if count >= enough]
    if more_blocks >= enough:
        said.append(f"{more_blocks:+} blocks of memory")
    return said


@contextlib.contextmanager
def configured(arguments: dict[str, Any] | None) -> Iterator[None]:
    if arguments is not None:
        hmp.convert(**arguments)
    yield
    hmp.restore()


def main() -> None:
    rounds, names = int(sys.argv[1]), sys.argv[2:] or list(_entries)
    entries = {name: _entries[name] for name in names}
    for work, arguments in entries.values():
        with configured(arguments):
            for _ in range(20):
                work()
    objects = Objects()
    for name, (work, arguments) in entries.items():
        with configured(arguments):
            print(f"{name}: {'; '.join(grown(objects, work, rounds)) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
