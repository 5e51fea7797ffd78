"""Kept casts of weights: that they are kept, what they cost, when they go, and that gradients do not know of them."""

from __future__ import annotations

import copy
import ctypes
import gc
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import Converter, all_bfloat16_tensors, interrupted, run_script
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard._convert_np import make_np

from habana_mp import _operations as ops
from habana_mp import hmp

pytestmark = pytest.mark.usefixtures("counted")

MODES: dict[str, Callable[[], Any]] = {
    "grad": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def casts() -> int:
    return sum(row.casts for row in hmp.report(show=False))


def kept() -> hmp.KeptWeights:
    return hmp.report(show=False).weights


def weight(*shape: int, requires_grad: bool = True) -> nn.Parameter:
    torch.manual_seed(0)
    return nn.Parameter(torch.randn(*shape), requires_grad=requires_grad)


X = torch.linspace(-1.0, 1.0, 4 * 32).reshape(4, 32).bfloat16()


@pytest.mark.parametrize("mode", MODES)
def test_a_weight_is_cast_once(mode: str) -> None:
    hmp.convert()
    w = weight(16, 32)
    with MODES[mode]():
        for _ in range(5):
            assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert casts() == 1
    assert (kept().hits, kept().weights, kept().refused) == (4, 1, 0)


# ---- views of weights ------------------------------------------------------------------------------------------------

LARGE = torch.linspace(-1.0, 1.0, 4 * 128).reshape(4, 128).bfloat16()


@pytest.mark.parametrize("mode", MODES)
def test_a_view_of_a_weight_uses_the_weights_cast(mode: str) -> None:
    hmp.convert(preset="torch-cpu", packed_weights=False)
    w = weight(128, 128)
    with MODES[mode]():
        for _ in range(3):
            assert torch.equal(LARGE @ w.t(), LARGE @ w.detach().bfloat16().t())
            assert torch.equal(F.linear(LARGE, w.view(128, 128)), F.linear(LARGE, w.detach().bfloat16()))
            assert torch.equal(torch.bmm(LARGE[None], w[None]), torch.bmm(LARGE[None], w.detach().bfloat16()[None]))
            assert torch.equal(F.linear(LARGE, w), F.linear(LARGE, w.detach().bfloat16()))
    assert (kept().weights, kept().hits, kept().refused) == (1, 11, 0)
    assert sum(row.bytes for row in hmp.report(show=False)) == 2 * w.numel()


@pytest.mark.parametrize("mode", MODES)
def test_experts_in_one_weight_are_cast_once_where_they_do_not_train(mode: str) -> None:
    hmp.convert(preset="torch-cpu")
    experts = weight(4, 128, 128, requires_grad=mode == "grad")
    with MODES[mode]():
        for _ in range(4):
            for index in (torch.tensor(1), torch.tensor(3)):
                assert torch.equal(F.linear(LARGE, experts[index]), F.linear(LARGE, experts.detach()[index].bfloat16()))
    # The whole is cast when as much was cast in parts. Where each step changes all experts, the few that are used are
    # cast by themselves.
    assert (kept().weights, kept().hits) == ((0, 0) if mode == "grad" else (1, 4))


def test_a_small_part_of_a_weight_that_changes_is_cast_by_itself() -> None:
    hmp.convert(preset="torch-cpu")
    w = weight(1024, 128)
    with torch.no_grad():
        for _ in range(7):
            w[0].add_(1)
            assert torch.equal(F.linear(LARGE, w[:128]), F.linear(LARGE, w.detach()[:128].bfloat16()))
    assert (kept().weights, kept().refreshes) == (0, 0)
    assert sum(row.bytes for row in hmp.report(show=False) if row.operation == "linear") == 2 * 7 * 128 * 128


def test_a_step_leaves_the_casts_of_parts_for_their_next_use() -> None:
    hmp.convert(preset="torch-cpu")
    experts = weight(4, 128, 128)
    optimizer = torch.optim.SGD([experts], lr=0.1)
    for _ in range(3):
        for index in (0, 1, 2, 3, 0, 1):
            with torch.no_grad():
                wanted = F.linear(LARGE, experts.detach()[index].bfloat16())
                assert torch.equal(F.linear(LARGE, experts[index]), wanted)
        refreshed = kept().refreshes
        F.linear(LARGE, experts[2]).sum().backward()
        optimizer.step()
        assert kept().refreshes == refreshed
    assert refreshed == 2


def test_views_that_live_side_by_side_leave_the_weights_own_cast_alone() -> None:
    hmp.convert(preset="torch-cpu", packed_weights=False)
    w = weight(256, 128)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(F.linear(LARGE, w), F.linear(LARGE, w.detach().bfloat16()))
            one, other = w.chunk(2)
            assert torch.equal(F.linear(LARGE, one), F.linear(LARGE, one.bfloat16()))
            assert torch.equal(F.linear(LARGE, other), F.linear(LARGE, other.bfloat16()))
            del one, other
    assert (kept().weights, kept().hits, kept().refused) == (1, 2, 0)


def test_the_gradient_through_a_view_is_that_of_a_cast_by_hand() -> None:
    w, by_hand = weight(128, 128), weight(128, 128)
    seed = torch.linspace(-1.0, 1.0, 4 * 128).reshape(4, 128)
    (LARGE @ by_hand.t().to(torch.bfloat16)).backward(seed.bfloat16())
    hmp.convert(preset="torch-cpu")
    for _ in range(2):
        (LARGE @ w.t()).backward(seed.bfloat16())
    assert kept().hits == 1
    assert w.grad is not None
    assert by_hand.grad is not None
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
    x = w.detach()[:4, :128]
    with torch.no_grad():  # two views at a time: whether both count their changes with the weight is not known
        one, other = w.view(512, 128).chunk(2)
        assert torch.equal(F.linear(x, one), F.linear(x.bfloat16(), one.bfloat16()))
        del other
        assert torch.equal(F.linear(x, one), F.linear(x.bfloat16(), one.bfloat16()))


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
    expected = call(w.bfloat16())
    if requires_grad:
        expected.square().sum().backward()
        gradient, w.grad = w.grad, None
    converted(bf16=["linear", "matmul", "mm", "addmm", "bmm", "mv", "conv1d", "conv2d", "conv_transpose2d"])
    for _ in range(2):
        result = call(w)
        assert torch.equal(result, expected)
        assert result.requires_grad is requires_grad
        if requires_grad:
            w.grad = None
            result.square().sum().backward()
            assert torch.equal(w.grad, gradient)
            assert w.grad.dtype is torch.float32
    assert kept().hits >= 1


RECURRENT: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(32, 8, num_layers=2),
    "gru": lambda: nn.GRU(32, 8, bidirectional=True),
    "rnn_tanh": lambda: nn.RNN(32, 8),
    "rnn_relu": lambda: nn.RNN(32, 8, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_keeps_casts(converted: Converter, name: str) -> None:
    torch.manual_seed(0)
    model = RECURRENT[name]()
    steps = torch.randn(5, 3, 32)

    def by_hand() -> Any:
        return copy.deepcopy(model).bfloat16()(steps.bfloat16())

    def assert_right(result: Any) -> None:
        assert all(map(torch.equal, tree_leaves(result), tree_leaves(expected)))

    expected = by_hand()
    count = len(list(model.parameters()))
    converted(bf16=[name])
    with torch.no_grad():
        for _ in range(3):
            assert_right(model(steps))
    assert (kept().weights, kept().hits, kept().refused) == (count, 2 * count, 0)
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(0.5)
    with hmp.disable_casts():
        expected = by_hand()
    with torch.inference_mode():
        assert_right(model(steps))
    hits = kept().hits
    assert_right(model(steps))
    assert kept().hits == hits + count


def test_a_channels_last_weight_is_kept_as_it_lies() -> None:
    w = nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last))
    x = torch.randn(2, 4, 9, 9)
    hmp.convert()
    for _ in range(2):
        assert torch.equal(F.conv2d(x, w), F.conv2d(x.bfloat16(), w.bfloat16()))
        with torch.no_grad():
            w.mul_(1.5)
    assert kept().refreshes == 1


