"""Scripts that replace what Python and torch offer: convert, a training step, a region and restore work beside that.

Each replacement is made in a process of its own, before convert or after it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from helpers.processes import run_script

#: By name, statements that replace something. ``wrap(owner, name)`` puts a function of Python around what is there.
REPLACEMENTS = {
    "print": "wrap(builtins, 'print')",
    "print is None": "builtins.print = None",
    "print is missing": "del builtins.print",
    "open": "wrap(builtins, 'open')",
    "__import__": "wrap(builtins, '__import__')",
    "isinstance": "wrap(builtins, 'isinstance')",
    "getattr": "wrap(builtins, 'getattr')",
    "len": "wrap(builtins, 'len')",
    "compile and exec": "wrap(builtins, 'compile'); wrap(builtins, 'exec')",
    "Module.__call__": "wrap(torch.nn.Module, '__call__')",
    "Module.__init__": "wrap(torch.nn.Module, '__init__')",
    "Module._call_impl": "wrap(torch.nn.Module, '_call_impl')",
    "Module.__setattr__": "wrap(torch.nn.Module, '__setattr__')",
    "Module.__getattr__": "wrap(torch.nn.Module, '__getattr__')",
    "Tensor.__getitem__": "wrap(torch.Tensor, '__getitem__')",
    "Tensor.__setitem__": "wrap(torch.Tensor, '__setitem__')",
    "Tensor.__add__": "wrap(torch.Tensor, '__add__')",
    "Tensor.matmul": "wrap(torch.Tensor, 'matmul')",
    "Tensor.detach": "wrap(torch.Tensor, 'detach')",
    "Tensor.numpy": "wrap(torch.Tensor, 'numpy')",
    "Tensor.float": "wrap(torch.Tensor, 'float')",
    "Tensor.backward": "wrap(torch.Tensor, 'backward')",
    "F.linear": "wrap(torch.nn.functional, 'linear')",
    "F.cross_entropy": "wrap(torch.nn.functional, 'cross_entropy')",
    "F.layer_norm": "wrap(torch.nn.functional, 'layer_norm')",
    "torch.mm": "wrap(torch, 'mm')",
    "torch.empty_like": "wrap(torch, 'empty_like')",
    "torch.is_grad_enabled": "wrap(torch, 'is_grad_enabled')",
    "torch.set_autocast_enabled": "wrap(torch, 'set_autocast_enabled')",
    "torch.set_autocast_dtype": "wrap(torch, 'set_autocast_dtype')",
    "torch.is_autocast_enabled": "wrap(torch, 'is_autocast_enabled')",
    "torch.no_grad": "torch.no_grad = type('no_grad', (torch.no_grad,), {})",
    "SGD.step": "wrap(torch.optim.SGD, 'step')",
    "Linear.forward": "wrap(torch.nn.Linear, 'forward')",
    "a mock of linear": "mock.patch('torch.nn.functional.linear', wraps=torch.nn.functional.linear).start()",
    "a mock of matmul": "mock.patch.object(torch.Tensor, 'matmul', autospec=True).start()",
    "inspect.isfunction": "wrap(inspect, 'isfunction')",
    "a tracer": "sys.settrace(trace)",
    "a tracer of threads": "threading.settrace(trace)",
    "a profiler": "sys.setprofile(lambda *_: None)",
    "a debugger": "debugger = bdb.Bdb(); debugger.reset(); sys.settrace(debugger.trace_dispatch)",
    "warnings are errors": "warnings.simplefilter('error')",
    "warnings.warn": "wrap(warnings, 'warn')",
    "logging is off": "logging.disable(100)",
    "logging.getLogger": "wrap(logging, 'getLogger')",
    "no stdout": "sys.stdout = None",
    "no stderr": "sys.stderr = None",
    "streams without fileno": "sys.stdout = sys.stderr = Stream()",
    "os.environ": "os.environ = dict(os.environ)",
    "an empty os.environ": "os.environ = {}",
    "sys.modules": "sys.modules['torch.nn.functional'] = copy_of(torch.nn.functional)",
    "no numpy": "sys.modules['numpy'] = None",
    "a locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "a class with __subclasses__": "held.append(type('T', (torch.Tensor,), {'__subclasses__': None}))",
    "a metaclass": "held.append(Meta('T', (torch.Tensor,), {}))",
}

_PROGRAM = """
import bdb, builtins, functools, hashlib, inspect, json, locale, logging, os, sys, threading, types, warnings
from unittest import mock
import torch
import torch.nn.functional, torch.utils.checkpoint
held = []
placed = []

