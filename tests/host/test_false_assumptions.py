"""Assumptions made false for real: something of torch is replaced before the package is imported.

The check fails, and what the ledger promises follows: a training is right, or convert refuses and torch is as it was.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from habana_mp import _core, cli, hmp
from habana_mp.common import ledger
from helpers.processes import run_script

assert cli.main
#: Those that `habana-mp run` alone makes, and asks for at once.
OF_RUN = {"cpython.run-module-as-main", "cpython.spawn-preparation", "cpython.after-fork"}
hmp.convert()  # the modules of all patches are imported
hmp.restore()

#: Those of the stand-in for Gaudi alone, where a test has imported it. They are not made false here yet.
OF_GAUDI = {
    *("lightning.trainer", "torch.autocast-class", "torch.device-modes", "torch.dispatch-modes", "torch.fork-rng"),
    *("torch.files-of-devices", "torch.lazy-names", "torch.script-builtins", "torch.tensor-device"),
    *("dynamo.backends", "dynamo.compiled-autograd", "lightning-habana.version"),
}

#: By name, statements that make an assumption false.
FALSE = {
    "torch.any-autocast": "torch._C._is_any_autocast_enabled = lambda: None",
    "torch.dynamo-guards-on-autocast": "torch._C._dynamo.guards.GlobalStateGuard = Guard",
    "torch.pytree": "torch.utils._pytree.tree_leaves = None",
    "torch.constructor-logs-itself": "log_otherwise(torch.nn.Module.__init__)",
    "torch.module-buffers": "del torch.nn.Module.__annotations__['_buffers']",
    "torch.swap-tensors": "del torch.utils.swap_tensors",
    "torch.functions-that-make-state": "del torch.nn.utils.fusion.fuse_linear_bn_weights",
    "torch.methods-that-hand-out-memory": "torch._C.StorageBase = object",
    "torch.linear-builtin": "wrap(torch.nn.functional, 'linear')",
    "torch.forward-ad-level": "del torch.autograd.forward_ad._current_level",
    "torch.dlpack-exchange": "torch.Tensor.__dlpack_c_exchange_api__ = None",
    "cpython.spawned-process": "multiprocessing.spawn._main = lambda *_: None",
    "torch.checkpoint": "torch.utils.checkpoint._checkpoint_impl = torch.utils.checkpoint.checkpoint = len",
    "torch.parallel-apply": "torch.nn.parallel.parallel_apply = len",
    "torch.methods-that-replace-buffers": "del torch.nn.Module.__setstate__",
    "torch.functions-that-set-memory": "del torch.nn.utils.parametrize._maybe_set",
    "torch.methods-that-copy-modules": "del torch.fx.GraphModule.__copy__",
    "torch.state-that-is-watched": "torch.nn.Module.__setattr__ = Bound(torch.nn.Module.__setattr__)",
    "torch.begun-backwards": "torch.autograd.backward = functools.partial(torch.autograd.backward)",
    # These refuse.
    "torch.module-calls": "torch.nn.Module._call_impl = len",
    "torch.module-calls-in-reports": "torch.nn.Module._call_impl = len",
    "torch.watched-builtins": "wrap(torch._C, '_log_api_usage_once')",
    "torch.data-workers": "del torch.utils.data._utils.worker._worker_info",
    "torch.module-constructor": "torch.nn.Module.__init__ = object.__init__",
}

#: The options of convert without which nothing relies on the assumption.
OPTIONS = {"torch.begun-backwards": {"report": "lines"}}

#: What convert is given, and says, where it refuses.
REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "torch.module-calls": ({"within": "modules"}, "_call_impl is not a Python function"),
    "torch.module-calls-in-reports": ({"report": "modules"}, "_call_impl is not a Python function"),
    "torch.watched-builtins": ({}, "torch.watched-builtins: .* is not a builtin function"),
    "torch.data-workers": ({}, "torch.data-workers"),
    "torch.module-constructor": ({}, "torch.module-constructor"),
}

_OF_A_LIBRARY = "tests/host/test_assumptions.py imports a library of this name that lacks the functions"
_OF_DYNAMO = "replacing it breaks torch.compile itself; tests/host/test_assumptions.py breaks the entry by name"
_BY_NAME = "it is a function of torch's libraries; without another library the entry is broken by name"
_IN_MEMORY = "it is where torch keeps something in memory; another torch would be needed"

#: Assumptions that no test makes false, each with its reason.
NOT_HERE = {
    "cpython.exchanged-code": "it is so in each CPython; another interpreter would be needed",
    "cpython.function-slot": "CPython 3.11 makes it false for the slot alone: tests/api/test_within.py calls directly",
    "cpython.slots": "tests/host/test_protected_memory.py makes it false",
    "cpython.definitions": "tests/host/test_protected_memory.py makes it false",
    "torch.dlpack-table-is-writable": "tests/host/test_protected_memory.py makes it false",
    "cpython.raise-instruction": "it is CPython's bytecode; another interpreter would be needed",
    "torch.device-types": "torch's own modules import it by name",
    "glibc.mallopt": "another C library would be needed",
    "openmp.threads": "another OpenMP runtime would be needed",
    "openmp.pause": "another OpenMP runtime would be needed",
    "system.free-memory": "the kernel tells it; another system would be needed",
    "system.mappings": "the kernel tells it; another system would be needed",
    "greenlet.switches": "it is greenlet's own function; another greenlet would be needed",
    "torch.custom-fwd": "it is code of a wrapper that torch makes anew for each function",
    "torch.function-twins": "static types of torch, from which nothing can be deleted",
    "torch.graph-nodes": "autograd names its nodes in its library",
    "torch.operator-builtins": "torch.ops makes the operator again",
    "torch.packing-operators": "torch.ops makes the operator again",
    "torch.files-of-operations": "it is where torch's files lie; another torch would be needed",
    "torch.functions-that-take-hooks": "torch itself calls these functions by name",
    "torch.functions-that-check-dtypes": "torch itself calls these functions by name",
    "torch.functions-in-float32": "torch itself calls these functions by name",
    "torch.inductor-kernels": _OF_DYNAMO,
    "torch.export-regions": _OF_DYNAMO,
    "torch.aot-cache": _OF_DYNAMO,
    "torch.aot-runtime": _OF_DYNAMO,
    **dict.fromkeys(("torch.dynamo-skipped-code", "torch.dynamo-marks", "torch.dynamo-lambda-guards"), _OF_DYNAMO),
    **dict.fromkeys(("torch.dynamo-tensor-methods", "torch.dynamo-allowed-functions"), _OF_DYNAMO),
    **dict.fromkeys(("torch.dynamo-places", "torch.dynamo-module-calls"), _OF_DYNAMO),
    **dict.fromkeys(("torch.dynamo-results", "torch.dynamo-resumed-code", "torch.dynamo-callback"), _OF_DYNAMO),
    "torch.exported-programs": "torch.export makes each program by that method",
    **dict.fromkeys((f"{one}.functions" for one in ("botorch", "gpytorch", "opacus", "peft")), _OF_A_LIBRARY),
    **dict.fromkeys((f"{one}.functions" for one in ("torchmetrics", "torchvision")), _OF_A_LIBRARY),
    **dict.fromkeys((f"{one}.functions" for one in ("transformers", "zuko")), _OF_A_LIBRARY),
    **dict.fromkeys(("torch.operators", "torch.autocast-functions", "torch.thread-functions"), _BY_NAME),
    **dict.fromkeys(("torch.flag-functions", "torch.aoti-functions", "torch.storage-aliases"), _BY_NAME),
    **dict.fromkeys(("torch.tensor-inside", "torch.tensor-layout", "torch.flags-in-place"), _IN_MEMORY),
    "torch.storage-deleter": _IN_MEMORY,
}

_PROGRAM = """
import functools, json, multiprocessing.spawn, os, sys
import torch
import torch.nn.utils.fusion, torch.utils.checkpoint, torch.utils.data._utils.worker