def test_gradients_of_accumulated_steps_add_up() -> None:
    w = weight(16, 32)
    for _ in range(3):
        F.linear(X, w.bfloat16()).square().sum().backward()
    expected, w.grad = w.grad, None
    hmp.convert()
    for _ in range(3):
        F.linear(X, w).square().sum().backward()
    assert torch.equal(w.grad, expected)
    assert casts() == 1


def test_a_second_derivative_is_that_of_a_cast_by_hand() -> None:
    w = weight(16, 32)
    x = X.float().requires_grad_()

    def second(cast: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        loss = F.linear(x.bfloat16(), cast(w)).float().pow(3).sum()
        (first,) = torch.autograd.grad(loss, w, create_graph=True)
        return torch.autograd.grad(first.square().sum(), w)[0]

    expected = second(torch.Tensor.bfloat16)
    hmp.convert(preset="hmp-guide-o1")
    result = second(lambda one: one)
    assert torch.allclose(result, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


@pytest.mark.parametrize("length", [512, 2**18], ids=["small", "large"])
def test_a_weight_that_is_table_and_last_layer_gets_both_gradients(length: int) -> None:
    w = weight(length, 16)
    words = torch.tensor([[1, 2, 2, length - 1]])

    def gradients(cast: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
        x = F.embedding(words, w).bfloat16()
        scores = F.linear(F.linear(x, cast(w)[:16]), cast(w))
        (first,) = torch.autograd.grad(scores.float().square().mean(), w, create_graph=True)
        return [first, torch.autograd.grad(first.square().sum(), w)[0]]

    expected = gradients(torch.Tensor.bfloat16)
    hmp.convert()
    for _ in range(2):
        for one, other in zip(gradients(lambda one: one), expected, strict=True):
            assert one.dtype is torch.float32
            torch.testing.assert_close(one, other, rtol=0.02, atol=0.02 * float(other.detach().abs().max()))


def test_the_gradient_of_a_large_weight_can_be_summed_in_place() -> None:
    hmp.convert()
    w = weight(2**17, 32)
    arrived: list[bool] = []
    accumulates = w.view_as(w).grad_fn.next_functions[0][0]
    accumulates.register_prehook(lambda gradients: arrived.append(gradients[0]._is_view()))
    F.linear(X, w).sum().backward()
    assert arrived == [False]
    assert torch.equal(w.grad, X.float().sum(0).bfloat16().float().expand_as(w))


def test_a_hook_of_the_weight_sees_a_float32_gradient() -> None:
    hmp.convert()
    w = weight(16, 32)
    seen: list[torch.Tensor] = []
    w.register_hook(seen.append)
    F.linear(X, w).sum().backward()
    assert [one.dtype for one in seen] == [torch.float32]
    assert seen[0].shape == w.shape


WRITES: dict[str, Callable[[nn.Parameter], object]] = {
    "add_": lambda w: w.add_(1),
    "data": lambda w: w.data.add_(1),
    "set data": lambda w: setattr(w, "data", torch.zeros_like(w)),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("write", WRITES)
def test_a_backward_after_a_write_uses_the_values_of_its_forward(write: str, requires_grad: bool) -> None:
    w = weight(16, 32, requires_grad=requires_grad)
    x = X.detach().clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.linear(x, w.detach().bfloat16()).square().sum(), x)
    hmp.convert()
    for _ in range(2):
        F.linear(X, w)
    loss = F.linear(x, w).square().sum()
    with torch.no_grad():
        WRITES[write](w)
    # cast anew, while the first cast waits for its backward
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert torch.equal(torch.autograd.grad(loss, x)[0], expected)


def test_a_step_of_the_optimizer_refreshes_all_casts_at_once() -> None:
    hmp.convert()
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(X).sum().backward()
    before = casts()
    with hmp.disable_casts():
        optimizer.step()
    assert kept().refreshes == 4
    model(X)
    assert casts() == before  # the input is in bf16 already
    expected = F.linear(
        torch.relu(F.linear(X, *(p.bfloat16() for p in model[0].parameters()))),
        *(p.bfloat16() for p in model[2].parameters()),
    )
    assert torch.equal(model(X), expected)


def test_casts_take_half_of_the_weights() -> None:
    hmp.convert()
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 64), nn.Conv1d(4, 8, 3))
    for module, x in zip(model, (X, torch.ones(2, 64), torch.ones(1, 4, 9)), strict=True):
        module(x)
    assert kept().bytes == sum(p.numel() for p in model.parameters()) * 2


def test_a_cast_goes_with_its_weight() -> None:
    hmp.convert()
    model = nn.Linear(32, 16)
    model(X).sum().backward()
    alive = weakref.ref(model.weight)
    assert kept().weights == 2
    gc.disable()
    try:
        del model
        assert alive() is None
        assert (kept().weights, kept().bytes) == (0, 0)
    finally:
        gc.enable()


def test_nothing_grows_over_models_that_come_and_go() -> None:
    hmp.convert()
    for _ in range(1000):
        nn.Linear(32, 16)(X)
        assert kept().weights <= 2
    assert (kept().weights, kept().bytes) == (0, 0)


def test_nothing_grows_over_many_steps() -> None:
    hmp.convert()
    model = nn.Linear(32, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2000):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()
    assert (kept().weights, kept().bytes) == (2, 2 * (32 * 4 + 4))


def test_restore_drops_all() -> None:
    hmp.convert()
    w = weight(16, 32)
    F.linear(X, w)
    assert kept().bytes == 2 * w.numel()
    hmp.restore()
    assert (kept().weights, kept().bytes) == (0, 0)
    assert weakref.getweakrefcount(w) == 0


def test_switched_off_nothing_is_kept() -> None:
    hmp.convert(weight_cache=False)
    w = weight(16, 32)
    for _ in range(3):
        F.linear(X, w)
    assert casts() == 3
    assert kept() == hmp.KeptWeights()


def test_a_convert_that_switches_it_off_drops_what_is_kept() -> None:
    hmp.convert()
    w = weight(16, 32)
    F.linear(X, w)
    hmp.convert(weight_cache=False)
    assert kept().weights == 0


def test_the_limit_is_kept() -> None:
    hmp.convert(weight_cache_limit=2 * 16 * 32)
    first, second = weight(16, 32), weight(16, 32)
    for _ in range(2):
        for w in (first, second):
            assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert (kept().weights, kept().bytes) == (1, 2 * 16 * 32)
    assert kept().refused == 2
    del first
    F.linear(X, second)
    assert kept().weights == 1


@pytest.mark.parametrize("limit", [-1, 0.5, "1", True])
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="weight_cache_limit"):
        hmp.convert(weight_cache_limit=limit)
    assert not hmp.is_converted()