def wrap(owner, name):
    original = getattr(owner, name)
    @functools.wraps(original)
    def replaced(*args, **kwargs):
        return original(*args, **kwargs)
    setattr(owner, name, replaced)
    placed.append((owner, name, replaced))

def is_there(found, replaced):
    # torch wraps the step of an optimizer's class once more.
    return found is replaced or (hasattr(found, "__wrapped__") and is_there(found.__wrapped__, replaced))

def trace(*_):
    return trace

class Stream:
    def write(self, text):
        return len(text)
    def flush(self):
        pass

class Meta(type(torch.Tensor)):
    def __subclasses__(cls):
        raise RuntimeError("not to be called")

def copy_of(module):
    made = types.ModuleType(module.__name__)
    vars(made).update(vars(module))
    return made

def trained(replacement, when, options):
    from habana_mp import _core, hmp
    linear = torch.nn.functional.linear
    if when == "before":
        exec(replacement, globals())
    hmp.convert(**options)
    if when == "after":
        exec(replacement, globals())
    torch.random.default_generator.manual_seed(0)
    layers = torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 16), torch.arange(8) % 4
    for _ in range(2):
        optimizer.zero_grad()
        result = model(x)
        torch.nn.functional.cross_entropy(result, y).backward()
        optimizer.step()
    x[0] = torch.ones((), dtype=torch.bfloat16)
    values = [result.detach().float(), *(one.detach() for one in model.parameters())]
    outcome = {"values": [one.flatten().view(torch.int32).tolist() for one in values], "dtype": str(result.dtype)}
    with hmp.autocast("cpu"):
        outcome["region"] = str(torch.mm(x, x.t()).dtype)
    hmp.restore()
    dtypes = [str(one.dtype) for one in (torch.mm(x, x.t()), linear(x, x), x[0])]
    outcome["restored"] = [*dtypes, _core.installed_count()]
    outcome["replacements that restore removed"] = [
        name for owner, name, replaced in placed if not is_there(vars(owner).get(name), replaced)
    ]
    return outcome

exit_now, dump, write = os._exit, json.dumps, os.write
try:
    outcome = trained(*json.loads(sys.argv[1]))
except BaseException as error:
    outcome = {"error": f"{type(error).__name__}: {error}"}
sys.settrace(None)
write(1, dump(outcome).encode())
exit_now(0)
"""


def results(replacements: dict[str, str], options: dict[str, str]) -> dict[tuple[str, str], Any]:
    """By the replacement's name and when it was made, what came of it; by ("", "") what comes without any."""
    given = [
        ("", "", "pass"),
        *((name, when, one) for name, one in replacements.items() for when in ("before", "after")),
    ]
    found = {}
    for name, when, replacement in given:
        done = run_script(_PROGRAM, json.dumps([replacement, when or "before", options]))
        found[name, when] = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    return found


class _Owner:
    old = "torch's"


def test_an_attribute_that_somebody_else_replaces_meanwhile_keeps_their_value() -> None:
    attributes = ExchangedAttributes()
    for name in ("old", "new"):
        attributes.exchange(_Owner, name, "ours")
    _Owner.old = "theirs"
    attributes.put_back()
    assert {name: value for name, value in vars(_Owner).items() if not name.startswith("__")} == {"old": "theirs"}
    attributes.exchange(_Owner, "old", "ours")
    attributes.put_back()
    assert _Owner.old == "theirs"


#: What `make test` tries: the ones that broke something once, and some of each kind.
SHORT = (
    *("print", "isinstance", "Module._call_impl", "Tensor.__getitem__", "torch.set_autocast_enabled"),
    *("a tracer", "no stderr", "a class with __subclasses__"),
)


def differences(found: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    expected = found[("", "")]
    assert (expected["dtype"], expected["region"]) == ("torch.bfloat16", "torch.bfloat16")
    assert expected["restored"] == ["torch.float32"] * 3 + [0]
    return {key: outcome.get("error", "other values") for key, outcome in found.items() if outcome != expected}


def test_a_training_is_right_beside_replaced_functions() -> None:
    found = results({name: REPLACEMENTS[name] for name in SHORT}, {})
    assert len(found) == 1 + 2 * len(SHORT)
    assert differences(found) == {}


@pytest.mark.trust
@pytest.mark.parametrize("options", [{}, {"within": "modules"}, {"report": "lines"}], ids=["all", "within", "lines"])
def test_a_training_is_right_beside_each_replaced_function(options: dict[str, str]) -> None:
    found = results(REPLACEMENTS, options)
    assert len(found) == 1 + 2 * len(REPLACEMENTS)
    assert differences(found) == {}