class Guard:
    def check(self):
        return True

class Bound:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return functools.partial(self.function, instance)

def wrap(owner, name):
    original = getattr(owner, name)
    @functools.wraps(original)
    def replaced(*args, **kwargs):
        return original(*args, **kwargs)
    setattr(owner, name, replaced)

def log_otherwise(function):
    consts = tuple("other" if one == "python.nn_module" else one for one in function.__code__.co_consts)
    function.__code__ = function.__code__.replace(co_consts=consts)

def state_of(name):
    from habana_mp import _core
    from habana_mp.common import ledger
    core = {row[0]: row[4] for row in _core.assumptions()}
    return core[name] if name in core else ledger.state_of(name)

def trained(name, statement, options):
    optimizer_of = torch.optim.SGD
    matrix = torch.ones(2, 2)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    exec(statement, globals())
    from habana_mp import _core, hmp
    outcome = {"error": ""}
    try:
        hmp.convert(**options)
    except RuntimeError as error:
        outcome = {"error": str(error), "dtype": str(torch.mm(matrix, matrix).dtype), "count": _core.installed_count()}
        outcome["state"] = state_of(name)
        return outcome
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=generator) / 8)
    optimizer = optimizer_of(model.parameters(), lr=0.1)
    x = torch.randn(16, 32, generator=generator)
    for _ in range(3):
        optimizer.zero_grad()
        result = model(x)
        result.float().pow(2).mean().backward()
        optimizer.step()
    outcome["values"] = torch.cat([one.detach().flatten() for one in model.parameters()]).view(torch.int32).tolist()
    outcome["dtype"], outcome["state"] = str(result.dtype), state_of(name) if name else ""
    hmp.restore()
    outcome["restored"], outcome["count"] = str(torch.mm(matrix, matrix).dtype), _core.installed_count()
    return outcome