def test_a_limit_beyond_all_memory_is_none() -> None:
    hmp.convert(weight_cache_limit=10**30)
    w = weight(16, 32)
    F.linear(X, w)
    assert kept().weights == 1


def test_a_weight_whose_memory_others_hold_is_not_kept_until_they_let_go() -> None:
    hmp.convert()
    w = weight(16, 32)
    held = w.detach()
    F.linear(X, w)
    assert (kept().weights, kept().refused) == (0, 1)
    del held
    for _ in range(3):
        F.linear(X, w)
    assert kept().weights == 1


def test_a_weight_that_moved_to_memory_of_others_is_read_where_it_lies_when_they_let_go() -> None:
    hmp.convert()
    w = weight(16, 32)
    F.linear(X, w)
    others = torch.randn(16, 32)
    w.data = others
    F.linear(X, w)
    assert kept().weights == 0
    del others
    for _ in range(5):
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().clone().bfloat16()))
    assert kept().weights == 1


def data_of_script(w: torch.Tensor) -> torch.Tensor:
    return torch.jit.script(_data)(w)  # type: ignore[no-any-return]


def _data(w: torch.Tensor) -> torch.Tensor:
    return w.data


def assigned(w: torch.Tensor) -> torch.Tensor:
    alias = torch.empty(0)
    alias.data = w
    return alias


