"""What convert does to torch's objects: they stay what they are, obey wherever they are held, and are given back."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import functools
import gc
import importlib
import inspect
import itertools
import pickle
import subprocess
import sys
import threading
import types
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter, assert_torch_is_restored, interrupted, run_script

from habana_mp import _compiled, _core, _install, hmp
from habana_mp._composites import Replacement

BF16, FP32 = torch.bfloat16, torch.float32
M = torch.linspace(0.1, 0.9, 16).reshape(4, 4)
N = M.t().contiguous()

SPACES: dict[str, Any] = {
    "torch": torch,
    "torch._C._VariableFunctions": torch._C._VariableFunctions,  # an instance, whose methods are made anew each time
    "torch.nn.functional": F,
    "torch.Tensor": torch.Tensor,
    "torch._C.TensorBase": torch._C.TensorBase,
    "torch._C._nn": torch._C._nn,
    "torch._C._linalg": torch._C._linalg,  # type: ignore[attr-defined]
    "torch._C._fft": torch._C._fft,  # type: ignore[attr-defined]
    "torch._C._special": torch._C._special,  # type: ignore[attr-defined]
    "torch._VF": torch._VF,
    "torch.special": torch.special,
    "torch.linalg": torch.linalg,
    "torch.fft": torch.fft,
    "torch._C": torch._C,  # what is watched there
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


@pytest.fixture(params=["default", "O2", "many"])
def anyhow(request: pytest.FixtureRequest, converted: Converter) -> Callable[[], None]:
    """Several ways to convert."""
    ways: dict[str, Callable[[], None]] = {
        "default": hmp.convert,
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


def test_what_is_pickled_while_converted_is_the_function_afterwards(anyhow: Callable[[], None]) -> None:
    anyhow()
    texts = [pickle.dumps(one) for one in (torch.mm, F.relu, F.normalize, F.softmin, torch.Tensor.exp, F.gelu)]
    hmp.restore()
    loaded = [pickle.loads(text) for text in texts]
    for one, other in zip(loaded, (torch.mm, F.relu, F.normalize, F.softmin, torch.Tensor.exp, F.gelu), strict=True):
        assert one is other
    assert copy.deepcopy(torch.mm) is torch.mm


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
    "a subclass": lambda: M.as_subclass(torch.nn.Buffer if hasattr(torch.nn, "Buffer") else torch.Tensor).exp(),
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_taken_before_obeys_and_stops_obeying(converted: Converter, name: str) -> None:
    names = ["mm", "normalize", "exp", "gelu", "softmin", "softmax", "matmul", "abs"]
    assert ALIASES[name]().dtype is FP32
    for _ in range(2):
        converted(bf16=names)
        assert ALIASES[name]().dtype is BF16
        with hmp.disable_casts():
            assert ALIASES[name]().dtype is FP32
        hmp.restore()
        assert ALIASES[name]().dtype is FP32


def test_a_bound_method_taken_while_converted_stops_obeying(converted: Converter) -> None:
    converted(bf16=["matmul", "abs"])
    taken, without = M.matmul, M.abs
    assert taken(N).dtype is BF16
    hmp.restore()
    assert taken(N).dtype is FP32
    assert without().dtype is FP32


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


def test_a_loop_that_is_running_obeys_at_once(converted: Converter) -> None:
    seen = []
    for step in range(300):
        if step == 100:
            converted(bf16=["exp"])
        if step == 200:
            hmp.restore()
        seen.append(M.exp().dtype)
    assert seen == [FP32] * 100 + [BF16] * 100 + [FP32] * 100


@pytest.mark.parametrize("name", ["normalize", "softmin", "gumbel_softmax", "tanhshrink", "softsign"])
def test_a_function_that_torch_writes_in_python_keeps_its_identity(converted: Converter, name: str) -> None:
    function = getattr(F, name)
    before, code = face(function), function.__code__
    expected = {"normalize": lambda: function(M), "softmin": lambda: function(M, -1)}.get(name, lambda: function(M))
    converted(bf16=[name])
    assert getattr(F, name) is function
    assert face(function) == before
    assert expected().dtype is BF16
    assert function(input=M).dtype is BF16 if name == "normalize" else True
    hmp.restore()
    assert function.__code__ is code
    assert expected().dtype is FP32


def test_inside_of_a_python_function_the_lists_are_silent(converted: Converter) -> None:
    expected = F.normalize(M.float())
    converted(fp32=["normalize"], bf16=["div", "norm", "expand", "clamp_min", "linalg_vector_norm"])
    assert torch.equal(F.normalize(M), expected)


# ---- leaks ---------------------------------------------------------------------------------------------------------


def test_converting_and_restoring_for_ever_leaks_nothing(converted: Converter) -> None:
    def cycle() -> None:
        converted(bf16=["mm", "normalize", "exp"], fp32=["softmin", "layer_norm"])
        torch.mm(M, N)
        F.normalize(M)
        hmp.convert()
        hmp.restore()

    sample = [torch.mm, torch.Tensor.exp, F.linear, F.normalize, torch.Tensor.__setitem__, torch.set_autocast_enabled]
    sample += [_compiled.in_rows, torch._C._distributed_c10d.ProcessGroup.allreduce.__call__.__self__]
    for _ in range(5):
        cycle()
    gc.collect()
    objects, counts = len(gc.get_objects()), [sys.getrefcount(one) for one in sample]
    for _ in range(200):
        cycle()
    gc.collect()
    assert [sys.getrefcount(one) for one in sample] == counts
    assert len(gc.get_objects()) - objects < 100


PATHS: dict[str, Callable[[Any, Any], Any]] = {
    "function": torch.mm,
    "method": lambda a, b: a.mm(b),
    "operator": lambda a, b: a @ b,
    "keywords": lambda a, b: torch.mm(input=a, mat2=b),
    "bound method": lambda a, b: getattr(a, "mm")(b),  # noqa: B009
    "no arguments": lambda a, _: a.abs(),
    "sequence": lambda a, b: torch.cat([a, b]),
    "tuple": lambda a, b: torch.cat((a, b), dim=0),
    "keyword sequence": lambda a, b: torch.cat(tensors=(a, b), dim=0),
    "nested sequence": lambda a, b: torch.cartesian_prod(a[0], b[0]),
    "no cast": lambda a, b: torch.mm(a.bfloat16(), b.bfloat16()),
    "widest": lambda a, b: torch.mul(a, b.bfloat16()),
    "in place": lambda a, b: a.clone().add_(b.bfloat16()),
    "assignment": lambda a, b: a.clone().__setitem__(torch.tensor([0]), b[:1].bfloat16()),
    "scalar": lambda a, b: a.bfloat16().masked_fill(a > 0, -3.4e38),
    "out": lambda a, b: torch.mm(a, b, out=torch.empty(4, 4)),
    "Python function": lambda a, b: F.normalize(a),
    "wrapped": lambda a, b: WRAPPED(a, y=b),
    "no kernel": lambda a, b: torch.fft.fft(a.bfloat16()),
    "disabled": hmp.disable_casts()(torch.mm),
    "error": lambda a, b: torch.mm(a, b[:2]),
    "type error": lambda a, b: torch.mm(a, "x"),  # type: ignore[arg-type]
    "method error": lambda a, b: a.mm(b[:2]),
    "sequence error": lambda a, b: torch.cat([a, "x"]),  # type: ignore[list-item]
    "gradient": lambda a, b: torch.mm(a.detach().requires_grad_(), b).float().sum().backward(),
}
WRAPPED = hmp.op_wrap(lambda x, y: x + y, to="bf16")


@pytest.mark.parametrize("name", PATHS)
def test_calls_keep_every_reference_count(converted: Converter, name: str) -> None:
    converted(bf16=["mm", "matmul", "abs", "cat", "normalize", "cartesian_prod"])
    a, b, two, zero = M.clone(), N.clone(), (M.clone(), N.clone()), "out"

    def call() -> None:
        try:
            PATHS[name](a, b)
        except (RuntimeError, TypeError):
            assert "error" in name

    for _ in range(20):
        call()
    gc.collect()
    counted = (a, b, two, zero, torch.mm, torch.Tensor.mm, torch.cat, None, BF16, FP32, "dtype", "mat2")
    before = [sys.getrefcount(one) for one in counted]
    objects = len(gc.get_objects())
    for _ in range(1000):
        call()
    gc.collect()
    after = [sys.getrefcount(one) for one in counted]
    assert all(abs(new - old) < 50 for new, old in zip(after, before, strict=True)), (before, after)
    assert len(gc.get_objects()) - objects < 50


def test_calls_release_the_memory_of_their_casts(converted: Converter) -> None:
    import resource

    converted(bf16=["mm", "relu"])
    big = torch.ones(512, 512)
    for _ in range(20):
        torch.relu(torch.mm(big, big))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(150):
        torch.relu(torch.mm(big, big))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000, "KiB"


# ---- disable_casts -------------------------------------------------------------------------------------------------


def is_cast() -> bool:
    return torch.mm(M, N).dtype is BF16


@pytest.fixture
def casting(converted: Converter) -> None:
    converted(bf16=["mm"])
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_disable_casts_nests_and_can_be_entered_again() -> None:
    one = hmp.disable_casts()
    with one:
        with one, hmp.disable_casts():
            assert not is_cast()
        assert not is_cast()
    assert is_cast()
    with one:
        assert not is_cast()
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_disable_casts_is_left_by_an_exception() -> None:
    with pytest.raises(KeyError), hmp.disable_casts(), hmp.disable_casts():
        raise KeyError
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_disable_casts_decorates_with_and_without_parentheses() -> None:
    @hmp.disable_casts
    def bare(x: int, *, y: int = 2) -> tuple[bool, int]:
        """Says so."""
        return is_cast(), x + y

    @hmp.disable_casts()
    def called() -> bool:
        return is_cast()

    class Holder:
        @hmp.disable_casts
        def method(self) -> bool:
            return is_cast()

        @staticmethod
        @hmp.disable_casts()
        def static() -> bool:
            return is_cast()

    assert bare(1, y=3) == (False, 4)
    assert bare.__name__ == "bare"
    assert bare.__doc__ == "Says so."
    assert not called()
    assert not Holder().method()
    assert not Holder.static()
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_function_may_call_itself() -> None:
    @hmp.disable_casts
    def deep(level: int) -> list[bool]:
        return [is_cast()] + (deep(level - 1) if level else [])

    assert not any(deep(30))
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_generator_leaves_its_consumer_alone() -> None:
    closed = []

    @hmp.disable_casts
    def numbers() -> Iterator[Any]:
        try:
            got = yield is_cast()
            try:
                yield got, is_cast()
            except KeyError:
                yield "thrown", is_cast()
            return "done"
        finally:
            closed.append(is_cast())

    running = numbers()
    assert next(running) is False
    assert is_cast()
    assert running.send(5) == (5, False)
    assert running.throw(KeyError()) == ("thrown", False)
    assert is_cast()
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert stop.value.value == "done"
    early = numbers()
    next(early)
    early.close()
    assert closed == [False, False]
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_coroutine_leaves_other_tasks_alone() -> None:
    @hmp.disable_casts()
    async def quiet() -> list[bool]:
        seen = []
        for _ in range(3):
            seen.append(is_cast())
            await asyncio.sleep(0)
        return seen

    async def loud() -> list[bool]:
        seen = []
        for _ in range(3):
            seen.append(is_cast())
            await asyncio.sleep(0)
        return seen

    async def main() -> list[list[bool]]:
        return list(await asyncio.gather(quiet(), loud(), quiet()))

    assert asyncio.run(main()) == [[False] * 3, [True] * 3, [False] * 3]
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_asynchronous_generator_casts_nothing() -> None:
    @hmp.disable_casts
    async def quiet() -> Any:
        for _ in range(2):
            yield is_cast()
            await asyncio.sleep(0)

    async def main() -> list[bool]:
        seen = []
        async for one in quiet():
            seen += [one, is_cast()]
        return seen

    assert asyncio.run(main()) == [False, True, False, True]


@pytest.mark.usefixtures("casting")
def test_a_decorated_asynchronous_generator_is_closed_within_its_block() -> None:
    seen = []

    @hmp.disable_casts
    async def quiet() -> Any:
        try:
            yield is_cast()
        finally:
            await asyncio.sleep(0)
            seen.append(is_cast())

    async def main() -> None:
        running = quiet()
        assert not await anext(running)
        await running.aclose()
        assert is_cast()

    asyncio.run(main())
    assert seen == [False]


@pytest.mark.usefixtures("casting")
def test_tasks_that_take_turns_within_a_block_are_each_in_theirs() -> None:
    async def task(turns: int) -> list[bool]:
        seen = []
        with hmp.disable_casts():
            for _ in range(turns):
                seen.append(is_cast())
                await asyncio.sleep(0)
        return seen

    async def main() -> list[list[bool]]:
        return list(await asyncio.gather(task(2), task(4), task(1)))

    assert not any(itertools.chain(*asyncio.run(main())))
    assert is_cast()
    first, second = hmp.disable_casts(), hmp.disable_casts()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert not is_cast()
    second.__exit__()
    assert is_cast()


@pytest.mark.parametrize("wrong", [3, "text", torch.ones(1)], ids=["number", "text", "tensor"])
def test_disable_casts_decorates_only_what_can_be_called(wrong: object) -> None:
    with pytest.raises(TypeError, match="disable_casts"):
        hmp.disable_casts(wrong)  # type: ignore[call-overload]


@pytest.mark.usefixtures("casting")
def test_threads_have_states_of_their_own() -> None:
    wrong: list[str] = []
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        barrier.wait()
        for step in range(150):
            if (step + index) % 2:
                with hmp.disable_casts():
                    if is_cast():
                        wrong.append(f"{index} cast while disabled")
            elif not is_cast():
                wrong.append(f"{index} did not cast")

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_calls_in_other_threads_survive_converting_and_restoring(converted: Converter) -> None:
    stop, wrong = threading.Event(), []

    def work() -> None:
        while not stop.is_set():
            for result in (torch.mm(M, N), M.exp(), F.normalize(M), torch.cat([M, N]), M.abs()):
                if result.dtype not in (FP32, BF16):
                    wrong.append(result.dtype)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(40):
            converted(bf16=["mm", "exp", "normalize", "cat", "abs"])
            hmp.convert("O2")
            hmp.restore()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


RESTORING_IN_A_WARNING = """
import warnings, torch, habana_mp as hmp
hmp.convert()
warnings.showwarning = lambda *_, **__: hmp.restore()
with torch.no_grad():
    lowered = torch.ones(4, 4) @ torch.ones(4, 4)
{what}
print(hmp.is_converted(), torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype)
"""


@pytest.mark.parametrize(
    "what",
    ["with torch.autocast('cpu'): torch.relu(lowered)", "torch.ones(4, 4).data = lowered"],
    ids=["region", "data"],
)
def test_restoring_in_the_handler_of_a_warning_of_ours(what: str) -> None:
    done = run_script(RESTORING_IN_A_WARNING.format(what=what))
    assert done.stdout.split() == ["False", "torch.float32"], done.stderr


def test_restore_succeeds_where_somebody_has_emptied_the_hooks_of_steps(converted: Converter) -> None:
    converted()
    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
    before = dict(hooks)
    hooks.clear()
    hmp.restore()
    assert not hmp.is_converted()
    assert _core.installed_count() == 0
    hooks.update({key: hook for key, hook in before.items() if not hook.__module__.startswith("habana_mp")})


def test_a_list_that_holds_itself_is_an_error_of_torchs(converted: Converter) -> None:
    converted()
    sgd: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "lr": 0.1, "dampening": 0.0}
    sgd |= {"nesterov": False, "maximize": False, "is_first_step": True}
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="expected Tensor"):
        torch._fused_sgd_(endless, endless, [], **sgd)


def test_an_init_that_wraps_itself_can_be_called(converted: Converter) -> None:
    class Endless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()

    Endless.__init__.__wrapped__ = Endless.__init__  # type: ignore[attr-defined]  # a mistake that torch does not mind
    converted()
    Endless()


DEBUGGED = """
import torch, habana_mp as hmp
hmp.convert()
class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        scale = 1.0
        breakpoint()
        self.scale = scale
