"""Kinds of tensors: whatever a tensor is, an operation gives what it gives for one that was cast by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.masked import MaskedTensor, masked_tensor
from torch.overrides import TorchFunctionMode

from habana_mp import hmp
from helpers.comparing import assert_same, seeded
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import M, N

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
LOWER_OR_FULL = (BF16, FP16, FP32)
FAKE = FakeTensorMode()

pytestmark = pytest.mark.usefixtures("alike")


def test_a_dispatch_mode_sees_the_casts(converted: Converter) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen: list[str] = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    converted(bf16=["mm"])
    with Watching():
        torch.mm(M, N)
    assert seen == ["aten._to_copy.default", "aten._to_copy.default", "aten.mm.default"]


class Plain(torch.Tensor):
    """A subclass that only has a name of its own."""


def inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


def read_only(x: torch.Tensor) -> torch.Tensor:
    array = x.numpy().copy()
    array.flags.writeable = False
    return torch.from_numpy(array)


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float32": lambda x: x,
    "bfloat16": lambda x: x.bfloat16(),
    "float16": lambda x: x.half(),
    "float64": lambda x: x.double(),
    "complex": lambda x: x.to(torch.complex64),
    "integer": lambda x: (x * 5).int(),
    "bool": lambda x: x > 0,
    "float8 e4m3": lambda x: x.to(torch.float8_e4m3fn),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "negated": lambda x: torch.complex(x, x).conj().imag,
    "subclass": lambda x: x.as_subclass(Plain),
    "parameter": nn.Parameter,
    "requires grad": lambda x: x.requires_grad_(),
    "of inference": inference,
    "fake": FAKE.from_tensor,
    "meta": lambda x: x.to("meta"),
    "nested jagged": lambda x: torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged),
    "nested strided": lambda x: torch.nested.nested_tensor([x, x[:2]]),
    "sparse COO": lambda x: x.relu().to_sparse(),
    "sparse CSR": lambda x: x.relu().to_sparse_csr(),
    "masked": lambda x: masked_tensor(x, x > 0),
    "of oneDNN": lambda x: x.to_mkldnn(),
    "zero tensor": lambda x: torch._efficientzerotensor((4, 4)),
    "no elements": lambda x: x[:0],
    "no dimensions": lambda x: x[1, 2].clone(),
    "transposed": lambda x: x.t(),
    "strided": lambda x: x.repeat(2, 2)[::2, ::2],
    "expanded": lambda x: x[:1].expand(4, 4),
    "channels last": lambda x: x.repeat(2, 3, 1, 1).to(memory_format=torch.channels_last),
    "of 64 dimensions": lambda x: x[0, 0].reshape([1] * 64),
    "shared": lambda x: x.share_memory_(),
    "of NumPy": lambda x: torch.from_numpy(x.numpy().copy()),
    "of NumPy, read-only": read_only,
    "of NumPy by DLPack": lambda x: torch.from_dlpack(x.numpy().copy()),
    "of a buffer": lambda x: torch.frombuffer(bytearray(x.numpy().tobytes()), dtype=FP32).view(4, 4),
}
LOWER, FULL = ["relu", "neg", "mul", "mm", "sum", "linear", "addmm"], ["exp", "softmax", "cumsum"]
# Each with the precision that the lists give it; None where they are silent or it works in place.
OPERATIONS: dict[str, tuple[Callable[[Any], Any], torch.dtype | None]] = {
    "relu": (torch.relu, BF16),
    "neg as a method": (lambda x: x.neg(), BF16),
    "*": (lambda x: x * x, BF16),
    "mm": (lambda x: torch.mm(x, x), BF16),
    "sum": (lambda x: x.sum(-1), BF16),
    "linear": (lambda x: F.linear(x, x), BF16),
    "addmm": (lambda x: torch.addmm(x, x, x), BF16),
    "exp": (torch.exp, FP32),
    "softmax": (lambda x: torch.softmax(x, -1), FP32),
    "cumsum": (lambda x: x.cumsum(0), FP32),
    "+": (lambda x: x + x, None),
    "cat": (lambda x: torch.cat([x, x]), None),
    "stack": (lambda x: torch.stack([x, x]), None),
    "clamp": (lambda x: x.clamp(-1, 1), None),
    "sigmoid": (torch.sigmoid, None),
}
IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "add_": lambda x: x.add_(x),
    "mul_ by another precision": lambda x: x.mul_(torch.full((1,), 2, dtype=BF16)),
    "relu_": torch.relu_,
    "setitem": lambda x: x.__setitem__(0, torch.ones((), dtype=BF16)),
}


def made(kind: str) -> torch.Tensor:
    return seeded(lambda: KINDS[kind](torch.randn(4, 4)))


def cast(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return x if dtype is None or x.dtype not in LOWER_OR_FULL else x.to(dtype)


def attempt(call: Callable[..., Any], *inputs: Any) -> Any:
    try:
        return call(*inputs)
    except Exception as error:  # whatever torch raises is to be raised
        return error


def described(value: Any) -> Any:
    """All that a tensor is but its values."""
    if not isinstance(value, torch.Tensor):
        return type(value)
    strided = value.layout is torch.strided and not value.is_nested
    return (
        type(value),
        value.dtype,
        value.layout,
        value.requires_grad,
        value.is_inference(),
        None if value.is_nested else tuple(value.shape),
        value.stride() if strided else None,
    )


def values(value: Any) -> list[torch.Tensor]:
    """The values, as float64 without strangeness."""
    if not isinstance(value, torch.Tensor) or value.is_meta or isinstance(value, FakeTensor):
        return []
    if isinstance(value, MaskedTensor):
        return [value.get_mask(), value.get_data().masked_fill(~value.get_mask(), 0)]
    if value.is_nested:
        return list(value.detach().unbind())
    if value.layout is not torch.strided:
        value = value.to_dense()
    if value.is_quantized:
        value = value.dequantize()
    return [value.detach().resolve_conj() if value.is_complex() else value.detach().double()]


def difference(result: Any, expected: Any) -> str:
    """What is not the same, or nothing."""
    if described(result) != described(expected):
        return f"{described(result)} {result!r:.80} for {described(expected)}"
    got, wanted = values(result), values(expected)
    same = len(got) == len(wanted) and all(map(torch.equal, got, wanted))
    return "" if same else "other values"


def by_hand(kind: str, call: Callable[[Any], Any], precision: torch.dtype | None) -> Any:
    """What the operation gives for a tensor that was cast; where it has no kernel for that, what plain torch gives."""
    result = attempt(lambda: call(cast(made(kind), precision)))
    return attempt(call, made(kind)) if isinstance(result, Exception) else result


@each("kind", KINDS)
def test_operations_on_a_kind_of_tensor_are_those_of_casting_by_hand(converted: Converter, kind: str) -> None:
    expected = {name: by_hand(kind, call, precision) for name, (call, precision) in OPERATIONS.items()}
    inputs = {name: made(kind) for name in (*OPERATIONS, *IN_PLACE)}
    for name, call in IN_PLACE.items():
        target = made(kind)
        with torch.no_grad(), torch.inference_mode(target.is_inference()):
            expected[name] = attempt(call, target)
            expected[f"the input of {name}"] = target
    assert "float8" in kind or any(isinstance(one, torch.Tensor) for one in expected.values())

    converted(bf16=LOWER, fp32=FULL)
    results = {name: attempt(call, inputs[name]) for name, (call, _) in OPERATIONS.items()}
    for name, call in IN_PLACE.items():
        with torch.no_grad(), torch.inference_mode(inputs[name].is_inference()):
            results[name] = attempt(call, inputs[name])
            results[f"the input of {name}"] = inputs[name]
    hmp.restore()

    results |= {f"the input of {name}": inputs[name] for name in OPERATIONS}
    expected |= {f"the input of {name}": made(kind) for name in OPERATIONS}
    differences = {name: difference(results[name], expected[name]) for name in expected}
    assert {name: what for name, what in differences.items() if what} == {}
    for name in IN_PLACE:
        assert results[name] is inputs[name] or not isinstance(results[name], torch.Tensor)


class Watching(torch.Tensor):
    """Notes what it is asked for."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    ("name", "function"),
    [("mm", torch.mm), ("softmax", torch.softmax), ("add_", torch.Tensor.add_)],
)
def test_a_subclass_sees_the_original_function_once(converted: Converter, name: str, function: Any) -> None:
    x = torch.ones(4, 4).as_subclass(Watching)
    other = -1 if name == "softmax" else torch.ones(4, 4, dtype=BF16)
    converted(bf16=["mm"], fp32=["softmax"])
    Watching.seen.clear()
    result = function(x, other)
    hmp.restore()
    assert [func for func in Watching.seen if func is function] == [function]
    assert type(result) is Watching
    assert result.dtype is (BF16 if name == "mm" else FP32)


