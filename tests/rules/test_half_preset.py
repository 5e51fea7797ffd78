"""``preset="half"``: products of lower operands are rounded once, and no result has another dtype than torch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from habana_mp import hmp, ops
from habana_mp.policy.presets import presets
from helpers.each import each
from helpers.operation_database import calls_of, entries, name_of, operation_of, supports
from helpers.ranks import on_two_ranks

pytestmark = pytest.mark.usefixtures("counted", "with_and_without_instructions")
KINDS = [torch.bfloat16, torch.float16]


class Model(nn.Module):
    """Layers of several kinds, of 128 values at 8 places."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 128)
        self.conv = nn.Conv1d(128, 128, 3, padding=1)
        self.attention = nn.MultiheadAttention(128, 4, batch_first=True)
        self.norm = nn.LayerNorm(128)
        self.lstm = nn.LSTM(128, 128, batch_first=True)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 16))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embedding(words).mT).mT
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return F.softmax(self.head(self.lstm(x)[0]), -1)


WORDS = torch.arange(32).remainder(16).reshape(4, 8)
#: Calls of what is no product, with what each is given.
OTHERS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: F.softmax(x, -1), ((4, 8),)),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), ((4, 8),)),
    "exp": (torch.exp, ((4, 8),)),
    "a sum": (lambda x: x.sum(), ((4, 8),)),
    "mul of another precision": (lambda x, y: x * y.float(), ((4, 8), (4, 8))),
    "cat of another precision": (lambda x, y: torch.cat([x, y.float()]), ((4, 8), (4, 8))),
    "mse_loss": (F.mse_loss, ((4, 8), (4, 8))),
    "cumsum": (lambda x: x.cumsum(0), ((4, 8),)),
    "a number out of range": (lambda x: x.masked_fill(x > 0, float("-inf")), ((4, 8),)),
    "index_add": (lambda x: x.index_add(0, torch.tensor([0, 0, 1, 1]), x), ((4, 8),)),
}


@each("dtype", KINDS)
@each("name", OTHERS)
def test_what_is_no_product_is_torchs_own(name: str, dtype: torch.dtype) -> None:
    call, sizes = OTHERS[name]
    values = [torch.randn(one).to(dtype).requires_grad_() for one in sizes]
    expected = call(*values)
    gradients = torch.autograd.grad(expected.sum(), values)
    hmp.convert(preset="half")
    made = call(*values)
    assert made.dtype is expected.dtype
    assert torch.equal(made, expected)
    assert all(map(torch.equal, torch.autograd.grad(made.sum(), values), gradients))
    assert hmp.report(show=False).rows == ()


#: Calls of what torch is slow with, with what each is given.
SLOW: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "argmax": (lambda x: x.argmax(0), ((8, 16),)),
    "argmin": (lambda x: torch.argmin(x), ((8, 16),)),
    "grid_sampler": (partial(F.grid_sample, align_corners=False), ((2, 4, 8, 8), (2, 5, 5, 2))),
}
SLOW_IN_FP16: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "pow": (lambda x: x**2, ((8, 16),)),
    "square": (torch.square, ((8, 16),)),
    "norm": (lambda x: x.norm(1), ((8, 16),)),
    "linalg_vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), ((8, 16),)),
    "cosine_similarity": (F.cosine_similarity, ((8, 16), (8, 16))),
    "pairwise_distance": (F.pairwise_distance, ((8, 16), (8, 16))),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), ((2, 4, 8), (4,))),
    "col2im": (lambda x: F.fold(x, (8, 8), 3, padding=1), ((2, 36, 64),)),
}


def test_the_table_of_slow_operations_is_tested() -> None:
    assert presets()["half"].operands == dict.fromkeys(SLOW, "bf16 fp16") | dict.fromkeys(SLOW_IN_FP16, "fp16")


@each("dtype", KINDS)
@each("name", [*SLOW, *SLOW_IN_FP16])
def test_what_torch_is_slow_with_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    call, sizes = (SLOW | SLOW_IN_FP16)[name]
    values = [torch.randn(one).to(dtype).requires_grad_() for one in sizes]
    is_slow = name in SLOW or dtype is torch.float16
    given = [one.detach().float().requires_grad_() for one in values] if is_slow else values
    expected = call(*given)
    wanted = torch.autograd.grad(expected, given, torch.ones_like(expected)) if expected.requires_grad else ()
    hmp.convert(preset="half")
    made = call(*values)
    assert made.dtype is (dtype if made.is_floating_point() else torch.int64)
    assert torch.equal(made, expected.to(made.dtype))
    got = torch.autograd.grad(made, values, torch.ones_like(made)) if made.requires_grad else ()
    assert [one.dtype for one in got] == [dtype] * len(got)
    assert all(map(torch.equal, got, [one.to(dtype) for one in wanted]))
    assert ("slow" in {row.reason for row in hmp.report(show=False).rows}) == is_slow


def test_powers_of_two_precisions_are_torchs_own() -> None:
    x, y = torch.rand(4, 16).half(), torch.rand(16)
    expected = x**y, y**x, x ** y[0], 2**x
    hmp.convert(preset="half")
    made = x**y, y**x, x ** y[0], 2**x
    assert [one.dtype for one in made] == [torch.float32, torch.float32, torch.float16, torch.float16]
    assert all(map(torch.equal, made, expected))


def _are_torchs_bits(op: Any) -> bool:
    """True if no product and nothing that is slow has run since the report was reset."""
    row = ops.rows().get(operation_of(op) or "")
    is_product = row is not None and bool(row.product_form)
    return not is_product and "slow" not in {row.reason for row in hmp.report(show=False).rows}


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor) and not one.is_complex()]