#: Other tensors of the same memory, whose versions are their own.
ALIASES: dict[str, Callable[[Any], torch.Tensor]] = {
    "an assigned data": assigned,
    "set_": lambda w: torch.empty(0).set_(w.detach()),
    "aten.data": lambda w: torch.ops.aten.data(w),
    "data in a script": data_of_script,
    "unsafe_chunk": lambda w: w.unsafe_chunk(1)[0],
    "_unsafe_view": lambda w: torch.ops.aten._unsafe_view(w, w.shape),
    "values of a sparse tensor": lambda w: torch.sparse_coo_tensor(
        torch.arange(len(w))[None], w, check_invariants=False
    )._values(),
}


@pytest.mark.parametrize("name", ALIASES)
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_while_another_tensor_holds_the_memory_a_weight_is_cast_in_each_call(name: str) -> None:
    hmp.convert()
    w = weight(16, 32, requires_grad=False)
    for _ in range(3):
        F.linear(X, w)
    alias = ALIASES[name](w)
    for value in (100.0, 200.0):
        alias.view(-1)[5] = value
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().clone().bfloat16()))


def test_a_pointer_is_not_forgotten_when_the_memory_changes_hands() -> None:
    hmp.convert()
    w = weight(16, 32, requires_grad=False)
    F.linear(X, w)
    element = ctypes.c_float.from_address(w.data_ptr() + 20)
    former = w.data
    w.data = torch.randn(16, 32)
    F.linear(X, w)
    w.data = former
    del former
    second = nn.Parameter(w.detach(), requires_grad=False)
    del w
    for value in (1.0, 100.0):
        element.value = value
        assert torch.equal(F.linear(X, second), F.linear(X, second.detach().clone().bfloat16()))