class WatchingMode(TorchFunctionMode):
    """Notes what is called, and the dtypes of the tensors that it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, [one.dtype for one in args if isinstance(one, torch.Tensor)]))
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("function", [torch.Tensor.mm, torch.add], ids=lambda one: one.__name__)
def test_a_function_mode_sees_the_original_call_once_and_the_report_counts_one(
    converted: Converter, function: Any
) -> None:
    converted(bf16=["mm", "matmul", "add"])
    x = torch.ones(4, 4)
    with WatchingMode() as mode:
        assert function(x, x.bfloat16()).dtype is BF16
    assert [one for one in mode.seen if one[0] is function] == [(function, [FP32, BF16])]
    assert not any(one[0] is torch.Tensor.bfloat16 for one in mode.seen[1:])
    assert [(row.operation, row.calls, row.casts) for row in hmp.report(show=False)] == [(function.__name__, 1, 1)]


@pytest.mark.parametrize("grad", [True, False], ids=["recorded", "not recorded"])
def test_casts_keep_the_format_of_memory(converted: Converter, grad: bool) -> None:
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_(grad)
    conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last).requires_grad_(grad)
    half = copy.deepcopy(conv).bfloat16()
    expected = half(x.bfloat16()), F.max_pool2d(torch.relu(x.bfloat16()), 2), torch.exp(x.bfloat16().float())
    converted(bf16=["conv2d", "relu", "max_pool2d"], fp32=["exp"])
    results = conv(x), F.max_pool2d(torch.relu(x), 2), torch.exp(x.bfloat16())
    for one, other in zip(results, expected, strict=True):
        assert torch.equal(one, other)
        assert one.stride() == other.stride()


@each("kind", ["shared", "of NumPy", "of NumPy, read-only", "of NumPy by DLPack", "of a buffer"])
def test_memory_of_others_is_only_written_in_place(converted: Converter, kind: str) -> None:
    x = made(kind)
    before, added, address = x.clone(), x + 1, x.data_ptr()
    converted(bf16=["relu", "mul", "mm", "add"], fp32=["exp"])
    results = [torch.mm(x, x), x * x, torch.exp(x), x + x.bfloat16()]
    assert torch.equal(x, before)
    assert all(one.data_ptr() != address for one in results)
    if "read-only" not in kind:
        alias = x.numpy()
        x.add_(torch.ones(4, 4, dtype=BF16))
        assert x.data_ptr() == address
        assert (alias == added.numpy()).all()
        assert x.is_shared() == (kind == "shared")


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("dense", [FP32, BF16], ids=str)
def test_sparse_products_train(converted: Converter, layout: torch.layout, dense: torch.dtype) -> None:
    matrix = torch.eye(4).add(torch.ones(4, 4).tril()).to_sparse(layout=layout)
    values = torch.linspace(0.1, 0.9, 16).reshape(4, 4).to(dense)

    def run(dtype: torch.dtype | None) -> Any:
        other = values.clone().requires_grad_()
        left, right = (matrix, other) if dtype is None else (matrix.to(dtype), other.to(dtype))
        result = torch.mm(left, right), torch.sparse.mm(left, right), torch.addmm(right, left, right)
        torch.stack([one.float().sum() for one in result]).sum().backward()
        return [one.detach() for one in result], other.grad

    expected = run(FP32)  # CSR has no kernel for bfloat16 on a CPU, COO one that adds up in it
    converted(bf16=["mm", "_sparse_mm", "addmm"])
    assert_same(run(None), expected)


def test_a_product_of_what_was_lowered_before_it_was_made_sparse_runs_in_float32(converted: Converter) -> None:
    x = torch.randn(4, 4)
    kept = x.relu().bfloat16().float().to_sparse()
    expected = torch.mm(kept, kept)
    converted(bf16=["relu", "mm"])
    lowered = x.relu().to_sparse()
    assert lowered.dtype is BF16
    assert_same(torch.mm(lowered, lowered).to_dense(), expected.to_dense())


def _coo(values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 2]]), values, (4, 4))


def _csr(values: torch.Tensor) -> torch.Tensor:
    return torch.sparse_csr_tensor(torch.tensor([0, 1, 2, 2, 2]), torch.tensor([1, 2]), values, (4, 4))


#: Of the values of a sparse matrix and of a dense one, both with gradients. ``values * 2`` is lowered before.
WITH_SPARSE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "dense + sparse": lambda values, dense: dense.detach() + _coo(values * 2),
    "dense + CSR": lambda values, dense: dense + _csr(values * 2),
    "mv": lambda values, dense: torch.mv(_coo(values * 2), dense[0]),
    "sparse @ dense": lambda values, dense: _coo(values * 2) @ dense,
    "CSR @ dense": lambda values, dense: _csr(values * 2) @ dense,
    "linear": lambda values, dense: F.linear(dense * 2, _csr(values * 2)),
    "made sparse": lambda values, dense: (dense * 2).to_sparse() @ dense,
}


@each("options", [{}, {"reuse_memory": False}])
@each("name", WITH_SPARSE)
def test_gradients_beside_a_sparse_tensor_may_have_another_layout(name: str, options: dict[str, Any]) -> None:
    def gradients() -> list[torch.Tensor]:
        values = torch.tensor([1.5, 2.0], requires_grad=True)
        dense = torch.linspace(1, 2, 16).reshape(4, 4).requires_grad_()
        WITH_SPARSE[name](values, dense).float().sum().backward()
        return [one.grad.to_dense() for one in (values, dense) if one.grad is not None]

    expected = gradients()
    hmp.convert(**options)
    for got, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0)


def test_nested_tensors_go_through_a_model() -> None:
    parts = [torch.randn(3, 8), torch.randn(5, 8)]
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    hmp.convert()
    expected = [model(part) for part in parts]
    for layout in (torch.jagged, torch.strided):
        result = model(torch.nested.nested_tensor(parts, layout=layout))
        assert result.dtype is BF16
        for one, other in zip(result.unbind(), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.01)
        result.to_padded_tensor(0.0).float().sum().backward()
    assert model[0].weight.grad.dtype is FP32


ATTENTION: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@each("lowered", [False, True])
@each("name", ATTENTION)
def test_attention_takes_nested_tensors_by_its_fused_kernel(name: str, lowered: bool) -> None:
    module, before = ATTENTION[name]().eval(), nn.Linear(8, 8)
    parts = [torch.randn(3, 8), torch.randn(5, 8)]

    def run() -> torch.Tensor:
        given = torch.nested.nested_tensor(parts)
        if lowered:
            given = before(given)
        result = module(given, key=given, value=given, need_weights=False) if name == "attention" else module(given)
        return (result[0] if name == "attention" else result).to_padded_tensor(0.0)

    with torch.no_grad():
        expected = run()
        hmp.convert()
        result = run()
    if not lowered:
        assert torch.equal(result, expected)
    torch.testing.assert_close(result, expected, rtol=0.05, atol=0.02)
    module.train()
    with pytest.raises(AssertionError, match="training is enabled"):
        run()
