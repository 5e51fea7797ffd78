"""Modules that ``gc.freeze()`` has set aside are found, and stay set aside."""

from __future__ import annotations

import pytest

from helpers.processes import run_script

BEGIN = """
import gc
import weakref

import torch

from habana_mp import _core, hmp

class Average(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

def convert():
    hmp.convert(preset="hmp-default")
    assert (torch.ones(3) * 0.5).dtype is torch.bfloat16

class Cycle:
    def __init__(self):
        self.me = self
"""


@pytest.mark.parametrize(
    "code",
    [
        # An average that is held in float32 is computed in float32.
        """
module = Average()
gc.freeze()
convert()
assert (module.mean * 0.5).dtype is torch.float32
""",
        # Rules by module find the outermost module.
        """
outer = torch.nn.Sequential(Average(), torch.nn.Linear(3, 3))
gc.freeze()
hmp.convert(preset="hmp-default", rules={"linear @ 1": "fp32"})
assert outer[1](torch.ones(3)).dtype is torch.float32
""",
        # The same objects are set aside afterwards, and the others can be collected.
        """
old, new = Cycle(), None
gc.collect()
gc.freeze()
count = gc.get_freeze_count()
new = Cycle()
found = {id(one) for one in _core.objects_with_frozen()}
assert {id(old), id(new), id(Cycle), id(torch.nn.Module)} <= found
assert id(new) in map(id, gc.get_objects()) and id(old) not in map(id, gc.get_objects())
assert gc.isenabled() and abs(gc.get_freeze_count() - count) < 100
references = weakref.ref(old), weakref.ref(new)
del old, new
gc.collect()
assert references[0]() is not None and references[1]() is None
gc.unfreeze()
gc.collect()
assert references[0]() is None
""",
        # If other code has replaced one of the functions, none of them is called to look at frozen objects.
        """
module = Average()
gc.freeze()
original, called = gc.freeze, []
gc.freeze = lambda: called.append(original())
count = gc.get_freeze_count()
assert not any(one is module for one in _core.objects_with_frozen())
assert not called and abs(gc.get_freeze_count() - count) < 100
""",
    ],
    ids=["state", "rules", "the same objects", "replaced"],
)
def test_frozen_modules_are_found_and_stay_frozen(code: str) -> None:
    done = run_script(BEGIN + code)
    assert done.returncode == 0, done.stderr