SAVING: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (F.linear, (4, 32), (16, 32)),
    "matmul": (torch.matmul, (4, 32), (32, 16)),
    "conv2d": (F.conv2d, (1, 4, 8, 8), (8, 4, 3, 3)),
}

#: Other uses that an offloader has for the memory of what it has packed.
REUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "emptied": lambda packed: setattr(packed, "data", packed.new_empty(0)),
    "exchanged": lambda packed: setattr(packed, "data", torch.zeros_like(packed)),
    "overwritten": lambda packed: packed.data.zero_(),
    "freed": lambda packed: packed.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("reuse", REUSED)
@pytest.mark.parametrize("name", SAVING)
def test_what_a_hook_of_saved_tensors_packs_may_be_given_another_use(
    name: str, reuse: str, requires_grad: bool
) -> None:
    call, of_input, of_weight = SAVING[name]
    w = weight(*of_weight, requires_grad=requires_grad)
    x = torch.randn(of_input, requires_grad=True)
    hmp.convert()
    packed: list[torch.Tensor] = []

    def pack(saved: torch.Tensor) -> Any:
        if isinstance(saved, nn.Parameter) or saved.shape == x.shape:
            return saved, None
        packed.append(saved)
        return None, saved.clone()

    for step in range(4):
        wanted = call(x.detach().bfloat16(), w.detach().bfloat16())
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1] if kept[0] is None else kept[0]):
            result = call(x, w)
        assert packed
        while packed:
            REUSED[reuse](packed.pop())
        assert torch.equal(result, wanted)
        (given,) = torch.autograd.grad(result.float().sum(), x)
        (by_hand,) = torch.autograd.grad(call(x.bfloat16(), w.detach().bfloat16()).float().sum(), x)
        assert torch.equal(given, by_hand)
        if step == 1:
            with torch.no_grad():
                w.add_(1.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda saved: setattr(saved, "data", torch.zeros_like(saved)),
        lambda saved: setattr(saved, "data", saved.new_empty(0)),
        lambda saved: setattr(saved, "data", saved.new_zeros(())),
        lambda saved: saved.resize_(0),
        lambda saved: saved.zero_(),
    ],
)
def test_what_a_graph_saved_is_not_used_again_when_it_was_changed(change: Callable[[torch.Tensor], Any]) -> None:
    hmp.convert()
    w = weight(8, 4, 3, 3, requires_grad=False)
    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    for _ in range(2):
        result: Any = F.conv2d(x, w)
        change(result.grad_fn._saved_weight)
        assert torch.equal(F.conv2d(x, w), F.conv2d(x.bfloat16(), w.bfloat16()))
        w.add_(1.0)
        assert torch.equal(F.conv2d(x, w), F.conv2d(x.bfloat16(), w.bfloat16()))


def test_what_writes_in_python_may_use_the_weight_meanwhile() -> None:
    hmp.convert()
    w = weight(16, 32, requires_grad=False)

    def written(value: float) -> float:
        F.linear(X, w)
        return value + 1

    w.apply_(written)
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().clone().bfloat16()))