@each("dtype", KINDS)
def test_each_operation_of_torch_has_its_dtype_and_most_have_its_bits(dtype: torch.dtype) -> None:
    expected = []
    for op in entries():
        if "empty" not in op.name and supports(op, dtype):
            for call in calls_of(op, 2):
                lower = call.mapped(lambda tensor, _: tensor.detach().to(dtype))
                with suppress(RuntimeError, TypeError, ValueError):  # some samples have a dtype of their own beside
                    expected.append((op, lower, _tensors(lower.run(op.op))))
    assert len(expected) > 500
    hmp.convert(preset="half")
    for op, call, wanted in expected:
        hmp.reset_report()
        made = _tensors(call.run(op.op))
        assert [(one.dtype, one.shape) for one in made] == [(one.dtype, one.shape) for one in wanted], name_of(op)
        for one, other in zip(made, wanted, strict=True):
            if _are_torchs_bits(op) and one.layout is torch.strided:
                torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=name_of(op))


@each("dtype", KINDS)
def test_a_model_computes_in_its_own_precision(dtype: torch.dtype) -> None:
    model = Model().to(dtype)
    exact = copy.deepcopy(model).float()
    exact(WORDS).square().sum().backward()
    for option in KINDS:
        hmp.convert(preset="half", dtype=option)
        result = model(WORDS)
        assert result.dtype is dtype
        model.zero_grad()
        result.float().square().sum().backward()
        for one, other in zip(model.parameters(), exact.parameters(), strict=True):
            assert one.grad is not None
            assert one.grad.dtype is dtype
            assert (one.grad.float() - other.grad).norm() <= 0.1 * other.grad.norm()
    rows = hmp.report(show=False).rows
    assert {row.operation for row in rows} >= {"linear", "conv1d", "lstm"}
    of_model = [row for row in rows if row.precision != "unchanged"]
    assert {(row.precision, row.reason) for row in of_model} == {
        ("bf16" if dtype is torch.bfloat16 else "fp16", "operands")
    }


def test_a_model_in_float32_stays_as_it_is() -> None:
    model = Model()
    with torch.no_grad():
        expected = model(WORDS)
        hmp.convert(preset="half")
        assert torch.equal(model(WORDS), expected)
    assert {(row.precision, row.reason) for row in hmp.report(show=False)} == {("unchanged", "operands")}


def test_what_torch_refuses_it_refuses() -> None:
    x, y = torch.ones(4, 4).bfloat16(), torch.ones(4, 4).half()
    hmp.convert(preset="half")
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(x, y)
    with pytest.raises(RuntimeError, match="ow precision dtypes"):
        torch.linalg.inv(x)


@each("dtype", KINDS)
def test_a_kept_module_a_rule_and_a_list_hold(dtype: torch.dtype, tmp_path: Any) -> None:
    model = nn.Sequential(nn.Linear(128, 128), nn.Linear(128, 128), nn.Softmax(-1), nn.Linear(128, 4)).to(dtype)
    (tmp_path / "fp32.txt").write_text("softmax\n")
    hmp.convert(preset="half", rules={"linear @ 1": "fp32"}, fp32_file_path=tmp_path / "fp32.txt", report="modules")
    hmp.keep(model[0])
    with torch.no_grad():
        assert model(torch.randn(64, 128).to(dtype)).dtype is dtype  # a float32 operand beside lower ones is cast
    lower = "bf16" if dtype is torch.bfloat16 else "fp16"
    found = {(row.operation, row.module): row.precision for row in hmp.report(show=False)}
    expected = ("linear", "0", "fp32"), ("linear", "1", "fp32"), ("softmax", "2", "fp32"), ("linear", "3", lower)
    assert found == {(name, f"Sequential.{place}"): precision for name, place, precision in expected}


@each("dtype", KINDS)
def test_a_region_has_it_for_its_block(dtype: torch.dtype) -> None:
    x, w = torch.randn(100, 3000).to(dtype), torch.randn(3000, 100).to(dtype)
    exact = (x.double() @ w.double()).to(dtype)
    with hmp.autocast("cpu", preset="half"), hmp.watch("lines"):
        made = x @ w
        assert torch.exp(x).dtype is dtype
    assert (made != exact).float().mean() < 0.01
    assert {(row.operation, row.reason) for row in hmp.report(show=False) if row.is_lower} >= {("matmul", "operands")}


def test_levels() -> None:
    hmp.convert(opt_level="O0", preset=None)
    with pytest.raises(ValueError, match='opt_level="O2" runs all but products in float32'):
        hmp.convert(opt_level="O2", preset="half")
    assert hmp.is_converted()
    hmp.convert(preset="half")
    assert (hmp.explain("linear").reason, hmp.explain("softmax").precision) == ("operands", "unchanged")


def test_o0_of_the_environment_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(64, 256).bfloat16()
    expected = x @ x.t()
    monkeypatch.setenv("HABANA_MP_OPT_LEVEL", "O0")
    hmp.convert(preset="half")
    assert torch.equal(x @ x.t(), expected)
    assert {row.reason for row in hmp.report(show=False)} == {"level"}


@each("dtype", KINDS)
def test_compiled_code_has_it(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).to(dtype)
    x = torch.randn(64, 256).to(dtype)
    hmp.convert(preset="half")
    eager = model(x)
    compiled = torch.compile(model)(x)
    assert compiled.dtype is dtype
    torch.testing.assert_close(compiled, eager)


@on_two_ranks
def test_replicas_of_ddp_average_the_same_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 8)).bfloat16()
    x = torch.randn(32, 128).bfloat16()
    hmp.convert(preset="half")
    expected = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    DistributedDataParallel(model)(x).sum().backward()  # both ranks have the same batch
    for one, gradient in zip(model.parameters(), expected, strict=True):
        assert one.grad is not None
        assert torch.equal(one.grad, gradient)
