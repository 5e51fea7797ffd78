"""Makes the work of ``entries.py`` again and again; each time another allocation fails.

``python -m trust.run_entries LIBRARY PROGRESS HOW [--only ENTRY] [--begin ENTRY KIND NUMBER]``. LIBRARY is
``failing_allocations.so``, which is preloaded, too. HOW is ``full``: every allocation of the core fails once; of
CPython's, every one in an entry that has up to 2,000, else the first of each place in the code. It is ``short`` for a
sample of these. It makes all entries, or one, from the beginning or from that ENTRY, KIND and NUMBER. Before each
attempt it writes these three into PROGRESS, where they stay if the process dies. Prints a line for each failure.
"""

from __future__ import annotations

import argparse
import builtins
import ctypes
import gc
import logging
import re
import sys
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from habana_mp import _core, hmp
from helpers.state_of_torch import assert_torch_is_restored
from trust.entries import ENTRIES, Entry

_compile = compile

KINDS = {"core": 1, "python": 2}

_FIRST = 20
_SPREAD = 12


class Allocations:
    """The library that lets allocations fail."""

    def __init__(self, path: str) -> None:
        library = ctypes.PyDLL(path)
        library.fail_allocations.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int]
        library.fail_allocations.restype = None
        library.stop_failing.restype = ctypes.c_uint64
        library.failed_allocations.restype = ctypes.c_uint64
        library.most_places.restype = ctypes.c_uint64
        library.places_of_allocations.restype = ctypes.POINTER(ctypes.c_uint64)
        self._library = library
        # CPython's compiler ends the process, or raises SystemError, if one of its allocations fails: also in a program
        # without this package.
        builtins.compile = self._compile

    def _compile(self, *arguments: Any, **options: Any) -> Any:
        was_armed = self._library.pause_failing()
        try:
            return _compile(*arguments, **options)
        finally:
            self._library.go_on_failing(was_armed)

    def run(self, entry: Entry, state: Any, kind: str, first: int, *, records: bool = False) -> tuple[str, Any, int]:
        """Return the outcome: ``"works"`` with the result, ``"no memory"``, or words of another exception; and how many
        allocations there were."""
        begin, stop, run = self._library.fail_allocations, self._library.stop_failing, entry.run
        result, outcome = None, "works"
        begin(KINDS[kind], first, 1, records)
        try:
            result = run(state)
        except MemoryError:
            outcome = "no memory"
        except BaseException as error:
            count = stop()
            return f"{type(error).__name__}: {error}", None, count
        return outcome, result, stop()

    def failed(self) -> int:
        """The number of allocations that failed in the last run."""
        return int(self._library.failed_allocations())

    def is_of_the_core(self) -> bool:
        """True if the allocation failed while a function of the core was on the stack."""
        return bool(self._library.core_was_inside())

    def is_of_code_called_by_the_core(self) -> bool:
        """True if CPython ran code that the core had called."""
        return bool(self._library.interpreter_was_inside_core())

    def places(self, count: int) -> list[int]:
        """The number of the first allocation of each place."""
        keys = self._library.places_of_allocations()
        firsts: dict[int, int] = {}
        for i in range(min(count, self._library.most_places())):
            firsts.setdefault(keys[i], i + 1)
        return sorted(firsts.values())


def fingerprint() -> dict[str, Any]:
    """What of torch this package may change: objects, their code, and the slots of C."""
    found: dict[str, Any] = {}
    owners = {
        "torch": torch,
        "torch.Tensor": torch.Tensor,
        "torch._C.TensorBase": torch._C.TensorBase,
        "torch._C": torch._C,
        "torch._C._nn": torch._C._nn,
        "torch.nn.functional": torch.nn.functional,
        "torch.nn.Module": torch.nn.Module,
        "torch.optim.Optimizer": torch.optim.Optimizer,
        "torch.autograd": torch.autograd,
        "torch.utils.checkpoint": torch.utils.checkpoint,
    }
    for owner, holder in owners.items():
        for name, value in vars(holder).items():
            found[f"{owner}.{name}"] = (id(value), *_inside(value))
    return found


def changes(untouched: dict[str, Any]) -> list[str]:
    """The names of some that are not as they were."""
    now = fingerprint()
    return [name for name in now.keys() | untouched.keys() if now.get(name) != untouched.get(name)][:5]