@pytest.mark.parametrize("w", [torch.zeros(1).expand(512, 512), torch.randn(600).as_strided((512, 64), (1, 1))])
def test_a_weight_with_gaps_or_overlaps_is_not_kept(w: torch.Tensor) -> None:
    hmp.convert()
    parameter = nn.Parameter(w)
    x = torch.randn(2, w.shape[1])
    for _ in range(3):
        assert torch.equal(F.linear(x, parameter), F.linear(x.bfloat16(), w.bfloat16()))
    assert kept().weights == 0


@pytest.mark.parametrize("name", [*ops.HANDS_OUT_MEMORY, *ops.SILENT_WRITERS, "aten::_fused_adam_"])
def test_what_is_watched_is_no_operation_for_a_list(converted: Converter, name: str) -> None:
    for _ in range(2):
        with pytest.raises(hmp.ListError, match="no operation whose precision"):
            converted(bf16=[name])
        hmp.convert()
    hmp.restore()


def test_an_optimizer_whose_group_is_a_tuple_steps_as_before() -> None:
    hmp.convert()
    w = weight(16, 32)
    optimizer = torch.optim.SGD([w], lr=0.1)
    optimizer.param_groups[0]["params"] = (w,)
    F.linear(X, w).sum().backward()
    optimizer.step()
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))


@pytest.mark.parametrize("shape", [(0, 32), (16, 0)])
def test_an_empty_weight_is_cast_as_before(shape: tuple[int, int]) -> None:
    hmp.convert()
    w = weight(*shape)
    for _ in range(5):
        assert F.linear(torch.ones(3, shape[1]), w).shape == (3, shape[0])


def _loaded(folder: Path, **options: bool) -> nn.Parameter:
    torch.save(weight(16, 32), folder / "weight.pt")
    loaded: nn.Parameter = torch.load(folder / "weight.pt", **options)
    return loaded


#: How a weight comes by its memory.
MADE: dict[str, Callable[[Path], nn.Parameter]] = {
    "by torch": lambda _: weight(16, 32),
    "by torch.load": _loaded,
    "by torch.load, mapped": lambda folder: _loaded(folder, mmap=True),
}


def test_what_numpy_made_is_not_kept() -> None:
    array = np.ones((16, 32), np.float32)
    hmp.convert()
    w = nn.Parameter(torch.from_numpy(array))
    first = F.linear(X, w)
    array[3, 5] = 100
    assert not torch.equal(F.linear(X, w), first)
    assert kept().weights == 0


@pytest.mark.parametrize("made", MADE)
def test_a_weight_that_numpy_had_is_not_kept_again(made: str, tmp_path: Path) -> None:
    hmp.convert()
    w = MADE[made](tmp_path)
    F.linear(X, w)
    assert kept().weights == 1
    w.detach().numpy().sum()
    for _ in range(9):
        F.linear(X, w)
    assert (kept().refused, kept().weights) == (9, 0)


@pytest.mark.parametrize("made", MADE)
def test_drawing_a_weight_costs_one_refresh(made: str, tmp_path: Path) -> None:
    hmp.convert()
    w = MADE[made](tmp_path)
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_histogram("before the first use", w)
        F.linear(X, w)
        for step in range(3):
            writer.add_histogram("weight", w, step)
            F.linear(X, w)
    assert (kept().refreshes, kept().refused, kept().weights) == (3, 0, 1)
    make_np(w)
    F.linear(X, w)
    assert (kept().refused, kept().weights) == (1, 0)


@pytest.mark.parametrize("made", MADE)
def test_a_pointer_to_a_slice_of_the_storage_is_one_to_the_weight(made: str, tmp_path: Path) -> None:
    hmp.convert()
    w = MADE[made](tmp_path)
    w.untyped_storage()[:8].data_ptr()
    F.linear(X, w)
    assert kept().reasons == {"a pointer to it was taken": 1}


def test_a_pointer_to_a_file_is_one_to_the_weights_in_it_but_not_that_to_another_weight(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(3 * 2048))
    file = torch.UntypedStorage.from_file(str(tmp_path / "weights"), False, 3 * 2048)
    w, other = (nn.Parameter(torch.empty(0).set_(file[i : i + 2048], 0, (16, 32))) for i in (0, 2048))
    hmp.convert()
    other.data_ptr()
    F.linear(X, w)
    assert (kept().refused, kept().weights) == (0, 1)
    file.data_ptr()
    w = nn.Parameter(torch.empty(0).set_(file[4096:], 0, (16, 32)))
    F.linear(X, w)
    assert kept().reasons == {"a pointer to it was taken": 1}


