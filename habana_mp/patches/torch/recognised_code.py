"""The builtins that the core taps, and the code and files of torch that it looks for in frames (rules 10 and 11)."""

from __future__ import annotations

import inspect
import multiprocessing
import types
from collections.abc import Iterator
from multiprocessing import spawn
from operator import attrgetter
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.ledger import Assumption, UnmetError, holds, require
from habana_mp.patches.tools import torch_files
from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.tools.patch import Patch, Settings
from habana_mp.patches.tools.when_imported import CalledWhenImported
from habana_mp.patches.torch import autocast_regions
from habana_mp.patches.torch.optimizer_steps import code_around_steps, in_step
from habana_mp.patches.torch.stored_values import look_at_value
from habana_mp.patches.torch.uncounted_writers import operator_found, uncounted_writers

_BUILTINS = Assumption(
    "torch.tapped-builtins",
    assumed="torch enters autocast, constructs modules and Parameters, and hands out memory by builtins that we know",
    check="each is there, and a builtin function",
    otherwise="convert refuses",
)

_CONSTRUCTOR = Assumption(
    "torch.constructor-logs-itself",
    assumed="`torch.nn.Module.__init__` calls `torch._C._log_api_usage_once('python.nn_module')`",
    check="its code names both",
    otherwise="its code is exchanged for one that tells the core",
)

_WORKER = Assumption(
    "torch.data-workers",
    assumed="`torch.utils.data._utils.worker` has `_worker_info`, which is None but in a worker of a DataLoader",
    check="it is there, and what torch.utils.data.get_worker_info gives",
    otherwise="convert refuses",
)

_SPAWNED = Assumption(
    "cpython.spawned-process",
    assumed="a process that multiprocessing spawns has `_inheriting` while it runs the main script again",
    check="the code of `multiprocessing.spawn` that does so names that",
    otherwise="each cast asks whether it is made in a worker of a DataLoader, which takes a little longer",
)


def _tapped_builtins() -> tuple[Any, ...]:
    # `torch._C` is the source of torch's functions: a script may replace those in torch's other modules.
    return tuple(_found(path, may_be_missing) for path, may_be_missing in _core.paths_of_builtins)


def _found(path: str, may_be_missing: bool) -> Any:
    try:
        return attrgetter(path)(torch._C)
    except AttributeError:
        if may_be_missing:
            return None
        raise


def _are_builtins() -> bool:
    for one in _tapped_builtins():
        if one is not None and not isinstance(one, types.BuiltinFunctionType):
            raise UnmetError(f"{one!r} is not a builtin function")
    return True


def _constructor_logs_itself() -> bool:
    code = inspect.unwrap(torch.nn.Module.__init__).__code__
    return "_log_api_usage_once" in code.co_names and "python.nn_module" in code.co_consts


def _begin_construction(original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    _core.construction_begins(arguments[0])
    return original(*arguments, **keywords)


def _worker_namespace() -> dict[str, Any]:
    from torch.utils.data._utils import worker

    return vars(worker)


#: The parts of torch.distributed that handle parameters and gradients in Python (rule 11).
DISTRIBUTED = ("torch.distributed.fsdp", "torch.distributed.algorithms.ddp_comm_hooks")


def distributed_code() -> Iterator[Patch]:
    """Yields a patch for each of these parts. The caller of a cast is checked only once one of them is imported."""
    set_imported = _core.set_distributed_is_imported
    for name in DISTRIBUTED:
        yield CalledWhenImported(name, lambda _: set_imported(True), lambda _: set_imported(False))


class RecognisedCode(Patch):
    """Passes the builtins, code and files to the core."""

    def __init__(self) -> None:
        self._is_installed = False
        self._exchanged = Exchanged()

    def check(self, settings: Settings) -> None:
        require(_BUILTINS, _are_builtins)
        require(_WORKER, lambda: _worker_namespace()["_worker_info"] is torch.utils.data.get_worker_info())

    def install(self, settings: Settings) -> None:
        if self._is_installed:
            return
        if not holds(_CONSTRUCTOR, _constructor_logs_itself):
            self._exchanged.replace(torch.nn.Module.__init__, _begin_construction)
        regions = autocast_regions.disabled_regions()  # before the builtins are tapped, because it calls one of them
        forward, backward = autocast_regions.codes_of_wrappers()
        _core.tap_builtins(_tapped_builtins(), tuple(uncounted_writers()))
        _core.set_recognised(
            (code_around_steps(), in_step.__code__),
            _worker_namespace(),
            look_at_value,
            autocast_regions.autocast_is_entered,
            (backward,),
            forward,
            autocast_regions.custom_fwd_asks,
            autocast_regions.custom_bwd_state,
            torch_files.inside_of_operations(),
            torch_files.between_operations(),
            torch_files.through_to_callers(),
            operator_found,
        )
        _core.install_in_disabled_regions(regions)
        if _may_be_child_process():
            _core.set_in_child_process()
        self._is_installed = True

    def uninstall(self) -> None:
        self._is_installed = False
        self._exchanged.put_back()  # the core itself removes what it has installed


def _may_be_child_process() -> bool:
    """True if multiprocessing spawned this process, or may have done so. The core detects forks itself."""
    process: Any = multiprocessing.current_process()
    # A spawned process runs the main script again before its parent process is set.
    is_child = multiprocessing.parent_process() is not None or getattr(process, "_inheriting", False)
    return is_child or not holds(_SPAWNED, lambda: "_inheriting" in spawn._main.__code__.co_names)
