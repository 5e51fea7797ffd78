"""Cached casts of weights: that they are cached, what they cost, and that gradients do not know of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.comparing import assert_near, assert_same
from helpers.lists import Converter
from helpers.weights import MODES, cached, casts, weight

X = torch.linspace(-1.0, 1.0, 4 * 32).reshape(4, 32).bfloat16()


pytestmark = pytest.mark.usefixtures("counted")


@pytest.mark.parametrize("mode", MODES)
def test_a_weight_is_cast_once(mode: str) -> None:
    hmp.convert()
    w = weight(16, 32)
    with MODES[mode]():
        for _ in range(5):
            assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert casts() == 1
    assert (cached().hits, cached().weights, cached().refused) == (4, 1, 0)


LARGE = torch.linspace(-1.0, 1.0, 4 * 128).reshape(4, 128).bfloat16()


@pytest.mark.parametrize("mode", MODES)
def test_a_view_of_a_weight_uses_the_weights_cast(mode: str) -> None:
    hmp.convert(preset="torch-cpu")
    w = weight(128, 128)
    with MODES[mode]():
        for _ in range(3):
            assert torch.equal(LARGE @ w.t(), LARGE @ w.detach().bfloat16().t())
            assert torch.equal(F.linear(LARGE, w.view(128, 128)), F.linear(LARGE, w.detach().bfloat16()))
            assert torch.equal(torch.bmm(LARGE[None], w[None]), torch.bmm(LARGE[None], w.detach().bfloat16()[None]))
            assert torch.equal(F.linear(LARGE, w), F.linear(LARGE, w.detach().bfloat16()))
    assert (cached().weights, cached().hits, cached().refused) == (1, 11, 0)
    assert sum(row.bytes for row in hmp.report(show=False)) == 2 * w.numel()


@pytest.mark.parametrize("mode", MODES)
def test_experts_in_one_weight_are_cast_once_where_they_do_not_train(mode: str) -> None:
    hmp.convert(preset="torch-cpu")
    experts = weight(4, 128, 128, requires_grad=mode == "grad")
    with MODES[mode]():
        for _ in range(4):
            for index in (torch.tensor(1), torch.tensor(3)):
                assert torch.equal(F.linear(LARGE, experts[index]), F.linear(LARGE, experts.detach()[index].bfloat16()))
    # Where each step changes all experts, the few that are used are cast by themselves.
    assert (cached().weights, cached().hits) == ((0, 0) if mode == "grad" else (1, 7))


@pytest.mark.parametrize(
    ("options", "left"),
    [({}, 1), ({"weight_cache": False}, 0), ({"weight_cache_limit": 100}, 0), ({"weight_cache_limit": 2 * 16 * 32}, 1)],
    ids=["as before", "without a cache", "with less room", "with as much room"],
)
def test_another_convert_drops_the_casts_that_it_does_not_allow(options: dict[str, Any], left: int) -> None:
    hmp.convert()
    w = weight(16, 32, requires_grad=False)
    F.linear(X, w)
    assert cached().weights == 1
    hmp.convert(**options)
    assert cached().weights == left


def test_the_gradient_through_a_view_is_that_of_a_cast_by_hand() -> None:
    w, by_hand = weight(128, 128), weight(128, 128)
    seed = torch.linspace(-1.0, 1.0, 4 * 128).reshape(4, 128)
    (LARGE @ by_hand.t().to(torch.bfloat16)).backward(seed.bfloat16())
    hmp.convert(preset="torch-cpu")
    for _ in range(2):
        (LARGE @ w.t()).backward(seed.bfloat16())
    assert cached().hits == 1
    assert torch.equal(w.grad, 2 * by_hand.grad)


def test_views_that_a_cast_does_not_lie_like_are_cast_by_themselves() -> None:
    hmp.convert(preset="torch-cpu")
    w = weight(256, 256)
    views: dict[str, Callable[[], torch.Tensor]] = {
        "with gaps": lambda: w[:, :128],
        "negated": lambda: torch._neg_view(w[:128, :].view(256, 128)),
        "small": lambda: w[:8].view(16, 128),
        "of values of another type": lambda: w[:128].view(256, 128).view(torch.int32).view(torch.float32),
        "detached": lambda: w.detach()[:128].view(256, 128),
        "of a tensor that is no weight": lambda: w.detach().clone()[:128].view(256, 128),
    }
    for name, view in views.items():
        with torch.no_grad():
            assert torch.equal(F.linear(LARGE, view()), F.linear(LARGE, view().bfloat16())), name


def test_one_cast_serves_all_modes() -> None:
    hmp.convert()
    w = weight(16, 32)
    for mode in (*MODES, *reversed(MODES)):
        with MODES[mode]():
            F.linear(X, w)
    assert casts() == 1


CALLS: dict[str, tuple[Callable[[Any], torch.Tensor], tuple[int, ...]]] = {
    "matmul": (lambda w: torch.matmul(X, w), (32, 8)),
    "@": (lambda w: X @ w, (32, 8)),
    "w @ x": (lambda w: w @ X.t(), (8, 32)),
    "Tensor.mm": (lambda w: X.mm(w), (32, 8)),
    "addmm": (lambda w: torch.addmm(X[0, :8], X, w), (32, 8)),
    "bmm": (lambda w: torch.bmm(X[None], w), (1, 32, 8)),
    "mv": (lambda w: torch.mv(X, w), (32,)),
    "F.linear by keyword": (lambda w: F.linear(input=X, weight=w), (8, 32)),
    "F.conv1d": (lambda w: F.conv1d(X[None], w), (6, 4, 3)),
    "F.conv2d": (lambda w: F.conv2d(X[None, None], w, stride=2), (6, 1, 3, 3)),
    "F.conv_transpose2d": (lambda w: F.conv_transpose2d(X[None, None], w), (1, 6, 3, 3)),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("requires_grad", [True, False])
def test_results_and_gradients_are_those_of_a_cast_by_hand(
    converted: Converter, name: str, requires_grad: bool
) -> None:
    call, shape = CALLS[name]
    w = weight(*shape, requires_grad=requires_grad)
    is_torchs = "conv" not in name or _core.kernels_multiplies_bfloat16()
    assert_right = assert_same if is_torchs else assert_near
    expected = call(w.bfloat16())
    if requires_grad:
        expected.square().sum().backward()
        gradient, w.grad = w.grad, None
    converted(bf16=["linear", "matmul", "mm", "addmm", "bmm", "mv", "conv1d", "conv2d", "conv_transpose2d"])
    for _ in range(2):
        result = call(w)
        assert_right(result, expected)
        assert result.requires_grad is requires_grad
        if requires_grad:
            w.grad = None
            result.square().sum().backward()
            assert_right(w.grad, gradient)
            assert w.grad.dtype is torch.float32
    assert cached().hits >= 1


def test_a_channels_last_weight_is_cached_as_it_lies() -> None:
    w = nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))
    x = torch.randn(2, 4, 9, 9)
    hmp.convert()
    for _ in range(2):
        assert torch.equal(F.conv2d(x, w), F.conv2d(x.bfloat16(), w.bfloat16()))
        with torch.no_grad():
            w.mul_(1.5)
    assert cached().refreshes == 1


def test_the_gradient_of_a_large_weight_can_be_summed_in_place() -> None:
    hmp.convert()
    w = weight(2**17, 32)
    arrived: list[bool] = []
    accumulates = w.view_as(w).grad_fn.next_functions[0][0]
    accumulates.register_prehook(lambda gradients: arrived.append(gradients[0]._is_view()))
    F.linear(X, w).sum().backward()
    assert arrived == [False]
    assert torch.equal(w.grad, X.float().sum(0).bfloat16().float().expand_as(w))


def test_the_step_of_any_optimizer_ends_the_casts_of_all_weights_that_train() -> None:
    hmp.convert()
    trained, frozen, of_another = weight(128, 32 * 16), weight(128, 32 * 16, requires_grad=False), weight(128, 32 * 16)
    x = torch.ones(2, 32 * 16)
    optimizer = torch.optim.SGD([trained], lr=0.1)
    for _ in range(3):
        for w in (trained, frozen, of_another):
            F.linear(x, w).sum().backward() if w.requires_grad else F.linear(x, w)
        assert cached().weights == 3
        with hmp.disable_casts():
            optimizer.step()
        assert cached().weights == 1
    assert (cached().refreshes, cached().refused) == (4, 0)


def test_a_cell_that_runs_many_steps_has_one_cast_of_each_weight(converted: Converter) -> None:
    converted(bf16=["LSTMCell"])
    cell = nn.LSTMCell(64, 128)
    state = (torch.zeros(4, 128), torch.zeros(4, 128))
    for _ in range(60):
        state = cell(torch.ones(4, 64), state)
    assert (cached().weights, cached().hits, cached().refused) == (4, 4 * 59, 0)


def test_a_cast_goes_with_its_weight() -> None:
    hmp.convert()
    model = nn.Linear(32, 16)
    model(X).sum().backward()
    alive = weakref.ref(model.weight)
    assert cached().weights == 2
    gc.disable()
    try:
        del model
        assert alive() is None
        assert (cached().weights, cached().bytes) == (0, 0)
    finally:
        gc.enable()


def test_restore_drops_all() -> None:
    hmp.convert()
    w = weight(16, 32)
    F.linear(X, w)
    assert cached().bytes == 2 * w.numel()
    hmp.restore()
    assert (cached().weights, cached().bytes) == (0, 0)
    assert weakref.getweakrefcount(w) == 0


def test_switched_off_nothing_is_cached() -> None:
    hmp.convert(weight_cache=False)
    w = weight(16, 32)
    for _ in range(3):
        F.linear(X, w)
    assert casts() == 3
    assert cached() == hmp.CachedWeights()


def test_the_limit_is_kept() -> None:
    hmp.convert(weight_cache_limit=2 * 16 * 32)
    first, second = weight(16, 32), weight(16, 32)
    for _ in range(2):
        for w in (first, second):
            assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert (cached().weights, cached().bytes) == (1, 2 * 16 * 32)
    assert cached().refused == 2
    del first
    F.linear(X, second)
    assert cached().weights == 1


@pytest.mark.parametrize("limit", [-1, 0.5, "1", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="weight_cache_limit"):
        hmp.convert(weight_cache_limit=limit)
    assert not hmp.is_converted()


def test_a_limit_beyond_all_memory_is_none() -> None:
    hmp.convert(weight_cache_limit=10**30)
    w = weight(16, 32)
    F.linear(X, w)
    assert cached().weights == 1


def _made_in_inference_mode() -> nn.Parameter:
    with torch.inference_mode():
        return weight(16, 32)


@pytest.mark.parametrize(
    ("reason", "make", "options"),
    [
        ("something has its memory but not its version counter", lambda: (w := weight(16, 32), w.data), {}),
        ("NumPy or DLPack may have its memory", lambda: (w := weight(16, 32), w.detach().numpy()), {}),
        ("NumPy or DLPack may have its memory", lambda: (w := weight(16, 32), w.detach().numpy(), w.detach()), {}),
        ("its memory is not torch's own", lambda: (nn.Parameter(torch.from_numpy(np.ones((16, 32), np.float32))),), {}),
        ("nothing counts its changes", lambda: (_made_in_inference_mode(),), {}),
        (
            "casts are not cached on its device",
            lambda: (nn.Parameter(torch.empty(16, 32, device="meta")),),
            {},
        ),
        ("its values have gaps", lambda: (nn.Parameter(torch.ones(1, 32).expand(16, 32)),), {}),
        ("the limit was reached", lambda: (weight(16, 32),), {"weight_cache_limit": 100}),
    ],
)
def test_the_report_tells_why_a_weight_is_not_cached(
    reason: str, make: Callable[[], tuple[Any, ...]], options: dict[str, int]
) -> None:
    hmp.convert(**options)
    w, *_held = make()
    with torch.no_grad():
        for _ in range(3):
            F.linear(X.to(w.device), w)
    assert cached().reasons == {reason: 3}
    assert f"not cached 3 times ({reason}: 3)" in str(hmp.report(show=False))
    hmp.reset_report()
    assert cached().reasons == {}


def test_the_report_tells_of_cached_casts() -> None:
    hmp.convert()
    w = weight(16, 32)
    for _ in range(3):
        F.linear(X, w)
    assert "cached casts of weights: 1 (0.001 MB), used 2 times" in str(hmp.report(show=False))
    hmp.reset_report()
    assert cached() == hmp.CachedWeights(weights=1, bytes=2 * w.numel())