def test_saving_a_checkpoint_costs_one_refresh(tmp_path: Any) -> None:
    hmp.convert()
    model = nn.Linear(32, 16)
    for _ in range(3):
        model(X)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    for _ in range(3):
        model(X)
    assert (kept().refreshes, kept().refused, kept().weights) == (2, 0, 2)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_model_out_of_a_pickle_has_its_weights_kept(mapped: bool, tmp_path: Any) -> None:
    torch.save(nn.Linear(32, 16), tmp_path / "model.pt")
    model = torch.load(tmp_path / "model.pt", mmap=mapped, weights_only=False)
    hmp.convert()
    for _ in range(3):
        model(X)
    assert (kept().refused, kept().weights) == (0, 2)


def test_weights_loaded_from_a_file_are_kept(tmp_path: Any) -> None:
    save_file({"weight": torch.randn(16, 32)}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        w = nn.Parameter(file.get_tensor("weight"))
    hmp.convert()
    for _ in range(3):
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert kept().weights in (0, 1)
    with torch.no_grad():
        w.add_(1)
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))


def test_two_precisions_of_one_weight_are_kept_apart() -> None:
    w = weight(16, 32)
    hmp.convert()
    F.linear(X, w)
    hmp.convert(dtype=torch.float16)
    assert torch.equal(F.linear(X.half(), w), F.linear(X.half(), w.detach().half()))
    assert kept().weights == 2
    with torch.no_grad():
        w.add_(1)
    assert torch.equal(F.linear(X.half(), w), F.linear(X.half(), w.detach().half()))
    hmp.convert()
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))


def _made_in_inference_mode() -> nn.Parameter:
    with torch.inference_mode():
        return weight(16, 32)


@pytest.mark.parametrize(
    ("reason", "make", "options"),
    [
        ("others hold its memory", lambda: (w := weight(16, 32), w.detach()), {}),
        ("a pointer to it was taken", lambda: (w := weight(16, 32), w.data_ptr()), {}),
        ("a pointer to it was taken", lambda: (w := weight(16, 32), w.detach().__dlpack__()), {}),
        ("its memory is not torch's own", lambda: (nn.Parameter(torch.from_numpy(np.ones((16, 32), np.float32))),), {}),
        ("nothing counts its changes", lambda: (_made_in_inference_mode(),), {}),
        ("its values have gaps", lambda: (nn.Parameter(torch.ones(1, 32).expand(16, 32)),), {}),
        ("the limit was reached", lambda: (weight(16, 32),), {"weight_cache_limit": 100}),
    ],
)
def test_the_report_tells_why_a_weight_is_not_kept(
    reason: str, make: Callable[[], tuple[Any, ...]], options: dict[str, int]
) -> None:
    hmp.convert(**options)
    w, *_held = make()
    with torch.no_grad():
        for _ in range(3):
            F.linear(X, w)
    assert kept().reasons == {reason: 3}
    assert str(hmp.report(show=False)).endswith(f"not kept 3 times ({reason}: 3)")
    hmp.reset_report()
    assert kept().reasons == {}


def test_the_report_tells_of_kept_casts() -> None:
    hmp.convert()
    w = weight(16, 32)
    for _ in range(3):
        F.linear(X, w)
    assert "kept casts of weights: 1 (0.001 MB, 0 packed), used 2 times" in str(hmp.report(show=False))
    hmp.reset_report()
    assert kept() == hmp.KeptWeights(weights=1, bytes=2 * w.numel())


# ---- what others do ------------------------------------------------------------------------------------------------