name, statement, options = json.loads(sys.argv[1])
print(json.dumps(trained(name, statement, options)), flush=True)
os._exit(0)  # with these in place Python need not end well
"""


def results(names: list[str]) -> dict[str, Any]:
    """By name, what came of it; by "" what comes where all holds."""
    given = [(name, FALSE[name], OPTIONS.get(name) or REFUSED.get(name, ({}, ""))[0]) for name in names]
    found = {}
    for one in [("", "pass", {}), *given]:
        done = run_script(_PROGRAM, json.dumps(one))
        found[one[0]] = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    return found


def problems(found: dict[str, Any]) -> dict[str, str]:
    """By name, what is not as the ledger promises."""
    expected, wrong = found.pop(""), {}
    assert expected["dtype"] == "torch.bfloat16"
    for name, outcome in found.items():
        state = outcome.get("state", "").removeprefix("does not hold")
        if state == outcome.get("state", ""):
            wrong[name] = f"the check says {state!r}: {outcome['error']}"
        elif name in REFUSED:
            refused = re.search(REFUSED[name][1], outcome["error"]) is not None
            if not refused or (outcome["dtype"], outcome["count"]) != ("torch.float32", 0):
                wrong[name] = f"not refused: {outcome['error']}"
        elif outcome["error"] or any(outcome[one] != expected[one] for one in ("values", "dtype", "restored", "count")):
            wrong[name] = outcome["error"] or "other values"
    return wrong


def test_each_entry_of_both_ledgers_is_made_false_or_it_says_why_not() -> None:
    declared = {row[0] for row in ledger.rows()} | {row[0] for row in _core.assumptions()}
    assert declared - FALSE.keys() - NOT_HERE.keys() - OF_RUN - OF_GAUDI == set()
    assert (FALSE.keys() | NOT_HERE.keys()) - declared == set()
    assert not FALSE.keys() & NOT_HERE.keys()
    assert REFUSED.keys() <= FALSE.keys()


def test_what_the_ledger_promises_follows_where_an_assumption_is_false() -> None:
    names = ["torch.any-autocast", "torch.dlpack-exchange", "torch.module-calls", "torch.watched-builtins"]
    names += ["torch.methods-that-replace-buffers", "torch.state-that-is-watched", "torch.begun-backwards"]
    assert problems(results([*names, "torch.swap-tensors"])) == {}


@pytest.mark.trust
def test_what_the_ledger_promises_follows_where_each_assumption_is_false() -> None:
    assert problems(results(list(FALSE))) == {}


def test_torch_is_as_it_was_in_this_process() -> None:
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float32
