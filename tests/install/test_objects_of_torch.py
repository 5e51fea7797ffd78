"""What convert does to torch's objects: they stay what they are, obey wherever they are held, and are given back."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from habana_mp.ops import products
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N

SPACES: dict[str, Any] = {
    "torch": torch,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,  # an instance, whose methods are made anew each time
    "torch.nn.functional": F,
    "torch.Tensor": torch.Tensor,
    "torch._C.TensorBase": torch._C.TensorBase,
    "torch._C._nn": torch._C._nn,
    "torch._C._linalg": torch._C._linalg,  # type: ignore[attr-defined]  # torch does not type it
    "torch._C._fft": torch._C._fft,  # type: ignore[attr-defined]  # torch does not type it
    "torch._C._special": torch._C._special,  # type: ignore[attr-defined]  # torch does not type it
    "torch._VF": torch._VF,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch._C": torch._C,  # what is tapped there
    "torch._C._autograd": torch._C._autograd,
}
CALLABLES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.FunctionType)


def functions() -> Iterator[tuple[str, Any]]:
    for space, owner in SPACES.items():
        for name in dir(owner):
            value = inspect.getattr_static(owner, name, None)
            value = getattr(owner, name, None) if not isinstance(value, CALLABLES) else value
            if isinstance(value, CALLABLES) and not name.endswith("class__") and "hook__" not in name:
                yield f"{space}.{name}", value


def signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (ValueError, TypeError):
        return "none"


def pickled(function: Any) -> bytes:
    try:
        return pickle.dumps(function)
    except Exception as error:
        return type(error).__name__.encode()


def face(function: Any) -> tuple[Any, ...]:
    """All that a program can tell of a function without calling it."""
    return (
        id(function),
        hash(function),
        repr(function),
        type(function),
        getattr(function, "__name__", ""),
        getattr(function, "__qualname__", ""),
        getattr(function, "__module__", ""),
        getattr(function, "__doc__", ""),
        getattr(function, "__text_signature__", ""),
        getattr(function, "__defaults__", ()),
        getattr(function, "__kwdefaults__", ()),
        getattr(function, "__annotations__", ()),
        signature(function),
        pickled(function),
    )


# The head of PyCFunctionObject: refcount, type, m_ml, m_self, m_module, m_weakreflist, vectorcall; and of
# PyMethodDescrObject: refcount, type, d_type, d_name, d_qualname, d_method, vectorcall.
_WORD = ctypes.sizeof(ctypes.c_void_p)


def word(address: int, index: int) -> int:
    return ctypes.c_size_t.from_address(address + index * _WORD).value


def slots(function: Any) -> tuple[int, ...]:
    """The vectorcall slot, the address of the definition and its four words."""
    if isinstance(function, types.BuiltinFunctionType):
        definition, slot = word(id(function), 2), word(id(function), 6)
    elif isinstance(function, types.MethodDescriptorType):
        definition, slot = word(id(function), 5), word(id(function), 6)
    elif isinstance(function, types.WrapperDescriptorType):
        return (word(id(function), 5), word(id(function), 6))
    else:
        return (id(function.__code__),)
    return (slot, definition, *(word(definition, index) for index in range(4)))


ALL_PATHS = ["mm", "exp", "abs", "add", "matmul", "normalize", "softmin", "clamp", "iadd", "fft_fft", "__rtruediv__"]


@pytest.fixture(params=["O2", "many"])
def anyhow(request: pytest.FixtureRequest, converted: Converter) -> Callable[[], None]:
    """Several ways to convert."""
    ways: dict[str, Callable[[], None]] = {
        "O2": lambda: hmp.convert("O2"),
        "many": lambda: converted(bf16=ALL_PATHS),
    }
    return ways[request.param]


def test_functions_stay_the_same_objects_with_the_same_face(anyhow: Callable[[], None]) -> None:
    before = [(place, function, face(function)) for place, function in functions()]
    assert len(before) > 2500
    anyhow()
    after = dict(functions())
    changed = [place for place, function, shown in before if face(function) != shown or after[place] is not function]
    assert changed == []
    hmp.restore()
    assert [place for place, function, shown in before if face(function) != shown] == []


def test_slots_and_definitions_hold_what_they_held_after_restore(anyhow: Callable[[], None]) -> None:
    everything = list(functions()) + [
        (name, getattr(torch._C, name)) for name in dir(torch._C) if isinstance(getattr(torch._C, name), CALLABLES)
    ]
    everything.append(("_make_subclass", torch.Tensor._make_subclass))
    held = [function for _, function in everything]
    before = [slots(function) for function in held]
    anyhow()
    assert [slots(function) for function in held] != before
    anyhow()
    hmp.restore()
    changed = [place for (place, function), was in zip(everything, before, strict=True) if slots(function) != was]
    assert changed == []


def test_the_assignment_slot_is_given_back_on_every_class(converted: Converter) -> None:
    class Mine(torch.Tensor):
        pass

    def held() -> list[int]:
        kinds = [torch._C.TensorBase, torch.Tensor, torch.nn.Parameter, Mine]
        return [word(word(id(kind), 14), 2) for kind in kinds]  # tp_as_mapping->mp_ass_subscript

    before = held()
    converted(bf16=["mm"])
    changed = held()

    class Later(torch.Tensor):
        pass

    hmp.restore()
    assert changed[0] != before[0]
    assert held() == before
    x = M.clone().as_subclass(Later)
    x[0] = 1.0
    assert x[0].sum() == 4


# ---- aliases -------------------------------------------------------------------------------------------------------

from_torch = torch.mm
from_functional = F.normalize
method = torch.Tensor.exp
table = {"gelu": F.gelu, "softmin": F.softmin}
partial = functools.partial(F.softmax, dim=-1)
bound = M.matmul
bound_without_arguments = M.abs
bound_keyword = functools.partial(M.softmax, dim=0)
ALIASES: dict[str, Callable[[], torch.Tensor]] = {
    "a function": lambda: from_torch(M, N),
    "a Python function": lambda: from_functional(M),
    "a method": lambda: method(M),
    "a dict's value": lambda: table["gelu"](M),
    "a Python function in a dict": lambda: table["softmin"](M, -1),
    "a partial": lambda: partial(M),
    "a bound method": lambda: bound(N),
    "a bound method without arguments": bound_without_arguments,
    "a bound method in a partial": bound_keyword,
    "a map": lambda: next(map(torch.exp, [M])),
    "a call with a star": lambda: torch.mm(*(M, N)),
    "a call with two stars": lambda: torch.mm(**{"input": M, "mat2": N}),
    "getattr": lambda: getattr(torch, "mm")(M, N),  # noqa: B009
    "functools.reduce": lambda: functools.reduce(torch.mm, [M, N, M]),
    "the descriptor protocol": torch.Tensor.exp.__get__(M),
    "torch._C": lambda: torch._C._VariableFunctions.mm(M, N),
    "torch._VF": lambda: torch._VF.mm(M, N),
    "a subclass": lambda: M.as_subclass(torch.nn.Buffer).exp(),
}


def test_aliases_taken_before_obey_and_stop_obeying(converted: Converter) -> None:
    def lowered() -> list[str]:
        return [name for name, alias in ALIASES.items() if alias().dtype is not FP32]

    assert lowered() == []
    for _ in range(2):
        converted(bf16=["mm", "normalize", "exp", "gelu", "softmin", "softmax", "matmul", "abs"])
        assert lowered() == list(ALIASES)
        with hmp.disable_casts():
            assert lowered() == []
        hmp.restore()
        assert lowered() == []


def hot(count: int) -> set[torch.dtype]:
    seen = set()
    for _ in range(count):
        seen |= {torch.mm(M, N).dtype, M.exp().dtype, M.abs().dtype, (M @ N).dtype, (M * 2).dtype, F.relu(M).dtype}
    return seen


def test_loops_that_the_interpreter_specialised_obey_and_stop_obeying(converted: Converter) -> None:
    assert hot(200) == {FP32}
    for _ in range(3):
        converted(bf16=["mm", "exp", "abs", "matmul", "mul", "relu"])
        assert hot(200) == {BF16}
        hmp.restore()
        assert hot(200) == {FP32}


# ---- leaks ---------------------------------------------------------------------------------------------------------


def test_converting_and_restoring_for_ever_leaks_nothing(converted: Converter) -> None:
    def cycle() -> None:
        converted(bf16=["mm", "normalize", "exp"], fp32=["softmin", "layer_norm"])
        torch.mm(M, N)
        F.normalize(M)
        hmp.convert()
        hmp.restore()

    sample = [torch.mm, torch.Tensor.exp, F.linear, F.normalize, torch.Tensor.__setitem__, torch.set_autocast_enabled]
    sample += [products.in_rows, torch._C._distributed_c10d.ProcessGroup.allreduce.__call__.__self__]
    for _ in range(5):
        cycle()
    gc.collect()
    objects, counts = len(gc.get_objects()), [sys.getrefcount(one) for one in sample]
    for _ in range(40):
        cycle()
    gc.collect()
    assert [sys.getrefcount(one) for one in sample] == counts
    assert len(gc.get_objects()) - objects < 20


@pytest.mark.parametrize("name", ["matmul", "__matmul__", "mm", "bmm"])
def test_a_method_with_a_function_for_a_twin_is_still_that_method(converted: Converter, name: str) -> None:
    shape = (2, 3, 4) if name == "bmm" else (3, 4)
    x, y = torch.randn(shape), torch.randn(shape).transpose(-1, -2)
    method = getattr(torch.Tensor, name)
    plain = method(x.bfloat16(), y.bfloat16())
    with pytest.raises(RuntimeError) as without:
        method(x, x)
    converted(bf16=[name])
    assert torch.equal(method(x, y), plain)
    assert torch.equal(method(x.bfloat16(), y.bfloat16()), plain)
    with pytest.raises(RuntimeError) as error:
        method(x, x)
    assert str(error.value) == str(without.value)
    called = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(function)
            return function(*args, **(kwargs or {}))

    low, other = x.bfloat16(), y.bfloat16()
    with Watching():
        result = method(low, other)
    assert called == [torch.Tensor.matmul if name == "__matmul__" else method]  # as without us
    assert torch.equal(result, plain)
    if name == "__matmul__":
        assert method(x, 1) is NotImplemented
