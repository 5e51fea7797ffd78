"""Scripts that replace what Python and torch offer: convert, a training step, a region and restore work beside that.

Each replacement is made in a process of its own, before convert or after it.
"""

from __future__ import annotations

import json

from habana_mp.patches.tools.exchange import Exchanged
from helpers.processes import printed_by_each

#: Statements that replace something. ``wrap(owner, name)`` puts a function of Python around what is there.
REPLACEMENTS = [
    "builtins.print = None",
    "wrap(builtins, 'isinstance')",
    "wrap(torch.nn.Module, '_call_impl')",
    "wrap(torch.Tensor, '__getitem__')",
    "wrap(torch, 'mm')",
    "wrap(torch.optim.SGD, 'step')",
    "mock.patch('torch.nn.functional.linear', wraps=torch.nn.functional.linear).start()",
    "sys.settrace(trace)",
    "warnings.simplefilter('error')",
    "sys.stderr = None",
]

_PROGRAM = """
import builtins, functools, json, os, sys, warnings
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

dump, write = json.dumps, os.write
try:
    outcome = trained(*GIVEN)
except BaseException as error:
    outcome = {"error": f"{type(error).__name__}: {error}"}
sys.settrace(None)
write(1, dump(outcome).encode())
"""


class _Owner:
    old = "torch's"


def test_an_attribute_that_somebody_else_replaces_meanwhile_keeps_their_value() -> None:
    attributes = Exchanged()
    for name in ("old", "new"):
        attributes.exchange(_Owner, name, "ours")
    _Owner.old = "theirs"
    attributes.put_back()
    assert {name: value for name, value in vars(_Owner).items() if not name.startswith("__")} == {"old": "theirs"}
    attributes.exchange(_Owner, "old", "ours")
    attributes.put_back()
    assert _Owner.old == "theirs"


def test_a_training_is_right_beside_replaced_functions() -> None:
    given = [("pass", "before"), *((one, when) for one in REPLACEMENTS for when in ("before", "after"))]
    printed = printed_by_each([("", _PROGRAM.replace("GIVEN", repr(one))) for one in given])
    expected, *found = map(json.loads, printed)
    assert (expected["dtype"], expected["region"]) == ("torch.bfloat16", "torch.bfloat16")
    assert expected["restored"] == ["torch.float32"] * 3 + [0]
    wrong = {
        one: got.get("error", "other values") for one, got in zip(given[1:], found, strict=True) if got != expected
    }
    assert wrong == {}