print("scale", Module().scale)
"""


def test_what_a_debugger_changes_in_a_constructor_stays_changed(tmp_path: Path) -> None:
    script = tmp_path / "debugged.py"
    script.write_text(DEBUGGED)
    commands = "scale = 2.0\np torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype\nc\n"
    done = subprocess.run(
        [sys.executable, script], input=commands, capture_output=True, text=True, timeout=120, check=False
    )
    assert "torch.float32" in done.stdout, done.stderr  # a module is being constructed
    assert "scale 2.0" in done.stdout


@pytest.mark.usefixtures("casting")
def test_the_backward_pass_of_a_disabled_block_may_run_outside_of_it() -> None:
    from torch.utils.checkpoint import checkpoint

    module = torch.nn.Linear(4, 4)
    hmp.convert()
    with hmp.disable_casts():
        out = checkpoint(module, M.clone().requires_grad_(), use_reentrant=False)
    out.sum().backward()
    assert module.weight.grad is not None


# ---- importing and reading -----------------------------------------------------------------------------------------


def test_importing_and_converting_brings_in_no_heavy_part_of_torch() -> None:
    done = run_script(
        "import torch, torch.utils.data, torch.utils.checkpoint, sys\n"  # the last is heavy itself in older releases
        "before = set(sys.modules)\n"
        "import habana_mp\n"
        "imported = set(sys.modules) - before\n"
        "habana_mp.convert(); torch.mm(torch.eye(2), torch.eye(2)); habana_mp.restore()\n"
        "converted = set(sys.modules) - before\n"
        "heavy = ('torch._dynamo', 'torch._inductor', 'torch.distributed', 'torch.fx', 'torch.onnx', 'torch._export',\n"
        "         'torch.testing', 'sympy', 'pandas', 'scipy', 'matplotlib')\n"
        "print(sorted(name for name in imported | converted if name.startswith(heavy)))\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_changes_nothing_in_torch() -> None:
    done = run_script(
        "import torch\n"
        "before = {name: id(getattr(torch, name)) for name in dir(torch)}\n"
        "import habana_mp\n"
        "print({name for name, was in before.items() if id(getattr(torch, name)) != was}, habana_mp.is_converted())\n"
    )
    assert done.stdout.strip() == "set() False", done.stderr


BATTERY = """
import pathlib, tempfile, torch, torch.nn.functional as F
from habana_mp import hmp, _core
class Mine(torch.Tensor): pass
m, n = torch.linspace(0.1, 0.9, 16).reshape(4, 4), torch.linspace(0.9, 0.1, 16).reshape(4, 4)
module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
for p in module.parameters(): torch.nn.init.constant_(p, 0.125)
hmp.convert(weight_cache=False)  # which one of the readers alone allows
results = [torch.mm(m, n), m @ n, m * n.bfloat16(), torch.cat([m, n.bfloat16()]), m.double() * m, torch.t(m), m.t(),
           F.softmax(m.bfloat16(), -1), torch.fft.fft(m.bfloat16()), module(m), m.as_subclass(Mine) @ n,
           m.to_sparse() @ n,
           m.bfloat16().masked_fill(m > 0.5, -3.4e38), m.clone().add_(n.bfloat16()), torch.arange(3) * 2,
           torch.func.vmap(lambda row: torch.mm(row[None], n))(m), torch.mm(m[:, :2], n[:2]), torch.mm(m.t(), n.t()),
           torch.mm(m[:0], n), m.to("meta") @ n.to("meta"), torch.nested.nested_tensor([m, n]).to_padded_tensor(0.0)]
