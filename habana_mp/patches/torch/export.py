"""torch.export: regions without casts in a strict export, and programs that were exported under rules by module."""

from __future__ import annotations

import types
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.region_dtypes import REGION_DEVICE
from habana_mp.patches.tools.when_imported import WhenImported

_MODE = Assumption(
    "torch.export-regions",
    assumed="a strict export traces by `PreDispatchTorchFunctionMode`, which notes `_enter_autocast`, `_exit_autocast`",
    check="the class has `__torch_function__`, inherits `__exit__`, and torch.amp.autocast_mode has both functions",
    otherwise="in a strict export, regions of `disable_casts` and `autocast` that the model has inside are not seen",
)


class RegionsInExport(WhenImported):
    """Enters regions without casts in a strict export.

    A strict export traces Dynamo's graph again. torch then records where a region of torch.autocast begins and ends,
    but does not enter it, although the casts are decided at that time. In an export that is not strict torch enters the
    region itself, before it records this.
    """

    name = "torch.fx.experimental.proxy_tensor"

    def do(self, module: Any) -> None:
        if not holds(_MODE, lambda: _notes_regions(module)):
            return
        mode: Any = module.PreDispatchTorchFunctionMode
        original, leave_mode = mode.__torch_function__, mode.__exit__
        enter, leave = torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast

        def entering_regions(tracing: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = original(tracing, function, types, args, kwargs)
            if function is enter:
                vars(tracing).setdefault("_habana_mp_regions", []).append(_enter_noted_region(*args))
            elif function is leave and vars(tracing).get("_habana_mp_regions"):
                _leave_noted_region(tracing._habana_mp_regions.pop())
            return result

        def leaving_all(tracing: Any, *error: Any) -> Any:
            # An exception skips the ends of the regions that it leaves.
            for state in reversed(vars(tracing).pop("_habana_mp_regions", [])):
                _leave_noted_region(state)
            return leave_mode(tracing, *error)

        self.exchanged.exchange(mode, "__torch_function__", entering_regions)
        self.exchanged.exchange(mode, "__exit__", leaving_all)


_PROGRAMS = Assumption(
    "torch.exported-programs",
    assumed="`torch.export.ExportedProgram.__init__` makes every exported program, whose nodes keep their `meta`",
    check="the class has a method `__init__` written in Python",
    otherwise="in a program that was exported under rules by module, the plain lists decide once more",
)

#: The note at inputs and outputs of a graph that was exported under rules by module.
_EXPORTED_WITH_RULES = "habana_mp_rules"


class ExportedPrograms(WhenImported):
    """Notes in exported programs that rules by module were in force.

    A program has no modules. So the lists alone would decide in it, and lower what a rule had kept in float32. All of
    its casts were made when it was exported; in its module the lists decide nothing.
    """

    name = "torch.export.exported_program"

    def do(self, module: Any) -> None:
        made = module.ExportedProgram.__init__
        if not holds(_PROGRAMS, lambda: isinstance(made, types.FunctionType)):
            return

        def note(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            original(*arguments, **keywords)
            for node in arguments[0].graph.nodes:
                if node.op in ("placeholder", "output"):
                    node.meta[_EXPORTED_WITH_RULES] = True

        self.exchanged.replace(made, note)


exported_programs = ExportedPrograms()


def is_exported_with_rules(module: Any) -> bool:
    """True for the module of a program that was exported under rules by module."""
    if not isinstance(module, torch.fx.GraphModule):
        return False
    return any(node.meta.get(_EXPORTED_WITH_RULES, False) for node in module.graph.nodes)


def _notes_regions(module: Any) -> bool:
    mode, autocast = module.PreDispatchTorchFunctionMode, torch.amp.autocast_mode
    functions = (mode.__torch_function__, mode.__exit__, autocast._enter_autocast, autocast._exit_autocast)
    return all(map(callable, functions)) and "__exit__" not in vars(mode)


def _enter_noted_region(device: str, dtype: torch.dtype, enabled: bool, *_: Any) -> int | None:
    """Sets the state that a region of torch.autocast sets on entry. Returns the former state, or None if the state is
    as it was: torch has entered the region before, or the region is not one that casts nothing."""
    state = _core.current_state()
    if device == REGION_DEVICE:
        torch.set_autocast_dtype(device, dtype)
        wanted = _core.current_state() & ~_core.state_without_casts
    elif enabled == (device == _core.disabled_flag):  # `disable_casts` enters torch.autocast(disabled_flag)
        wanted = state | _core.state_without_casts
    else:
        return None
    _core.exchange_state(wanted)
    return None if wanted == state else state


def _leave_noted_region(state: int | None) -> None:
    if state is not None:
        _core.exchange_state(state)
