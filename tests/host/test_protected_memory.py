"""Memory that may not be written to: what is stored into is looked at before the first store.

Each script puts a copy that may only be read in the place of one of torch's tables, and asks what convert does.
"""

from __future__ import annotations

import re

import pytest

from helpers.processes import run_script

_SETUP = """
import ctypes, mmap
import torch

PROT_READ = 1
libc = ctypes.CDLL(None, use_errno=True)
held = []

def protected_copy(address, size):
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[:size] = ctypes.string_at(address, size)
    copy = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    held.append(memory)
    assert libc.mprotect(ctypes.c_void_p(copy), mmap.PAGESIZE, PROT_READ) == 0
    return copy

def protect(pointer, size):
    # The pointer at this address leads to a copy from now on.
    place = ctypes.c_void_p.from_address(pointer)
    before, place.value = place.value, protected_copy(place.value, size)
    return lambda: setattr(place, "value", before)

def mapping_of(kind):
    return id(kind) + 112  # PyTypeObject.tp_as_mapping: three functions

def definition_of(descriptor):
    return id(descriptor) + 40  # PyMethodDescrObject.d_method, PyGetSetDescrObject.d_getset: five words at most

def table_of(tensor):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"dlpack_exchange_api"
    table = protected_copy(get(tensor.__dlpack_c_exchange_api__, name), 256)
    tensor.__dlpack_c_exchange_api__ = new(table, name, None)

class OfATensor(torch.Tensor):
    pass

class Own(torch.Tensor):
    __subclasses__ = None  # not a method

x = torch.ones(4, 4)
"""

_REFUSED = """
from habana_mp import _core, hmp
put_back = {protect}
try:
    hmp.convert({options})
except RuntimeError as error:
    print(error)
else:
    print("converted")
print(hmp.is_converted(), _core.installed_count(), (x @ x).dtype, x[0].dtype)
put_back()
hmp.convert({options})
print(hmp.is_converted(), torch.mm(x, x).dtype)
hmp.restore()
print(torch.mm(x, x).dtype)
"""


@pytest.mark.parametrize(
    ("protect", "options", "named", "broken"),
    [
        ("protect(mapping_of(torch._C.TensorBase), 24)", "", "TensorBase.*its slots may not be written to", ""),
        ("protect(mapping_of(OfATensor), 24)", "", "OfATensor.*its slots may not be written to", "system.mappings"),
        ("protect(definition_of(torch._C.TensorBase.matmul), 32)", "", "matmul.*its definition may not be written", ""),
        ("protect(definition_of(torch._C.TensorBase.numel), 32)", "'O0'", "converted", "system.mappings"),
        ("protect(definition_of(torch._C.TensorBase.data_ptr), 32)", "", "cannot watch .*data_ptr", "system.mappings"),
    ],
    ids=["slots of Tensor", "slots of a subclass", "a method", "a method that nothing covers", "a watched method"],
)
def test_convert_refuses_where_it_could_not_store_and_nothing_has_changed(
    protect: str, options: str, named: str, broken: str
) -> None:
    done = run_script(_SETUP + _REFUSED.format(protect=protect, options=options), HABANA_MP_BREAK=broken)
    assert done.returncode == 0, done.stderr
    error, *states = done.stdout.splitlines()
    expected = ["False 0 torch.float32 torch.float32", "True torch.bfloat16", "torch.float32"]
    if named == "converted":
        assert error == named
    else:
        assert re.search(named, error)
        assert states == expected


def test_tensor_data_that_may_not_be_written_to_is_refused() -> None:
    code = """
protect(definition_of(torch._C.TensorBase.data), 40)
from habana_mp import _core, hmp
try:
    hmp.convert()
except RuntimeError as error:
    print(error)
print(_core.installed_count(), torch.mm(x, x).dtype)
"""
    done = run_script(_SETUP + code)
    assert done.stdout.splitlines() == [
        "habana_mp cannot watch Tensor.data: its definition may not be written to",
        "0 torch.float32",
    ], done.stderr


def test_a_class_may_have_an_attribute_named_as_the_list_of_its_subclasses() -> None:
    code = """
class Below(Own):
    pass

from habana_mp import hmp
y = x.as_subclass(Below)
hmp.convert(preset=None)
y[0] = torch.ones(4, dtype=torch.bfloat16)
hmp.restore()
import ctypes
slots = [ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(mapping_of(kind)).value + 8).value
         for kind in (torch._C.TensorBase, torch.Tensor, Own, Below)]
print(len(set(slots)), y.as_subclass(torch.Tensor)[0].tolist())
"""
    done = run_script(_SETUP + code)
    assert done.stdout.split("\n")[0] == "1 [1.0, 1.0, 1.0, 1.0]", done.stderr


@pytest.mark.parametrize(
    ("protect", "kept"), [("", 1), ("table_of(torch.Tensor)", 0)], ids=["as it is", "may not be written to"]
)
def test_no_cast_of_a_weight_is_kept_where_the_table_of_dlpack_may_not_be_written_to(protect: str, kept: int) -> None:
    code = f"""
if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    {protect or "pass"}
from habana_mp import hmp
hmp.convert()
weight, x = torch.nn.Parameter(torch.randn(256, 256)), torch.randn(8, 256)
with torch.no_grad():
    for _ in range(4):
        torch.nn.functional.linear(x, weight)
print(hmp.report(show=False).weights.weights)
hmp.restore()
"""
    done = run_script(_SETUP + code)
    assert done.stdout.split() == [str(kept)], done.stderr


def test_a_builtin_whose_slot_is_in_use_is_refused_and_nothing_has_changed() -> None:
    """CPython leaves the slot of such a builtin empty, so what is there belongs to another package."""
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
