"""torch.compile: functions and modules are traced whole, with the same casts and the same bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers import processor
from helpers.comparing import assert_close, assert_near, assert_same
from helpers.compiled_functions import B3, FUNCTIONS, IMAGE, LABELS, Convolutions, M, N
from helpers.lists import Converter

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
pytestmark = pytest.mark.usefixtures("compiled_anew", "one_thread")


@pytest.mark.parametrize("listed", ["lp_pool3d", "triplet_margin_with_distance_loss", "rdiv", "normalize"])
def test_a_function_that_torch_writes_in_python_stays_whole(converted: Converter, listed: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        pooled = F.lp_pool3d(x.expand(1, 4, 4, 4), 2.0, 2)
        return [pooled, F.triplet_margin_with_distance_loss(x, y, x + 1), 2 / x, F.normalize(y)]

    converted(bf16=[listed])
    expected = function(M, N)
    assert_same(torch.compile(function, backend="aot_eager", fullgraph=True)(M, N), expected)
    hmp.restore()
    plain = torch.compile(function, backend="aot_eager", fullgraph=True)(M, N)
    assert [one.dtype for one in plain] == [FP32] * 4


MODULES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "convolutions": (Convolutions, IMAGE),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), B3),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 4), nn.PReLU(), nn.Softmax(-1)), M),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_traced_whole_and_gives_the_same_bits(name: str) -> None:
    function = FUNCTIONS[name]
    hmp.convert()
    expected = function(M, N)
    assert_same(torch.compile(function, backend="aot_eager", fullgraph=True)(M, N), expected)


@pytest.mark.parametrize("name", ["mixed", "regions"])
@pytest.mark.parametrize("options", [{"opt_level": "O2"}, {"dtype": FP16}, {"preset": "torch-cpu"}], ids=str)
def test_a_traced_function_gives_the_same_bits_under_other_policies(name: str, options: dict[str, Any]) -> None:
    """As eager code, where this processor gives its bits to plain torch's compiled code; else as code compiled anew."""
    function = FUNCTIONS[name]
    is_alike = processor.aot_eager_gives_the_bits_of_eager(function, M, N)

    def compile_it() -> Callable[..., Any]:
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    def expect() -> Any:
        if is_alike:
            return function(M, N)
        torch._dynamo.reset()
        anew = compile_it()(M, N)
        assert_close(anew, function(M, N))
        return anew

    before = expect()
    hmp.convert(**options)
    meanwhile = expect()
    hmp.restore()
    torch._dynamo.reset()
    compiled = compile_it()
    assert_same(compiled(M, N), before)
    hmp.convert(**options)
    assert_same(compiled(M, N), meanwhile)
    hmp.restore()
    assert_same(compiled(M, N), before)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("first", ["compile", "convert"])
def test_a_compiled_module_trains_with_the_same_bits(name: str, first: str) -> None:
    make, x = MODULES[name]

    def gradients(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = make()
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        if compiled and first == "compile":
            call(x)
        hmp.convert()
        model.zero_grad()
        inner = x.clone().requires_grad_()
        out = call(inner)
        out.float().pow(2).sum().backward()
        hmp.restore()
        return [out.detach(), inner.grad, *(one.grad for one in model.parameters() if one.grad is not None)]

    if name != "convolutions" or _core.kernels_multiplies_bfloat16():
        assert_same(gradients(True), gradients(False))
    else:  # traced for this backend, a convolution is torch's own, which rounds within the sums of gradients
        for one, other in zip(gradients(True), gradients(False), strict=True):
            assert_near(one, other)


def test_compiled_autograd_gives_the_same_gradients() -> None:
    def gradients(compiled: bool) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 2**20), nn.GELU(), nn.Linear(2**20, 3))
        loss = F.cross_entropy(model(M), LABELS % 3)
        if compiled:
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                loss.backward()
        else:
            loss.backward()
        return [one.grad for one in model.parameters()]

    hmp.convert()
    if _core.kernels_multiplies_bfloat16():
        assert_same(gradients(True), gradients(False))
    else:  # traced, a product is torch's own in float32
        torch.testing.assert_close(gradients(True), gradients(False), rtol=0.016, atol=1e-5)


def test_flex_attention_takes_both_precisions() -> None:
    flex_attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    query = torch.rand(1, 2, 16, 8)
    plain = flex_attention(query, query, query)
    hmp.convert()
    lowered = [F.linear(query, torch.eye(8)) for _ in range(3)]
    torch.testing.assert_close(flex_attention(query, query, query).float(), plain, rtol=2e-2, atol=1e-2)
    assert flex_attention(*lowered).dtype is BF16


class Behind(nn.Module):
    """A module that looks at its input's dtype, behind a layer that lowers it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.module(self.layer(x))
        return result[0] if isinstance(result, tuple) else result


BEHIND: dict[str, Callable[[], nn.Module]] = {
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
    "LSTM": lambda: nn.LSTM(8, 3),
    "GRU": lambda: nn.GRU(8, 3, bidirectional=True),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("way", ["aot_eager", "export"])
@pytest.mark.parametrize("name", BEHIND)
def test_a_module_that_asks_for_dtypes_takes_a_lowered_input(name: str, way: str) -> None:
    def compile_it(model: nn.Module, x: torch.Tensor) -> Any:
        is_exported = way == "export"
        return (
            torch.export.export(model, (x,), strict=True).module() if is_exported else torch.compile(model, backend=way)
        )

    torch.manual_seed(0)
    model = Behind(BEHIND[name]()).eval()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        # Compiled code of torch has an LSTM in bfloat16 by a kernel that some processors lack.
        lowered, lower = copy.deepcopy(model).bfloat16(), B3.bfloat16()
        runs = processor.can_run(lambda: compile_it(lowered, lower)(lower))
        hmp.convert()
        expected = model(B3)
        assert expected.dtype is BF16
        if runs:
            assert_close(compile_it(model, B3)(B3), expected)
        else:
            with pytest.raises(RuntimeError, match="primitive descriptor"):
                compile_it(model, B3)(B3)
