"""Weights whose memory others hold, lend or exchange: when their casts are cached, and when not."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm_ffi
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from habana_mp import hmp, ops
from helpers.each import each
from helpers.lists import Converter
from helpers.weights import MODES, all_bfloat16_tensors, cached, weight

X = torch.linspace(-1.0, 1.0, 4 * 32).reshape(4, 32).bfloat16()

pytestmark = pytest.mark.usefixtures("counted")


def test_a_weight_that_moved_to_memory_of_others_is_read_where_it_lies_when_they_let_go() -> None:
    hmp.convert()
    w = weight(16, 32)
    F.linear(X, w)
    others = torch.randn(16, 32)
    w.data = others
    F.linear(X, w)
    assert cached().weights == 0
    del others
    for _ in range(5):
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().clone().bfloat16()))
    assert cached().weights == 1


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


@each("requires_grad", [True, False])
@each("reuse", REUSED)
@each("name", SAVING)
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


@each("name", [*ops.find.HANDS_OUT_MEMORY, *ops.find.UNCOUNTED_WRITERS, "aten::_fused_adam_"])
def test_what_is_tapped_is_no_operation_for_a_list(converted: Converter, name: str) -> None:
    with pytest.raises(hmp.ListError, match="no operation whose precision"):
        converted(bf16=[name])


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


@pytest.mark.parametrize(
    "lend", [lambda w: w.numpy(), torch.from_dlpack, tvm_ffi.from_dlpack], ids=["numpy", "torch", "tvm_ffi"]
)
@pytest.mark.parametrize("made", MADE)
def test_while_an_array_lives_a_weight_is_cast_in_each_call(
    made: str, lend: Callable[[torch.Tensor], Any], tmp_path: Path
) -> None:
    hmp.convert()
    w = MADE[made](tmp_path)
    F.linear(X, w)
    lent = lend(w.detach())
    array = torch.as_tensor(lent) if isinstance(lent, np.ndarray) else torch.from_dlpack(lent)
    for value in (1.0, 2.0):
        array[3, 5] = value
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    assert (cached().refused, cached().weights) == (2, 0)
    del array, lent
    for _ in range(3):
        F.linear(X, w)
    assert (cached().refreshes, cached().refused, cached().weights) == (1, 2, 1)


def test_a_graph_that_saved_a_weight_does_not_hide_an_alias() -> None:
    hmp.convert()
    w = weight(128, 32)
    with torch.no_grad():
        F.linear(X, w)
    alias = w.data
    waiting = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda packed: packed):
        for _ in range(4):
            waiting.append((w.view(32, 128).exp() * w.view(32, 128)).sum())
    with torch.no_grad():
        for value in (100.0, 200.0):
            alias.view(-1)[5] = value
            assert torch.equal(F.linear(X, w), F.linear(X, w.detach().clone().bfloat16()))


def test_weights_loaded_from_a_file_are_cast_as_they_are(tmp_path: Any) -> None:
    save_file({"weight": torch.randn(16, 32)}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        w = nn.Parameter(file.get_tensor("weight"))
    hmp.convert()
    for _ in range(3):
        assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))
    with torch.no_grad():
        w.add_(1)
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))


def test_two_precisions_of_one_weight_are_cached_apart() -> None:
    w = weight(16, 32)
    hmp.convert()
    F.linear(X, w)
    hmp.convert(dtype=torch.float16)
    assert torch.equal(F.linear(X.half(), w), F.linear(X.half(), w.detach().half()))
    assert cached().weights == 2
    with torch.no_grad():
        w.add_(1)
    assert torch.equal(F.linear(X.half(), w), F.linear(X.half(), w.detach().half()))
    hmp.convert()
    assert torch.equal(F.linear(X, w), F.linear(X, w.detach().bfloat16()))


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
        assert cached().weights == 1
        change(weight)
        assert torch.equal(F.conv2d(image, weight), F.conv2d(image, weight.clone()))


def test_caching_a_cast_runs_no_python_code() -> None:
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
    assert cached().weights == 1
    assert called == []


def test_whoever_is_told_that_a_cast_goes_may_cache_another() -> None:
    hmp.convert()
    x = torch.ones(2, 8)
    others: list[nn.Parameter] = []

    def cache_others(_: Any) -> None:
        for _ in range(40):
            others.append(nn.Parameter(torch.ones(8, 8)))
            F.linear(x, others[-1])

    weights = [nn.Parameter(torch.ones(8, 8)) for _ in range(20)]
    before = all_bfloat16_tensors()
    for of in weights:
        F.linear(x, of)
    are_others = {id(one) for one in before}
    told = [weakref.ref(one, cache_others) for one in all_bfloat16_tensors() if id(one) not in are_others]
    assert len(told) == 20
    del of
    weights.clear()
    assert len(others) == 800
    assert cached().weights == 800
    others.clear()
    assert cached().weights == 0


@pytest.mark.parametrize("way", ["other.data", "set_"])
def test_a_tensor_that_gets_a_weights_memory_is_an_alias_although_others_hold_the_counter(
    converted: Converter, way: str
) -> None:
    converted(bf16=["linear"])
    layer, x = torch.nn.Linear(256, 256, bias=False), torch.ones(1, 256)
    held = layer.state_dict()  # it holds the version counter, and soon not the memory
    layer.weight.data = layer.weight.detach().clone()
    with torch.no_grad():
        layer(x)
        if way == "set_":
            other = torch.empty(0).set_(layer.weight.data)
        else:
            other = torch.empty(1)
            other.data = layer.weight
        layer(x)
        other[100:105] = 0
        assert torch.equal(layer(x)[0, 100:105], torch.zeros(5, dtype=torch.bfloat16))
    assert held
