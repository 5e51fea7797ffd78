"""Scripts that replace what Python and torch offer: convert, a training step, a region and restore work beside that.

Each replacement is made in a process of its own, before convert or after it.
"""

from __future__ import annotations

import json
from typing import Any

from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
from helpers.processes import run_script

#: By name, statements that replace something. ``wrap(owner, name)`` puts a function of Python around what is there.
REPLACEMENTS = {
    "print": "wrap(builtins, 'print')",
    "print is None": "builtins.print = None",
    "isinstance": "wrap(builtins, 'isinstance')",
    "Module._call_impl": "wrap(torch.nn.Module, '_call_impl')",
    "Module.__setattr__": "wrap(torch.nn.Module, '__setattr__')",
    "Tensor.__getitem__": "wrap(torch.Tensor, '__getitem__')",
    "F.linear": "wrap(torch.nn.functional, 'linear')",
    "torch.mm": "wrap(torch, 'mm')",
    "torch.set_autocast_enabled": "wrap(torch, 'set_autocast_enabled')",
    "SGD.step": "wrap(torch.optim.SGD, 'step')",
    "a mock of linear": "mock.patch('torch.nn.functional.linear', wraps=torch.nn.functional.linear).start()",
    "a tracer": "sys.settrace(trace)",
    "a debugger": "debugger = bdb.Bdb(); debugger.reset(); sys.settrace(debugger.trace_dispatch)",
    "warnings are errors": "warnings.simplefilter('error')",
    "no stderr": "sys.stderr = None",
}

_PROGRAM = """
import bdb, builtins, functools, json, os, sys, warnings
from unittest import mock
import torch
import torch.nn.functional, torch.utils.checkpoint
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

def trained(replacement, when):
    from habana_mp import _core, hmp
    linear = torch.nn.functional.linear
    if when == "before":
        exec(replacement, globals())
    hmp.convert()
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


def results() -> dict[tuple[str, str], Any]:
    """By the replacement's name and when it was made, what came of it; by ("", "") what comes without any."""
    given = [
        ("", "", "pass"),
        *((name, when, one) for name, one in REPLACEMENTS.items() for when in ("before", "after")),
    ]
    found = {}
    for name, when, replacement in given:
        done = run_script(_PROGRAM, json.dumps([replacement, when or "before"]))
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


def differences(found: dict[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    expected = found[("", "")]
    assert (expected["dtype"], expected["region"]) == ("torch.bfloat16", "torch.bfloat16")
    assert expected["restored"] == ["torch.float32"] * 3 + [0]
    return {key: outcome.get("error", "other values") for key, outcome in found.items() if outcome != expected}


def test_a_training_is_right_beside_replaced_functions() -> None:
    found = results()
    assert len(found) == 1 + 2 * len(REPLACEMENTS)
    assert differences(found) == {}
