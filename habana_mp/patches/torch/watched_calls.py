"""The parts of torch that the watch uses: calls of modules, code that it skips, code that a compiler traces, and the
beginning of a backward."""

from __future__ import annotations

import heapq
import importlib
import sysconfig
import timeit
import weakref
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds, require
from habana_mp.common.paths import PACKAGE
from habana_mp.ops import observed
from habana_mp.patches.tools import direct_calls
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions, originals
from habana_mp.patches.tools.patch import Settings
from habana_mp.patches.tools.pytree import tree_leaves

_CALLS = Assumption(
    "torch.module-calls-in-reports",
    assumed="`torch.nn.Module._call_impl` runs every call of a module, as a function of Python",
    check="the core looks at how it is called",
    otherwise='`report="modules"` and `report="lines"` are refused; the report of operations misses nothing',
)

_TRACED = Assumption(
    "torch.dynamo-places",
    assumed="`torch._guards.TracingContext` tells of which code Dynamo traces, and its translator of which module",
    check="both are there",
    otherwise="the report does not say which line or module a traced call belongs to",
)

#: The function that begins a backward.
BEGINS_BACKWARD: Table = {"torch.autograd": ("backward",)}


def notify_loss(name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs in place of the function that begins a backward."""
    for one in tree_leaves(arguments[:1]):
        if isinstance(one, torch.Tensor):
            _core.notice_loss(one)
    return originals[name](*arguments, **keywords)


_BACKWARD = assumption_of_functions(
    "torch.begun-backwards",
    "`torch.autograd.backward` takes the tensors that it begins from first",
    "the report does not warn of a loss in lower precision",
)

(_backward,) = Exchange(notify_loss, BEGINS_BACKWARD, assumption=_BACKWARD, positional=1).patches()

#: Modules that wrap another one and pass calls on, and their attribute for it. They do not appear in a path.
_WRAPPERS = {
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}


class _Roots:
    """Names of root modules: the name of the class, with the lowest number that no living module of the class has."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[torch.nn.Module], str]] = {}
        self._taken: set[str] = set()
        #: By class: how many numbers were given out, and which were returned.
        self._given: dict[str, int] = {}
        self._free: dict[str, list[int]] = {}

    def name_of(self, module: torch.nn.Module, kind: str) -> str:
        known = self._names.get(id(module))
        if known is not None and known[0]() is module:
            return known[1]
        passed_over = []  # a class may have the name of another one with its number
        while True:
            number = self._number(kind)
            name = kind if number == 1 else f"{kind}#{number}"
            if name not in self._taken:
                break
            passed_over.append(number)
        for one in passed_over:
            heapq.heappush(self._free.setdefault(kind, []), one)
        self._taken.add(name)
        reference = weakref.ref(module, partial(self._forget, id(module), kind, number, name))
        self._names[id(module)] = reference, name
        return name

    def _number(self, kind: str) -> int:
        if self._free.get(kind):
            return heapq.heappop(self._free[kind])
        self._given[kind] = self._given.get(kind, 0) + 1
        return self._given[kind]

    def _forget(self, key: int, kind: str, number: int, name: str, gone: weakref.ref[torch.nn.Module]) -> None:
        known = self._names.get(key)
        if known is not None and known[0] is gone:
            del self._names[key]
        self._taken.discard(name)
        free = self._free.setdefault(kind, [])
        heapq.heappush(free, number)
        if len(free) == self._given.get(kind):
            del self._free[kind], self._given[kind]  # no number is in use


_roots = _Roots()


def check() -> None:
    """Raises if calls of modules cannot be watched."""
    require(_CALLS, _can_follow)


def _can_follow() -> bool:
    direct_calls.check()
    return True


def begin(*, lines: bool) -> None:
    """Starts recording each call with its module, and with its line if ``lines`` is true."""
    configure_core()
    _backward.install(Settings())
    _core.follow_modules(*direct_calls.begin("report"))
    _core.watch_calls(True)
    _core.begin_watch(lines, _nanoseconds_a_cast())


@cache
def _nanoseconds_a_cast() -> float:
    """Returns the time that torch takes for a cast of one value."""
    value, to = torch.ones(1), torch.bfloat16
    with torch.no_grad():
        return 1e9 * min(timeit.repeat(lambda: value.to(to), repeat=5, number=20)) / 20


@cache
def configure_core() -> None:
    """Passes the core the files that it skips when it looks for the line of a call, and the code of module calls."""
    code = direct_calls.code_of_calls()
    _core.set_watch(_passed_over(), _compilers(), code, module_name, _traced_place)
    _core.set_sensitive(observed.ANGLES, observed.COUNTS, observed.STATISTICS)


def stop() -> None:
    _core.stop_watch()
    _backward.uninstall()
    _core.watch_calls(False)
    _core.stop_following_modules()
    direct_calls.end("report")


@cache
def _passed_over() -> tuple[str, ...]:
    """Returns the prefixes of files whose lines are skipped: those of torch, of this package and of Python."""
    paths = sysconfig.get_paths()
    stdlib = [str(one) for one in Path(paths["stdlib"]).glob("*.py")]
    packages = [f"{paths['stdlib']}/{name}/" for name in ("asyncio", "concurrent", "multiprocessing", "unittest")]
    generated = ("<frozen ", "<eval_with_key>")
    return (f"{Path(torch.__file__).parent}/", f"{PACKAGE}/", *generated, *packages, *stdlib)


def _compilers() -> tuple[str, ...]:
    folder = Path(torch.__file__).parent
    return tuple(f"{folder}/{name}/" for name in ("_dynamo", "_functorch", "_inductor", "_export"))


def module_name(module: Any, around: list[Any]) -> tuple[int, str, str]:
    """Returns the place of a module among the modules around it: the number of modules to go outwards (-1 for a root),
    its name there, and the name of its class. Its name is empty if it has no place of its own in a path."""
    kind = type(module).__name__
    for steps, outer in enumerate(around):
        for name, inner in () if outer is None else outer.named_modules():
            if inner is module and name:
                return steps, ".".join(_without_wrappers(outer, name)), kind
    if around:
        return 0, f"<{kind}>", kind
    return -1, "" if _inside_of(module) else _root_name(module, kind), kind


def _inside_of(module: Any) -> str | None:
    """Returns the name of the attribute that holds a wrapper's module, or None for any other module."""
    name = _WRAPPERS.get(type(module).__name__)
    return name if name is not None and isinstance(getattr(module, name, None), torch.nn.Module) else None


def _without_wrappers(outer: Any, name: str) -> Iterator[str]:
    for part in name.split("."):
        if _inside_of(outer) != part:
            yield part
        outer = getattr(outer, part)


def _root_name(module: Any, kind: str) -> str:
    if getattr(module, "_is_replica", False):  # nn.DataParallel creates new ones for each call
        return kind
    return _roots.name_of(module, kind)


def _traced_place() -> tuple[str | None, str, int, str | None] | None:
    """Returns the file, function, line and module that Dynamo traces now, or None if Dynamo does not provide them. The
    file is None if all traced code belongs to files that are skipped."""
    if not holds(_TRACED, _tells_of_tracing):
        return None
    context: Any = torch._guards.TracingContext
    stack = [] if context.try_get() is None else context.extract_stack()
    passed_over = _passed_over()
    frame = next((one for one in reversed(stack) if not one.filename.startswith(passed_over)), None)
    module = _traced_module()
    return (None, "", 0, module) if frame is None else (frame.filename, frame.name, frame.lineno or 0, module)


def _tells_of_tracing() -> bool:
    translator = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslator
    context: Any = torch._guards.TracingContext
    return callable(context.extract_stack) and callable(context.try_get) and callable(translator.current_tx)


def _traced_module() -> str | None:
    """Returns the path of the module whose forward is traced, or None. It is made from the `self` of each function that
    Dynamo traces."""
    translators: Any = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslator
    modules: list[Any] = []
    try:
        translator = translators.current_tx().output.current_tx  # for the innermost function
        while translator is not None:
            module = getattr(translator.symbolic_locals.get("self"), "value", None)
            if isinstance(module, torch.nn.Module) and module not in modules:
                modules.append(module)
            translator = translator.parent
    except AttributeError:  # no translator is active: the graph is being prepared
        return None
    names: list[str] = []
    for place, module in enumerate(modules):
        steps, name, _ = module_name(module, modules[place + 1 :])
        names += [name] if steps <= 0 else []
    return ".".join(name for name in reversed(names) if name) or None
