"""Changes of a weight are seen by other operations, by copies, and by whatever is made of it."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from habana_mp import hmp
from helpers.comparing import assert_same, tensors
from helpers.seeing_changes import (
    MODES,
    Use,
    X,
    as_by_hand,
    as_by_hand_marks,
    assert_seen,
    assert_seen_in_all_modes,
    backward,
    every_mode,
    main_ways,
    orders_of,
    used,
)
from helpers.weight_changes import WAYS
from helpers.weight_changes.basics import SIZE, Change, layer, noise, write
from helpers.weight_changes.in_place import COLUMN, ROW

pytestmark = as_by_hand_marks


# ---- other operations ------------------------------------------------------------------------------------------------

USES: dict[str, tuple[tuple[int, ...], Use]] = {
    "matmul": ((SIZE, SIZE), lambda x, w, b: torch.matmul(x, w)),
    "@": ((SIZE, SIZE), lambda x, w, b: x @ w),
    "mm of a transposed weight": ((SIZE, SIZE), lambda x, w, b: torch.mm(x, w.transpose(0, 1))),
    "addmm": ((SIZE, SIZE), lambda x, w, b: torch.addmm(b, x, w)),
    "einsum": ((SIZE, SIZE), lambda x, w, b: torch.einsum("ij,jk->ik", x, w)),
    "mv": ((SIZE, SIZE), lambda x, w, b: torch.mv(w, x[0])),
    "bmm": ((2, SIZE, SIZE // 2), lambda x, w, b: torch.bmm(x.view(2, 2, SIZE), w)),
    "conv1d": ((SIZE, SIZE, 1), lambda x, w, b: F.conv1d(x.view(4, SIZE, 1), w, b)),
    "conv2d": ((SIZE, 3, 4, 4), lambda x, w, b: F.conv2d(x.view(1, 3, 8, 8), w, b)),
    "conv_transpose2d": ((3, SIZE, 4, 4), lambda x, w, b: F.conv_transpose2d(x.view(1, 3, 8, 8), w, b)),
}
OF_ANY_SHAPE = (
    *("add_", "uniform_", "data.add_", "alias: data", "alias: numpy", "alias: from_dlpack", "alias: data_ptr"),
    *("alias: view", "alias: detach", "storage[i] = byte", "version kept", "by float64", "by a thread"),
)


@every_mode
@pytest.mark.parametrize("use", USES)
def test_a_change_is_seen_by_another_operation(use: str, mode: str) -> None:
    shape, call = USES[use]
    hmp.convert(preset="torch-cpu" if use == "einsum" else None)  # whose products inside alone are lowered

    def of_this_shape() -> nn.Linear:
        of = layer()
        of.weight = nn.Parameter(of.weight.detach().clone().view(shape))
        return of

    for way in OF_ANY_SHAPE:
        assert_seen_in_all_modes(way, of_this_shape, modes=(mode,), use=call)


@pytest.mark.parametrize("way", ["add_", "uniform_", "data.add_", "alias: numpy", "alias: data", "by float64"])
def test_a_change_of_a_bias_is_seen(way: str) -> None:
    hmp.convert()
    for mode in MODES:
        of, other = layer(), layer()
        other.weight = of.bias
        change = WAYS[way](other)

        def change_bias(n: int, of: nn.Linear = of, other: nn.Linear = other, change: Change = change) -> None:
            change(n)
            of.bias = other.weight

        for _ in range(2):
            assert_seen(of, change_bias, mode)


@main_ways
def test_a_change_is_seen_where_a_weight_is_used_twice(way: str) -> None:
    """The two gradients are summed where one cast, or each its own, sums them."""
    hmp.convert()
    of = layer()
    change = WAYS[way](of)
    for n in orders_of(way):
        for _ in range(3):
            before = used(of, "grad", lambda x, w, b: F.linear(F.linear(x, w, b), w))
        change(n)
        of.zero_grad()
        result = F.linear(F.linear(X, of.weight, of.bias), of.weight)
        weight = of.weight.detach().clone().requires_grad_()
        gradients = []
        for once in (weight.bfloat16(), None):
            lowered = [weight.bfloat16() if once is None else once for _ in range(2)]
            with hmp.disable_casts():
                wanted = F.linear(F.linear(X.bfloat16(), lowered[0], of.bias.detach().bfloat16()), lowered[1])
            assert_same(result, wanted)
            backward(wanted)
            gradients.append(weight.grad)
            weight.grad = None
        assert not torch.equal(result, before)
        backward(result)
        assert any(torch.equal(of.weight.grad, one) for one in gradients)


# ---- many weights, copies, other owners ------------------------------------------------------------------------------


@every_mode
def test_a_weight_in_the_place_of_a_dead_one_is_its_own(mode: str) -> None:
    """Alike but for one element, so that objects, memory and all but one value come again."""
    hmp.convert()
    x, values = X.bfloat16(), torch.rand(SIZE, SIZE)
    objects = set()
    for n in range(400):
        values[ROW, COLUMN] = n % 200
        weight = nn.Parameter(values.clone())
        objects.add(id(weight))
        with MODES[mode]():
            results = [F.linear(X, weight) for _ in range(2)]
        del weight
        with hmp.disable_casts():
            wanted = F.linear(x, values.bfloat16())
        assert_same(results, [wanted, wanted])
        del results
    assert len(objects) < 200  # addresses came again


def saved_and_loaded(of: nn.Linear) -> Any:
    file = io.BytesIO()
    torch.save(of, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[nn.Linear], nn.Linear]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda of: pickle.loads(pickle.dumps(of)),
    "save and load": saved_and_loaded,
}


@every_mode
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_and_its_original_are_two(way: str, mode: str) -> None:
    hmp.convert()
    for which in (0, 1):
        original = layer()
        before = [used(original, mode) for _ in range(3)][-1]
        both = (original, COPIES[way](original))
        assert torch.equal(as_by_hand(both[1], mode), before)
        for n in (1, 2):
            write(both[which].weight, n)
            assert torch.equal(as_by_hand(both[1 - which], mode), before)
            assert not torch.equal(as_by_hand(both[which], mode), before)


def test_a_weight_born_in_inference_mode_is_seen_to_change() -> None:
    hmp.convert()
    with torch.inference_mode():
        of = layer().requires_grad_(False)
    for n in (1, 2, 1, 2):
        for mode, entered in MODES.items():
            for _ in range(3):
                before = used(of, mode)
            with torch.inference_mode():
                write(of.weight, n)
            with entered():
                result = of(X)
            with hmp.disable_casts():
                wanted = F.linear(X.bfloat16(), of.weight.bfloat16(), of.bias.bfloat16())
            assert_same(result, wanted)
            assert not torch.equal(result, before)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(weight, 2 * torch.eye(SIZE))


def doubled(of: nn.Linear) -> nn.Linear:
    parametrize.register_parametrization(of, "weight", Doubled())
    return of


PARAMETRIZATIONS: dict[str, Callable[[nn.Linear], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "weight_norm, in a hook": nn.utils.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "a product": doubled,
}


@every_mode
@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated")
@pytest.mark.parametrize("way", PARAMETRIZATIONS)
def test_a_change_of_what_a_weight_is_made_of_is_seen(way: str, mode: str) -> None:
    """As a new layer with the same state has it."""
    hmp.convert()
    of = PARAMETRIZATIONS[way](layer()).eval()
    for change in (lambda p: p.add_(0.5), lambda p: p.data.add_(0.5), lambda p: p.detach().numpy().__iadd__(0.5)):
        for _ in range(3):
            before = used(of, mode)
        with torch.no_grad():
            for one in of.parameters():
                change(one)
        result = used(of, mode)
        twin = PARAMETRIZATIONS[way](layer()).eval()
        twin.load_state_dict({name: value.clone() for name, value in of.state_dict().items()})
        assert_same(result, used(twin, mode))
        if mode == "grad":
            assert_same([one.grad for one in of.parameters()], [one.grad for one in twin.parameters()])
        assert not torch.equal(result, before)


@every_mode
def test_a_functional_call_and_the_layer_have_each_their_weight(mode: str) -> None:
    hmp.convert()
    of, weights = layer(), [nn.Parameter(noise()) for _ in range(3)]
    for _ in range(3):
        for weight in weights:
            with MODES[mode]():
                result = torch.func.functional_call(of, {"weight": weight}, X)
            with hmp.disable_casts():
                assert_same(result, F.linear(X.bfloat16(), weight.bfloat16(), of.bias.bfloat16()))
            as_by_hand(of, mode)
            write(weight, 2)
        write(of.weight, 1)


@torch.no_grad()
@pytest.mark.parametrize(("collections", "before"), [*itertools.product(range(1, 4), range(4))])
def test_a_weight_that_the_garbage_collector_moves_while_its_cast_is_made_is_followed(
    collections: int, before: int
) -> None:
    """Before Python 3.12 the collector may run wherever an object is made."""
    hmp.convert()
    x = X.bfloat16()
    warm, weight = (nn.Parameter(noise(), requires_grad=False) for _ in range(2))
    F.linear(x, warm)
    others, left = [noise()], list[None]()

    def move(phase: str, _: object) -> None:
        if phase == "start" and left:
            left.pop()
            if not left:
                weight.data = others.pop()

    gc.collect()
    threshold, moving = gc.get_threshold(), [None] * collections
    gc.callbacks.append(move)
    try:
        gc.set_threshold(1, 1000, 1000)
        made = [[] for _ in range(before)]
        left.extend(moving)
        F.linear(x, weight)
        left.clear()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(move)
        del made
    for _ in range(4):
        F.linear(x, weight)
    address = weight.data_ptr()
    F.linear(x, weight)
    address = weight.data_ptr()
    ctypes.c_float.from_address(address + 4 * 5).value = 1000.0  # no value that the core compares
    with hmp.disable_casts():
        expected = F.linear(x, weight.bfloat16())
    assert_same(F.linear(x, weight), expected)


@torch.no_grad()
def test_a_cast_reads_no_memory_that_the_garbage_collector_has_exchanged() -> None:
    hmp.convert()
    x, weight = torch.ones(8, 512), torch.ones(512, 512)

    class Exchanging:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if exchanging:
                weight.data = torch.ones(512, 512)
                torch.full((512, 512), 7.0)  # takes the memory that became free
                Exchanging()

    exchanging, threshold = True, gc.get_threshold()
    try:
        gc.set_threshold(1)
        Exchanging()
        results = [F.linear(x, weight)[0, 0].item() for _ in range(1000)]
    finally:
        exchanging = False
        gc.set_threshold(*threshold)
    assert set(results) == {512.0}


def nonlinear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w).float().square()


Transform = Callable[[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], torch.Tensor], Any]
TRANSFORMS: dict[str, Transform] = {
    "grad": lambda f, w: torch.func.grad(lambda w: f(X, w).sum())(w),
    "vjp": lambda f, w: torch.func.vjp(lambda w: f(X, w), w)[1](torch.ones(4, SIZE)),
    "jvp": lambda f, w: torch.func.jvp(lambda w: f(X, w), (w,), (torch.ones_like(w),)),
    "jvp of the input": lambda f, w: torch.func.jvp(lambda x: f(x, w), (X,), (torch.ones_like(X),)),
    "vmap": lambda f, w: torch.vmap(lambda x: f(x, w))(X),
    "jacrev": lambda f, w: torch.func.jacrev(lambda x: f(x, w))(X[0]),
    "functionalize": lambda f, w: torch.func.functionalize(lambda w: f(X, w))(w),
}


@pytest.mark.parametrize("way", TRANSFORMS)
def test_a_change_is_seen_under_a_transform(way: str) -> None:
    hmp.convert()
    of = layer()
    for n, change in itertools.product((1, 2), (lambda w, n: write(w, n), lambda w, n: write(w.data, n))):
        for _ in range(2):
            used(of, "grad")
            before = TRANSFORMS[way](nonlinear, of.weight)
        change(of.weight, n)
        result = TRANSFORMS[way](nonlinear, of.weight)
        weight = of.weight.detach().clone().requires_grad_()
        with hmp.disable_casts():
            wanted = TRANSFORMS[way](lambda x, w: nonlinear(x.bfloat16(), w.bfloat16()), weight)
        assert_same(result, wanted)
        assert not all(torch.equal(one, other) for one, other in zip(tensors(result), tensors(before), strict=True))
        as_by_hand(of, "grad")