with torch.no_grad(): results.append(module(m))
module(m).sum().backward()
results.append(module[0].weight.grad)
for one in results:
    number = one.device.type != "meta" and not one.is_complex()
    print(type(one).__name__, one.dtype, one.float().sum().item() if number else "")
print([(row.operation, row.precision, row.calls, row.casts, row.bytes) for row in hmp.report(show=False)])
print(_core.reader(), _core.reads_flags_in_place())
"""


#: torch before 2.10 has no DLPack exchange API of its own; tvm_ffi, where a test has imported it, gives it one.
READERS = ["layout", *(["dlpack"] if torch.__version__ >= "2.10" else []), "attribute"]


def test_all_readers_give_the_same_results() -> None:
    found = {}
    for reader in READERS:
        done = run_script(BATTERY, HABANA_MP_READER=reader)
        assert done.returncode == 0, done.stderr
        found[reader], _, way = done.stdout.strip().rpartition("\n")
        assert way == f"{reader} {reader == 'layout'}"
    assert all(one == found["layout"] for one in found.values())
    assert "bfloat16" in found["layout"]


def test_the_default_device_when_torch_is_bound_does_not_matter() -> None:
    done = run_script(
        "import torch\n"
        "import torch.nn.functional as F\n"
        "from habana_mp import hmp\n"
        "torch.set_default_device('meta')\n"
        "hmp.convert()\n"
        "torch.set_default_device('cpu')\n"
        "for device in ('meta', 'cpu'):\n"
        "    x = torch.ones(4, 4, device=device)\n"
        "    weight = torch.nn.Parameter(torch.ones(4, 4, device=device))\n"
        "    result = F.linear(x, weight)\n"
        "    print((x @ x).dtype, torch.mm(x, x).dtype, F.linear(x, x).dtype, result.dtype)\n"
        "    result.sum().backward()\n"
        "    print(weight.grad.dtype)\n"
    )
    assert done.stdout.split() == [*["torch.bfloat16"] * 4, "torch.float32"] * 2, done.stderr


def test_an_unknown_reader_is_an_error_that_names_the_choices() -> None:
    done = run_script(
        "import torch\n"
        "from habana_mp import hmp, _core\n"
        "try: hmp.convert()\n"
        "except Exception as error: print(error)\n"
        "print(hmp.is_converted(), _core.installed_count(), torch.mm(torch.eye(2), torch.eye(2)).dtype)\n",
        HABANA_MP_READER="magic",
    )
    for word_ in ("HABANA_MP_READER", "magic", "layout", "dlpack", "attribute"):
        assert word_ in done.stdout
    assert done.stdout.splitlines()[-1] == "False 0 torch.float32"


def test_nothing_of_the_core_is_installed_without_convert() -> None:
    assert _core.installed_count() == 0
    assert Path(_core.__file__ or "").suffix in (".so", ".pyd")


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


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_interrupt_between_two_exchanged_functions_leaves_none_exchanged(nth: int) -> None:
    functions = (F.normalize, F.softmin, torch.Tensor.__rdiv__)
    codes = [function.__code__ for function in functions]

    def is_place(frame: types.FrameType, event: str) -> bool:
        return event == "call" and frame.f_code is Replacement.install.__code__

    with interrupted(is_place, nth), pytest.raises(KeyboardInterrupt):
        hmp.convert(preset="torch-cuda")
    assert_torch_is_restored()
    assert [function.__code__ for function in functions] == codes


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize(
    "enter", [hmp.convert, lambda: hmp.autocast("cpu", bf16_file_path=None)], ids=["convert", "region"]
)
def test_an_interrupt_while_torch_is_changed_leaves_it_as_it_was(
    enter: Callable[[], Any], error: type[BaseException]
) -> None:
    """Wherever a handler of a signal may raise in between: where a function of C has returned, and where one of Python
    begins."""
    importlib.import_module("torch._dynamo.variables.tensor")  # which brings all that compiled code needs
    compiled_code = importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")
    changed = (torch.Tensor.register_hook, compiled_code.call_func_at_runtime_with_args)
    codes = [function.__code__ for function in changed]
    config = torch._functorch.config
    caches = getattr(config, "enable_autograd_cache", None)

    ours = str(Path(_install.__file__).parent)

    def is_place(frame: types.FrameType, event: str) -> bool:
        return event in ("c_return", "call") and frame.f_code.co_filename.startswith(ours)

    def interrupted_after(count: int) -> bool:
        try:
            with interrupted(is_place, count, error):
                enter()
        except error:
            return True
        return False

    enter()
    hmp.restore()
    count = 1
    while interrupted_after(count):
        hmp.restore()
        assert torch.mm(M, M).dtype is FP32
        assert [function.__code__ for function in changed] == codes
        assert getattr(config, "enable_autograd_cache", None) is caches
        with hmp.autocast("cpu"):
            assert torch.mm(M, M).dtype is BF16
        hmp.convert()
        assert torch.mm(M, M).dtype is BF16
        hmp.restore()
        # thousands of points: nearly all of them lie in loops
        count += 1 + count // 50


# ---- garbage that is collected in the middle of it -------------------------------------------------------------------

_COLLECTING = """
import gc, torch
from habana_mp import hmp
hmp.convert()
x = torch.ones(8, 8)
class Last:
    def __del__(self):
        {finally_done}
