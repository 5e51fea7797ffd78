"""What the core takes for granted: each is broken on purpose, in a process that begins so."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from habana_mp import _core
from habana_mp.common import ledger
from helpers.processes import printed_by_each, run_script

#: Those of the core, and what else goes where they are broken, since it stands on them.
CORE: dict[str, set[str]] = {
    "cpython.definitions": set(),
    "cpython.slots": set(),
    "openmp.pause": set(),
    "openmp.threads,system.free-memory,system.mappings,torch.thread-functions": set(),
    "torch.aoti-functions": set(),
    "torch.autocast-functions": set(),
    "torch.dlpack-exchange": set(),
    "torch.flags-in-place": {"torch.autocast-functions"},
    "torch.forward-ad-level,torch.operators": set(),
    "torch.tensor-inside": {"torch.autocast-functions"},
    "torch.tensor-layout": {
        *("torch.tensor-inside", "torch.autocast-functions", "torch.flags-in-place", "torch.operators"),
    },
}
#: Cached casts of a few kilobytes need no look at the free memory, and only weights in mapped files need one at the
#: mappings.
NOT_ASKED = {"system.free-memory", "system.mappings"}
REFUSED = {"cpython.definitions": "cannot tap", "cpython.slots": "its slot does not hold CPython's own"}

PROGRAM = """
import json
import torch

def tell():
    from habana_mp import _core, hmp
    told = {"error": "", "within": ""}
    try:
        hmp.convert("O1", weight_cache=True)
    except RuntimeError as error:
        told["error"] = str(error)
    torch.manual_seed(0)
    # Of a weight of this size the cast becomes a part of the graph; torch casts smaller ones itself.
    model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 256)
    for _ in range(3):
        loss = model(x).float().pow(2).mean()
        loss.backward()
        with hmp.disable_casts():
            optimizer.step()
            optimizer.zero_grad()
    told["weights"] = torch.cat([one.detach().flatten() for one in model.parameters()]).tolist()
    with torch.no_grad():
        for _ in range(8):
            result = model(x)
        # Forward-mode AD sees each cast.
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            tangent = torch.autograd.forward_ad.unpack_dual(model(dual)).tangent
    told["result"], told["dtype"] = result.float().tolist(), str(result.dtype)
    told["tangent"] = tangent.float().tolist()
    told["cached"] = hmp.report(show=False).weights.weights
    hmp.restore()
    told["restored"] = str(torch.mm(torch.eye(2), torch.eye(2)).dtype)
    told["installed"] = _core.installed_count()
    try:
        hmp.convert("O1", within="modules")
    except RuntimeError as error:
        told["within"] = str(error)
    hmp.restore()
    told["failed"] = [row[0] for row in _core.assumptions() if row[4] == "does not hold"]
    return told

print(json.dumps(tell()))
"""


@pytest.fixture(scope="module")
def told() -> dict[str, dict[str, Any]]:
    """By what was broken, what came of it; by "nothing" where nothing was."""
    names = ("nothing", *CORE, "torch.dlpack-exchange,torch.aoti-functions")
    printed = printed_by_each([(name, PROGRAM) for name in names])
    return {name: json.loads(one.splitlines()[-1]) for name, one in zip(names, printed, strict=True)}


def test_every_entry_of_the_core_is_broken_here() -> None:
    names = set(",".join(CORE).split(","))
    assert {row[0] for row in _core.assumptions()} == names
    assert not names & {row[0] for row in ledger.rows()}


def is_alike(one: list[Any], other: list[Any]) -> bool:
    """True for the same bits, or for near values where the package's kernels sum in their own order, unless broken."""
    is_near = not _core.kernels_multiplies_bfloat16() and np.allclose(one, other, 0.01, 0.01)
    return is_near or str(one) == str(other)


def test_a_training_is_right_without(told: dict[str, dict[str, Any]]) -> None:
    expected = told["nothing"]
    for name in CORE.keys() - REFUSED.keys():
        found = told[name]
        assert found["error"] == "", name
        for what in ("weights", "result", "tangent"):
            assert is_alike(found[what], expected[what]), (name, what)
        assert found["dtype"] == expected["dtype"], name
        assert (found["restored"], found["installed"]) == ("torch.float32", 0), name
        not_asked = {name} if hasattr(torch._C, "_dlpack_exchange_api") and "aoti" in name else NOT_ASKED
        assert set(found["failed"]) == CORE[name] | (set(name.split(",")) - not_asked), name


def test_without_any_way_to_look_at_tensors_casts_are_torchs(told: dict[str, dict[str, Any]]) -> None:
    found, expected = told["torch.dlpack-exchange,torch.aoti-functions"], told["nothing"]
    assert all(is_alike(found[what], expected[what]) for what in ("weights", "result"))
    assert (found["cached"], expected["cached"]) == (0, 4)
    assert "torch.tensor-inside" in found["failed"]


def test_convert_refuses_and_changes_nothing_without(told: dict[str, dict[str, Any]]) -> None:
    for name, error in REFUSED.items():
        found = told[name]
        assert error in found["error"]
        assert (found["dtype"], found["restored"], found["installed"]) == ("torch.float32", "torch.float32", 0)


def test_a_builtin_whose_slot_another_package_uses_is_refused_and_nothing_has_changed() -> None:
    done = run_script("""
import ctypes
import torch
from habana_mp import _core, hmp

slot = ctypes.c_uint64.from_address(id(torch.mm) + 48)
assert slot.value == 0
slot.value = ctypes.c_uint64.from_address(id(len) + 48).value
try:
    hmp.convert()
except RuntimeError as error:
    print(error)
slot.value = 0
assert _core.installed_count() == 0
assert torch.mm(torch.eye(2), torch.eye(2)).dtype is torch.float32
hmp.convert()
assert torch.mm(torch.eye(2), torch.eye(2)).dtype is torch.bfloat16
""")
    assert done.returncode == 0, done.stderr
    assert "its slot is already in use" in done.stdout


def test_no_cast_of_a_weight_is_cached_where_nothing_tells_of_its_changes(told: dict[str, dict[str, Any]]) -> None:
    assert (told["nothing"]["cached"], told["nothing"]["within"]) == (4, "")
    assert told["torch.tensor-inside"]["cached"] == told["torch.tensor-layout"]["cached"] == 0


BEGINS = """
import torch
from habana_mp import _core, hmp

{first}
with {mode}:
    hmp.convert()
print([row[0] for row in _core.assumptions() if row[4] == "does not hold"])
"""


@pytest.mark.parametrize(
    ("first", "mode"),
    [
        ("", "torch.no_grad()"),
        ("", "torch.inference_mode()"),
        ("", "torch.device('meta')"),
        ("torch.set_default_dtype(torch.float64)", "torch.enable_grad()"),
    ],
)
def test_everything_is_found_in_every_mode(first: str, mode: str) -> None:
    done = run_script(BEGINS.format(first=first, mode=mode))
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
