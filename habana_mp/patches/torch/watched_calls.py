"""The parts of torch that the watch uses: calls of modules, code that it skips, and code that a compiler traces."""

from __future__ import annotations

import timeit
from functools import cache
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.places import folder_of_torch, is_passed_over, passed_over
from habana_mp.ops import observed
from habana_mp.patches.tools import tapped_calls
from habana_mp.patches.torch import begun_backwards, module_paths
from habana_mp.patches.torch.device_times import device_times
from habana_mp.patches.torch.module_paths import module_name
from habana_mp.patches.torch.traced_calls import translators

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
    """Returns the file, function, line and module that Dynamo traces now, or None. The file is None if all traced code
    belongs to files that are skipped. The module is made from the `self` of each function."""
    chain: list[Any] = translators[-1:]
    while chain and (around := getattr(chain[-1], "parent", None)) is not None:
        chain.append(around)
    modules: list[torch.nn.Module] = []
    names: list[str] = []
    for one in chain:
        module = getattr(one.symbolic_locals.get("self"), "value", None)
        if isinstance(module, torch.nn.Module) and not any(module is known for known in modules):
            modules.append(module)
    for place, module in enumerate(modules):
        steps, name, *_ = module_name(module, modules[place + 1 :])
        names += [name] if steps <= 0 else []
    path = ".".join(name for name in reversed(names) if name) or None
    code = next((one for one in chain if not is_passed_over(one.f_code.co_filename)), None)
    return (None, "", 0, path) if code is None else (code.f_code.co_filename, code.f_code.co_name, code.lineno, path)