def test_results_can_be_swapped_right_after_they_were_made(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.no_grad():
        result, other = torch.mm(torch.eye(4), torch.eye(4)), torch.zeros(4, 4)
    torch.utils.swap_tensors(result, other)
    assert other.dtype is torch.bfloat16


def test_a_weight_is_kept_where_a_tensor_lay_to_which_somebody_took_a_pointer(converted: Converter) -> None:
    converted(bf16=["linear"])

    def kept_of(layers: list[nn.Linear]) -> int:
        before = kept().weights
        with torch.no_grad():
            for layer in layers:
                layer(torch.ones(1, 64))
        return kept().weights - before

    for _ in range(20):
        activations = [torch.empty(64, 64) for _ in range(200)]
        for one in activations:
            one.data_ptr()
        del one, activations
    assert kept_of([nn.Linear(64, 64) for _ in range(50)]) > 80


def test_an_interrupt_while_a_weight_is_looked_at_arrives(
    converted: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted(bf16=["linear"])
    layer, x = nn.Linear(8, 8), torch.ones(2, 8)
    waiting = layer(x)  # its graph is the weight's second owner
    layer.weight.data  # noqa: B018  whose owners are counted again at the next use

    def is_looking(frame: types.FrameType, event: str) -> bool:
        return event == "call" and frame.f_code.co_name == "get_gradient_edge"

    with interrupted(is_looking), pytest.raises(KeyboardInterrupt):
        layer(x)
    waiting.float().sum().backward()
    assert layer(x).dtype is torch.bfloat16


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("how", ["resize_", "resize_as_", "torch.resize_as_", "aten.set_data"])
def test_a_weight_whose_order_in_memory_is_changed_is_cast_again(converted: Converter, mode: str, how: str) -> None:
    converted(bf16=["conv2d"])
    channels_last = torch.channels_last
    change = {
        "resize_": lambda w: w.resize_(w.shape, memory_format=channels_last),
        "resize_as_": lambda w: w.resize_as_(w, memory_format=channels_last),
        "torch.resize_as_": lambda w: torch.resize_as_(w, w, memory_format=channels_last),
        "aten.set_data": lambda w: torch.ops.aten.set_data(w, w.detach().transpose(0, 1)),
    }[how]
    weight, image = nn.Parameter(torch.randn(8, 8, 3, 3), requires_grad=False), torch.randn(1, 8, 6, 6)
    with MODES[mode]():
        for _ in range(6):
            F.conv2d(image, weight)
        assert kept().weights == 1
        change(weight)
        assert torch.equal(F.conv2d(image, weight), F.conv2d(image, weight.clone()))


def test_to_keep_a_cast_runs_no_python_code() -> None:
    """In which the handler of a signal could raise, or no frame be left."""
    hmp.convert()
    x = torch.ones(2, 48)
    called: list[str] = []

    def use(weight: nn.Parameter) -> None:
        sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
        try:
            F.linear(x, weight)
        finally:
            sys.setprofile(None)

    weight = nn.Parameter(torch.ones(48, 48))
    use(weight)
    assert kept().weights == 1
    assert called == []


ENDLESS = """
import sys
import torch
from habana_mp import hmp
hmp.convert()
x, kept = torch.ones(2, 48), []
sys.setrecursionlimit(300)
def down():
    kept.append(torch.nn.Parameter(torch.ones(48, 48)))
    torch.nn.functional.linear(x, kept[-1])
    down()
with torch.set_grad_enabled(sys.argv[1] == "True"):
    try:
        down()
    except RecursionError:
        pass
    del kept[:]
    print(torch.nn.functional.linear(x, torch.nn.Parameter(torch.ones(48, 48))).dtype)
print(hmp.report(show=False).weights.weights)
"""


@pytest.mark.parametrize("records", [False, True])
def test_an_endless_recursion_ends_as_in_plain_torch(records: bool) -> None:
    done = run_script(ENDLESS, str(records))
    assert (done.returncode, done.stdout.split()) == (0, ["torch.bfloat16", "0"]), done.stderr


def test_whoever_is_told_that_a_cast_goes_may_keep_another() -> None:
    hmp.convert()
    x = torch.ones(2, 8)
    others: list[nn.Parameter] = []

    def keep_others(_: Any) -> None:
        for _ in range(40):
            others.append(nn.Parameter(torch.ones(8, 8)))
            F.linear(x, others[-1])

    weights = [nn.Parameter(torch.ones(8, 8)) for _ in range(20)]
    before = all_bfloat16_tensors()
    for weight in weights:
        F.linear(x, weight)
    are_others = {id(one) for one in before}
    told = [weakref.ref(one, keep_others) for one in all_bfloat16_tensors() if id(one) not in are_others]
    assert len(told) == 20
    del weight
    weights.clear()
    assert len(others) == 800
    assert kept().weights == 800
    others.clear()
    assert kept().weights == 0
