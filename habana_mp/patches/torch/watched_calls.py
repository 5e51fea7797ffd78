"""The parts of torch that the watch uses: calls of modules, code that it skips, and code that a compiler traces."""

from __future__ import annotations

import importlib
import timeit
from functools import cache
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.common.places import folder_of_torch, is_passed_over, passed_over
from habana_mp.ops import observed
from habana_mp.patches.tools import tapped_calls
from habana_mp.patches.torch import begun_backwards, module_paths
from habana_mp.patches.torch.device_times import device_times
from habana_mp.patches.torch.module_paths import module_name

_TRACED = Assumption(
    "torch.dynamo-places",
    assumed="`torch._guards.TracingContext` tells of which code Dynamo traces, and its translator of which module",
    check="both are there",
    otherwise="the report does not say which line or module a traced call belongs to",
)

#: So many values torch casts in one thread, which waits for no other one.
_MANY = 1 << 14


def begin(*, lines: bool) -> None:
    """Starts recording each call with its module, and with its line if ``lines`` is true."""
    configure_core()
    begun_backwards.listen(_core.notice_loss)
    tapped_calls.begin("report")
    _core.follow_modules(True)
    _core.watch_calls(True)
    of_one, of_many = _nanoseconds_of_cast(1), _nanoseconds_of_cast(_MANY)
    _core.begin_watch(lines, of_one, max(0.0, of_many - of_one) / (2 * _MANY))


@cache
def _nanoseconds_of_cast(count: int) -> float:
    """Returns the time that torch takes for a cast of so many values."""
    values, to = torch.ones(count), torch.bfloat16
    with torch.no_grad():
        return 1e9 * min(timeit.repeat(lambda: values.to(to), repeat=50, number=1))


@cache
def configure_core() -> None:
    """Passes the core the files that it skips when it looks for the line of a call, and the code of module calls."""
    code, times = tapped_calls.CODE_OF_CALLS, device_times
    _core.set_watch(passed_over(), code, module_name, _traced_place, times.mark, times.took)
    kinds = (observed.ANGLES, observed.COUNTS, observed.STATISTICS, observed.SUMS, observed.DECAYS)
    _core.set_sensitive({name: number for number, names in enumerate(kinds, 1) for name in names})


def stop() -> None:
    _core.stop_watch()
    begun_backwards.stop_listening(_core.notice_loss)
    _core.watch_calls(False)
    _core.follow_modules(False)
    tapped_calls.end("report")
    module_paths.forget()


@cache
def compiler_files() -> tuple[str, ...]:
    return tuple(f"{folder_of_torch()}/{name}/" for name in ("_dynamo", "_functorch", "_inductor", "_export"))


def _traced_place() -> tuple[str | None, str, int, str | None] | None:
    """Returns the file, function, line and module that Dynamo traces now, or None if Dynamo does not provide them. The
    file is None if all traced code belongs to files that are skipped."""
    if not holds(_TRACED, _tells_of_tracing):
        return None
    context: Any = torch._guards.TracingContext
    stack = [] if context.try_get() is None else context.extract_stack()
    frame = next((one for one in reversed(stack) if not is_passed_over(one.filename)), None)
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
        steps, name, *_ = module_name(module, modules[place + 1 :])
        names += [name] if steps <= 0 else []
    return ".".join(name for name in reversed(names) if name) or None