def deep(frames):
    return deep(frames - 1) if frames else {done}
gc.disable()
for _ in range(100):
    torch.nn.Linear(2, 2)  # what it leaves behind is looked at again
    last = Last()
    last.me = last
    del last
    gc.set_threshold(30, 1000, 1000)
    gc.enable()
    result = deep(200)
    gc.disable()
print(result)
"""


@pytest.mark.parametrize("finally_done", ["torch.mm(x, x)", "torch.nn.Linear(2, 2)"])
@pytest.mark.parametrize("done", ["torch.mm(x, x).dtype", "torch.nn.Identity()"])
def test_a_finalizer_may_compute_and_construct_while_frames_are_looked_at(done: str, finally_done: str) -> None:
    result = run_script(_COLLECTING.format(done=done, finally_done=finally_done))
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ("torch.bfloat16" if "mm" in done else "Identity()")


# ---- a convert that fails -------------------------------------------------------------------------------------------


def test_a_warning_that_is_an_error_leaves_what_was_in_force(converted: Converter) -> None:
    converted(bf16=["mm"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast("cpu"):
            warnings.simplefilter("error")
            with pytest.raises(hmp.HmpWarning, match=r"torch\.autocast is enabled"):
                hmp.convert("O2")
    assert hmp.is_converted()
    assert torch.mm(M, N).dtype is BF16
    assert torch.exp(M).dtype is FP32


def test_a_convert_that_fails_leaves_the_log_of_the_one_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("not this time")

    hmp.convert(log=tmp_path / "before.log")
    torch.mm(M, N)
    with monkeypatch.context() as patch:
        patch.setattr(_core, "install", fail)
        with pytest.raises(RuntimeError, match="not this time"):
            hmp.convert("O2", log=tmp_path / "after.log")
    torch.mm(M, N)
    hmp.restore()
    with monkeypatch.context() as patch:
        patch.setattr(_core, "install", fail)
        with pytest.raises(RuntimeError, match="not this time"):
            hmp.convert(log=tmp_path / "after.log")
    assert _core.log_destination() is None
    assert (tmp_path / "before.log").read_text().count("mm") == 2
    assert (tmp_path / "after.log").read_text() == ""


# ---- modules from an archive ----------------------------------------------------------------------------------------


def test_a_module_from_an_archive_is_watched_as_one_from_a_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "library.zip", "w") as archive:
        archive.writestr("transformers/__init__.py", "")
        archive.writestr("transformers/utils/__init__.py", "")
        archive.writestr("transformers/utils/generic.py", "def maybe_autocast(device_type, dtype=None): pass")
        archive.writestr(
            "transformers/modeling_utils.py",
            "import torch, transformers.utils.generic\n"
            "class PreTrainedModel:\n"
            "    def init_weights(self):\n"
            "        return torch.mm(torch.ones(8, 8), torch.ones(8, 8)).dtype\n",
        )
    result = run_script(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from habana_mp import hmp; hmp.convert()\n"
        "import transformers.modeling_utils as module\n"
        "print(module.PreTrainedModel().init_weights(), 'exec_module' in vars(module.__spec__.loader))\n",
        str(tmp_path / "library.zip"),
    )
    assert result.stdout.strip() == "torch.float32 False", result.stderr
