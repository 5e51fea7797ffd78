"""What the watch must know of torch: the calls of modules, whose code is passed over, and what a compiler traces."""

from __future__ import annotations

import importlib
import sysconfig
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from habana_mp import _core
from habana_mp._ledger import Assumption, holds, require

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

#: Modules that stand around another one and hand calls on, and what they call it. They have no place in a path.
_WRAPPERS = {
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}

#: By name, roots that were seen.
_roots: dict[str, weakref.ref[torch.nn.Module]] = {}


def check() -> None:
    """Raise where calls of modules cannot be watched."""
    require(_CALLS, _can_follow)


def _can_follow() -> bool:
    _core.check_modules(torch.nn.Module._call_impl)
    return True


def begin(*, lines: bool) -> None:
    """Have each call recorded with its module, and its line where that is wanted."""
    tell_core()
    _core.follow_modules(torch.nn.Module._call_impl, True)
    _core.watch_calls(True)
    _core.begin_watch(lines)


@cache
def tell_core() -> None:
    """Whose code is passed over where the place of a call is looked for, and how modules are called."""
    code = torch.nn.Module._call_impl.__code__
    _core.set_watch(_passed_over(), _compilers(), code, module_name, _traced_place)


def stop() -> None:
    _core.stop_watch()
    _core.watch_calls(False)
    _core.follow_modules(torch.nn.Module._call_impl, False)


@cache
def _passed_over() -> tuple[str, ...]:
    """What the files begin with whose lines are nobody's: torch's, ours, and Python's own."""
    paths = sysconfig.get_paths()
    stdlib = [str(one) for one in Path(paths["stdlib"]).glob("*.py")]
    packages = [f"{paths['stdlib']}/{name}/" for name in ("asyncio", "concurrent", "multiprocessing", "unittest")]
    ours = Path(__file__).parent.parent
    generated = ("<frozen ", "<eval_with_key>")
    return (f"{Path(torch.__file__).parent}/", f"{ours}/", *generated, *packages, *stdlib)


def _compilers() -> tuple[str, ...]:
    folder = Path(torch.__file__).parent
    return tuple(f"{folder}/{name}/" for name in ("_dynamo", "_functorch", "_inductor", "_export"))


def module_name(module: Any, around: list[Any]) -> tuple[int, str, str]:
    """A module's place among those around it: how many of them to go outwards (-1: it is a root), its name there, and
    that of its class. The name is empty where the module counts as the one around it, or as none."""
    kind = type(module).__name__
    for steps, outer in enumerate(around):
        for name, inner in () if outer is None else outer.named_modules():
            if inner is module and name:
                return steps, ".".join(_without_wrappers(outer, name)), kind
    if around:
        return 0, f"<{kind}>", kind
    return -1, "" if _inside_of(module) else _root_name(module, kind), kind


def _inside_of(module: Any) -> str | None:
    """The name of what a module only stands around, where it does."""
    name = _WRAPPERS.get(type(module).__name__)
    return name if name is not None and isinstance(getattr(module, name, None), torch.nn.Module) else None


def _without_wrappers(outer: Any, name: str) -> Iterator[str]:
    for part in name.split("."):
        if _inside_of(outer) != part:
            yield part
        outer = getattr(outer, part)


def _root_name(module: Any, kind: str) -> str:
    if getattr(module, "_is_replica", False):  # nn.DataParallel makes new ones for each call
        return kind
    number, name = 1, kind
    while True:
        known = _roots.get(name)
        known_module = None if known is None else known()
        if known_module is None or known_module is module:
            _roots[name] = weakref.ref(module)
            return name
        number += 1
        name = f"{kind}#{number}"


def _traced_place() -> tuple[str | None, str, int, str | None] | None:
    """File, function, line and module of what Dynamo traces now; None for the file where all of it is torch's own."""
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
    """The path of the module whose forward is traced: Dynamo knows what `self` is in each function around."""
    translators: Any = importlib.import_module("torch._dynamo.symbolic_convert").InstructionTranslator
    modules: list[Any] = []
    try:
        translator = translators.current_tx().output.current_tx  # that of the innermost function
        while translator is not None:
            module = getattr(translator.symbolic_locals.get("self"), "value", None)
            if isinstance(module, torch.nn.Module) and module not in modules:
                modules.append(module)
            translator = translator.parent
    except AttributeError:  # no translator is at work: the graph is being made ready
        return None
    names: list[str] = []
    for place, module in enumerate(modules):
        steps, name, _ = module_name(module, modules[place + 1 :])
        names += [name] if steps <= 0 else []
    return ".".join(name for name in reversed(names) if name) or None