def _inside(value: Any) -> tuple[Any, ...]:
    address = id(value)
    if isinstance(value, types.FunctionType):
        return (id(value.__code__), id(value.__kwdefaults__))
    if type(value) is types.BuiltinFunctionType:  # its definition, and its slot
        return (_word(address + 16), _word(address + 48))
    if type(value) is types.MethodDescriptorType:  # the function of its definition, and its slot
        return (_word(_word(address + 40) + 8), _word(address + 48))
    if type(value) is types.GetSetDescriptorType:
        definition = _word(address + 40)
        return (_word(definition + 8), _word(definition + 16))
    if type(value) is types.WrapperDescriptorType:
        return (_word(address + 48),)
    return ()


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


def numbers(entry: Entry, allocations: Allocations, kind: str, how: str) -> Iterator[int]:
    """Yield the numbers of the allocations that are to fail."""
    entry.clean()
    _, _, count = allocations.run(entry, entry.prepare(), kind, 0)
    every = range(1, count + 1)
    if how == "full" and (kind == "core" or count <= 2000):
        chosen = list(every)
    else:
        _, _, count = allocations.run(entry, _prepared(entry), kind, 0, records=True)
        chosen = allocations.places(count)
    if how == "full":
        return iter(chosen)
    most = entry.most or _FIRST + _SPREAD
    first = min(_FIRST, most // 2)
    rest = chosen[first:]
    step = max(1, -(-len(rest) // max(1, most - first)))
    return iter(chosen[:first] + rest[::step])


def _prepared(entry: Entry) -> Any:
    """For an attempt, whatever the last one has left: torch's ``no_grad`` cannot end without memory."""
    torch.set_grad_enabled(True)
    entry.clean()
    return entry.prepare()


#: Exceptions other than MemoryError that no caller received.
unraisable: list[str] = []


#: What CPython's own code raises for a MemoryError that it loses, where the core is not under way.
_WORDS_OF_CPYTHON = (
    "SystemError: ",
    "RuntimeError: can't allocate",
    "TypeError: expected str, bytes or os.PathLike object, not ",
)


#: CPython 3.11 loses an exception, or keeps one too many, where a dictionary of attributes or a string finds no memory,
#: as in the `__init__` of a frozen dataclass. It may happen below a function of the core, which calls torch's
#: initialisation, or Python of this package.
_LOST_BY_CPYTHON = re.compile(
    r"SystemError: (<function Module\.__getattr__ at \w+> returned NULL without setting an exception"
    r"|<method '\w+' of '(str|list|dict|tuple|set)' objects> returned a result with an exception set"
    r"|<built-in method __new__ of type object at \w+> returned a result with an exception set"
    r"|<class '(?!habana_mp\._core)[\w.]+'> returned a result with an exception set)"
)


def _is_of_cpython(error: BaseException | None) -> bool:
    """True if CPython lost an exception in a call of a function that is not from this package."""
    lost = ("returned a result with an exception set", "returned NULL without setting an exception")
    return isinstance(error, SystemError) and str(error).endswith(lost) and "habana_mp" not in str(error)


def _note_unraisable(one: Any) -> None:
    if not issubclass(one.exc_type, MemoryError) and not _is_of_cpython(one.exc_value):
        unraisable.append(f"{one.exc_type.__name__}: {one.exc_value}")


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype is other.dtype and bool(torch.equal(one, other))
    return bool(one == other)


def _is_held_by_package(held: Any) -> bool:
    """True if a module of this package refers to it, directly or not."""
    seen, todo = {id(held)}, [held]
    while todo and len(seen) < 10_000:
        one = todo.pop()
        if type(one) is dict and str(one.get("__name__", "")).startswith("habana_mp"):
            return True
        for holder in gc.get_referrers(one):
            if id(holder) not in seen and holder is not todo and not isinstance(holder, types.FrameType):
                seen.add(id(holder))
                todo.append(holder)
    return False


class Failures:
    def __init__(self) -> None:
        self.count = 0

    def note(self, entry: Entry, kind: str, number: int, words: str) -> None:
        self.count += 1
        print(f"FAILURE {entry.name} | {kind} | {number} | {words}", flush=True)


def attempt(
    entry: Entry, allocations: Allocations, kind: str, number: int, expected: Any, untouched: dict[str, Any]
) -> str | None:
    """Return what went wrong when this allocation failed, or None."""
    state = _prepared(entry)
    held = [weakref.ref(one) for one in entry.tensors(state)] if state is not None else []
    unraisable.clear()
    outcome, result, _ = allocations.run(entry, state, kind, number)
    is_of_the_core = allocations.is_of_the_core()
    is_freed_by_us = is_of_the_core and not allocations.is_of_code_called_by_the_core()
    if not is_of_the_core and any(words in outcome for words in _WORDS_OF_CPYTHON):
        outcome = "no memory"
    if _LOST_BY_CPYTHON.fullmatch(outcome):
        outcome = "no memory"
    if outcome not in ("works", "no memory"):
        return outcome
    if unraisable:
        return f"an exception that nobody gets: {unraisable}"
    if outcome == "works" and not is_same(result, expected):
        return f"another result: {result} instead of {expected}"
    if entry.is_whole and outcome == "no memory":
        if hmp.is_converted():
            return "torch is converted, although the call raised MemoryError"
        if changed := changes(untouched):
            return f"torch is changed: {changed}"
    result = state = None
    entry.clean()
    if entry.clean is hmp.restore and (changed := changes(untouched)):
        return f"torch is changed after restore: {changed}"
    state = _prepared(entry)
    again = entry.run(state)
    if not is_same(again, expected):
        return f"another result afterwards: {again} instead of {expected}"
    state = again = None
    if any(one() is not None for one in held):
        gc.collect()
    left = [one for one in held if one() is not None]
    # CPython itself loses references where there is no memory for a frame, a variable of an inner function, or a list.
    if left and (is_freed_by_us or any(_is_held_by_package(one()) for one in left)):
        return f"a tensor is not freed; the attempt: {outcome}"
    return None


def make_all(entry: Entry, allocations: Allocations, kind: str, how: str, begin: int, progress: Path) -> int:
    """How many attempts there were, of this entry."""
    hmp.restore()
    entry.begin()
    entry.run(_prepared(entry))  # what torch imports and makes at its first use
    entry.clean()
    entry.end()
    hmp.restore()
    untouched = fingerprint()
    entry.begin()
    expected = None
    for _ in range(3):
        expected = entry.run(_prepared(entry))
    made = failed = 0
    chosen = list(numbers(entry, allocations, kind, how))
    gc.collect()
    blocks = sys.getallocatedblocks()
    for number in chosen:
        if number < begin:
            continue
        progress.write_text(f"{entry.name}\n{kind}\n{number}\n", "utf-8")
        gc.disable()
        words = attempt(entry, allocations, kind, number, expected, untouched)
        gc.enable()
        if words is not None:
            failures.note(entry, kind, number, words)
        made += 1
        failed += allocations.failed()
    if made and not failed:
        failures.note(entry, kind, 0, f"no allocation failed in {made} attempts")
    gc.collect()
    more = sys.getallocatedblocks() - blocks
    # CPython itself loses a frame, with what it holds, where there is no memory for all of it.
    if made > 20 and more > 1000 + (3 if kind == "core" else entry.lost_blocks) * made:
        failures.note(entry, kind, 0, f"{more} blocks of memory are left after {made} attempts")
    entry.clean()
    entry.end()
    hmp.restore()
    assert_torch_is_restored()
    if changed := changes(untouched):
        failures.note(entry, kind, 0, f"torch is changed in the end: {changed}")
    return made


failures = Failures()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("progress", type=Path)
    parser.add_argument("how", choices=["short", "full"])
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("--only", choices=names)
    parser.add_argument("--begin", nargs=3, default=[names[0], next(iter(KINDS)), "0"])
    given = parser.parse_args()
    allocations = Allocations(given.library)
    torch.set_num_threads(1)
    torch.set_default_device(None)
    _core.bind_torch()
    sys.unraisablehook = _note_unraisable
    logging.raiseExceptions = False
    first = (names.index(given.begin[0]), list(KINDS).index(given.begin[1]))
    for place, entry in enumerate(ENTRIES):
        for kind_place, kind in enumerate(KINDS):
            if (place, kind_place) < first or given.only not in (None, entry.name):
                continue
            begin = int(given.begin[2]) if (place, kind_place) == first else 0
            try:
                made = make_all(entry, allocations, kind, given.how, begin, given.progress)
            except Exception as error:
                failures.note(entry, kind, -1, f"{type(error).__name__}: {error}")
                made = 0
            print(f"{entry.name} | {kind}: {made} attempts", flush=True)
    return failures.count != 0


if __name__ == "__main__":
    sys.exit(main())
