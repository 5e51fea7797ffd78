"""Weights and buffers that are made of lowered results stay float32, and somebody is told (rule 11)."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from habana_mp import HmpWarning, hmp
from habana_mp.patches.torch import stored_values
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP32, M, N
from helpers.processes import in_threads, run_script

SQUARE = torch.linspace(-1, 1, 16).reshape(4, 4)


def warned(make: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [one for one in caught if issubclass(one.category, HmpWarning)]


def product() -> torch.Tensor:
    return torch.mm(M, N)


def parameter_of(values: torch.Tensor) -> nn.Parameter:
    """A Parameter of these values, whatever is warned about."""
    made: list[nn.Parameter] = []
    warned(lambda: made.append(nn.Parameter(values)))
    return made[0]


MEANT: dict[str, Callable[[], Any]] = {
    "converted": lambda: nn.Parameter(nn.Parameter(torch.ones(4)).bfloat16()),
    "view of the converted": lambda: nn.Parameter(nn.Parameter(torch.ones(4, 2)).bfloat16().t()[:1].clone()),
    "lower already": lambda: nn.Parameter(nn.Parameter(torch.ones(4, dtype=BF16)) * 2),
    "split of the converted": lambda: nn.Parameter(nn.Parameter(torch.ones(4, 2)).bfloat16().split([1, 3])[1]),
    "changed in place": lambda: nn.Parameter(torch.zeros(4, 4, dtype=BF16).addmm_(M, N)),
    "raised again": lambda: nn.Parameter((nn.Parameter(torch.ones(4)) * 2).float()),
}


@each("made", MEANT.values())
def test_weights_that_are_meant_so_are_not_warned_about(made: Callable[[], Any]) -> None:
    hmp.convert()
    assert warned(made) == []
    with hmp.disable_casts():
        assert warned(lambda: nn.Parameter(nn.Parameter(torch.ones(4)).bfloat16() * 2)) == []


def test_a_float32_parameter_that_gets_computed_lower_data_is_warned_about() -> None:
    parameter = nn.Parameter(torch.ones(4))
    hmp.convert()

    def average() -> None:
        parameter.data = torch.cat([0.9 * torch.zeros(4)])  # the list has no `cat`

    (caught,) = warned(lambda: [average(), average()])
    assert str(caught.message).startswith("the `.data` of a tensor is assigned a tensor in lower precision")
    with hmp.disable_casts():
        parameter.data = torch.ones(4)
    assert warned(average) == []  # the line was told


def made_state(kind: str, value: torch.Tensor) -> torch.Tensor:
    module = nn.Linear(4, 4)
    module.register_buffer("table", None)
    if kind == "parameter":
        module.weight = nn.Parameter(value, requires_grad=True)
    elif kind == "data":
        module.weight.data = value
    elif kind == "data of a tensor":
        tensor = torch.zeros(4, 4)
        tensor.data = value
        return tensor
    elif kind == "buffer":
        module.register_buffer("table", value)
        return module._buffers["table"]
    else:
        module.table = value
        return module._buffers["table"]
    return module.weight


def test_the_advice_for_outputs_that_a_hook_stores_can_be_followed() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def step(rounds: bool = False) -> torch.Tensor:
        def store(module: nn.Module, _: Any, output: torch.Tensor) -> None:
            module.register_buffer("last", output.float() if rounds else output)

        with model[0].register_forward_hook(store), torch.no_grad():
            model(M)
        return model[0]._buffers["last"]

    hmp.convert(preset="recommended")
    (caught,) = warned(lambda: [step() for _ in range(2)])
    assert "hmp.keep on the module that computes them" in str(caught.message)
    assert "call .float() to store them rounded" in str(caught.message)
    stored_values.forget_warnings()
    assert warned(lambda: step(rounds=True)) == []
    hmp.keep(model[0])
    assert warned(step) == []
    exact = step()
    hmp.restore()
    assert torch.equal(exact, model[0](M).detach())


STATE = ["parameter", "data", "data of a tensor", "buffer", "assigned buffer"]


@pytest.mark.parametrize("place", ["outside", "constructor", "without casts"])
@pytest.mark.parametrize("kind", STATE)
def test_state_made_of_a_lowered_result_stays_float32(kind: str, place: str) -> None:
    class Made(nn.Module):
        def __init__(self, value: torch.Tensor) -> None:
            super().__init__()
            self.made = [made_state(kind, value)]

    def make() -> None:
        value = product()
        if place == "outside":
            made.append(made_state(kind, value))
        elif place == "constructor":
            made.append(Made(value).made[0])
        else:
            with hmp.disable_casts():
                made.append(made_state(kind, value))

    made: list[torch.Tensor] = []
    hmp.convert()
    expected = product()
    (caught,) = warned(lambda: [make(), make()])
    assert caught.filename == __file__
    assert "value" in Path(__file__).read_text().splitlines()[caught.lineno - 1]
    assert "disable_casts" in str(caught.message)
    for one in made:
        assert one.dtype is FP32
        assert torch.equal(one.detach(), expected.float())
        assert one.is_leaf
    hmp.restore()
    if kind in ("parameter", "data"):
        (made[0] @ M).sum().backward()
        assert made[0].grad.dtype is FP32


@pytest.mark.parametrize("kind", STATE)
def test_state_made_of_a_recorded_result_stays_float32(kind: str) -> None:
    weight = nn.Parameter(torch.full((4, 4), 0.7))
    hmp.convert()
    made: list[torch.Tensor] = []
    assert len(warned(lambda: made.append(made_state(kind, weight * 0.3)))) == 1
    assert made[0].dtype is FP32
    assert torch.equal(made[0].detach(), (weight.detach() * 0.3).float())
    # A buffer is a part of the graph that it came from, as in plain torch.
    assert made[0].requires_grad is (kind != "data of a tensor")
    if "buffer" in kind:
        made[0].sum().backward()
        assert weight.grad.dtype is FP32


def test_state_made_of_a_lowered_result_stays_float32_whatever_other_threads_call() -> None:
    hmp.convert()
    value = product()
    kept: list[torch.Tensor] = []
    in_threads(lambda _: kept.extend(product() for _ in range(200)))
    made: list[torch.Tensor] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        in_threads(lambda _: made.append(nn.Parameter(value)), 1)
        made += [nn.Parameter(one) for one in kept[::50]]
    assert [one.dtype for one in made] == [FP32] * 17


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reshaped": lambda value: value.view(2, 8),
    "view of a view": lambda value: value.t()[1:].unsqueeze(0),
    "split": lambda value: value.chunk(2)[1],
}


@each("gradients", [False, True])
@each("view", VIEWS.values())
def test_state_made_of_a_view_of_a_lowered_result_stays_float32(
    view: Callable[[torch.Tensor], torch.Tensor], gradients: bool
) -> None:
    hmp.convert()
    with torch.set_grad_enabled(gradients):
        value = product()
        for shown in (view(value), view(product())):  # the second one alone keeps its result alive
            made = parameter_of(shown)
            assert made.dtype is FP32
            assert torch.equal(made.detach(), shown.float())


def test_what_is_detached_from_a_lowered_result_that_lives_is_one() -> None:
    hmp.convert()
    value = product()
    for shared in (value.detach(), value.data, value.detach().t()):
        assert parameter_of(shared).dtype is FP32


def test_ones_own_tensor_in_memory_that_a_lowered_result_had_is_as_it_was_made() -> None:
    hmp.convert()
    for _ in range(300):
        addresses = {one.untyped_storage()._cdata for one in [product() for _ in range(20)]}
        own = [torch.zeros(4, 4, dtype=BF16) for _ in range(20)]
        assert all(parameter_of(one).dtype is BF16 for one in own)
        if addresses & {one.untyped_storage()._cdata for one in own}:
            return
    pytest.fail("no memory was used again")


def test_a_lowered_result_that_got_other_data_is_no_longer_one() -> None:
    hmp.convert()
    value = product()
    value.data = torch.zeros(4, 4, dtype=BF16)
    assert parameter_of(value).dtype is BF16


def test_each_of_several_results_of_a_lowered_call_is_one(converted: Converter) -> None:
    converted(bf16=["max", "aminmax"])
    for values in (torch.max(M, 0)[0], torch.aminmax(M)[1]):
        assert values.dtype is BF16
        assert parameter_of(values).dtype is FP32


def test_a_lowered_result_of_whole_numbers_stays_what_it_is(converted: Converter) -> None:
    converted(bf16=["argsort", "sort"])
    module = nn.Module()
    with torch.no_grad():
        module.register_buffer("order", torch.argsort(M))
        module.register_buffer("places", torch.sort(M)[1])
    assert module.order.dtype is module.places.dtype is torch.int64


def test_a_sum_in_float32_of_ones_own_bfloat16_is_ones_own(converted: Converter) -> None:
    converted(bf16=["mul"])
    zeros, ones, index = torch.zeros(3, dtype=BF16), torch.ones(5, dtype=BF16), torch.zeros(5, dtype=torch.long)
    assert parameter_of(zeros.index_add(0, index, ones)).dtype is BF16
    assert parameter_of(zeros.index_add(0, index, torch.ones(5) * 1)).dtype is FP32
    assert parameter_of(zeros.index_add(0, index, torch.ones(5))).dtype is FP32


def test_a_graph_of_any_length_shows_that_a_recorded_result_was_lowered() -> None:
    weight = nn.Parameter(torch.ones(4))
    other = nn.Parameter(torch.ones(4, dtype=BF16))
    hmp.convert()
    value = weight * 1
    for _ in range(1500):
        value = value.neg()
    for _ in range(1500):
        other = other.neg()
    assert parameter_of(value + other).dtype is FP32
    assert parameter_of(other).dtype is BF16


def test_a_child_process_knows_what_was_lowered_before_it_was_forked() -> None:
    done = run_script(
        "import os, torch\n"
        "from habana_mp import hmp\n"
        "hmp.convert()\n"
        "value = torch.ones(4, 4) @ torch.ones(4, 4)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    more = [torch.ones(2, 2) @ torch.ones(2, 2) for _ in range(100)]\n"
        "    kept = torch.nn.Parameter(value).dtype is torch.nn.Parameter(more[3]).dtype is torch.float32\n"
        "    os._exit(0 if kept else 7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.nn.Parameter(value).dtype)\n"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["0", "torch.float32"]), done.stderr


def test_restore_drops_the_references_to_lowered_results() -> None:
    hmp.convert()
    values = [product() for _ in range(200)]
    assert all(weakref.getweakrefcount(one) == 1 for one in values)
    hmp.restore()
    assert not any(weakref.getweakrefcount(one) for one in values)
    torch.utils.swap_tensors(values[0], values[1])
    assert parameter_of(values[2]).dtype is BF16


@each("kind", STATE)
def test_a_warning_of_state_that_is_made_an_error_leaves_what_was_there(kind: str) -> None:
    hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HmpWarning):
            made_state(kind, product())
    assert made_state("parameter", torch.ones(2)).dtype is FP32


def test_memory_that_was_freed_is_not_read_as_data_is_assigned() -> None:
    done = run_script(
        "import torch\n"
        "from habana_mp import hmp\n"
        "hmp.convert()\n"
        "for shape in ((), (4, 4)):\n"
        "    former, lower = torch.nn.Parameter(torch.ones(shape)), torch.ones(shape, dtype=torch.bfloat16)\n"
        "    former.untyped_storage().resize_(0)\n"
        "    former.data = lower\n"
        "    other, freed = torch.nn.Parameter(torch.ones(shape)), torch.ones(shape, dtype=torch.bfloat16)\n"
        "    freed.untyped_storage().resize_(0)\n"
        "    other.data = freed\n"
        "    print(other.dtype)\n"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["torch.bfloat16"] * 2), done.stderr


def test_a_buffer_that_a_forward_converts_keeps_its_graph() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.start = nn.Parameter(torch.ones(4))
            self.register_buffer("state", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state = self.start.sigmoid()
            y = self.inner(x)
            self.state = self.state.to(y.dtype)
            return (y + self.state).float().sum()

    model = Recurrent()
    (expected,) = torch.autograd.grad(model(torch.ones(2, 4)), model.start)
    hmp.convert(preset="recommended")
    (found,) = torch.autograd.grad(model(torch.ones(2, 4)), model.start)
    torch.testing.assert_close(found, expected)
    assert model.state.dtype is FP32


def test_a_buffer_that_a_forward_converts_has_memory_of_its_own() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = self.state
            self.state = before.bfloat16()
            self.state.mul_(0.5)
            return before * x

    hmp.convert(preset="recommended")
    model = Halves()
    assert torch.equal(model(torch.ones(4)), torch.ones(4))
    assert torch.equal(model.state, torch.full((4,), 0.5))


def test_a_new_convert_warns_again() -> None:
    module = nn.Linear(2, 2)

    def make() -> None:
        module.register_buffer("table", torch.mm(M, N))

    for _ in range(2):
        hmp.convert()
        assert len(warned(make)) == 1


def test_numpy_gets_float32_of_what_was_lowered() -> None:
    hmp.convert()
    with torch.no_grad():
        cost = SQUARE @ SQUARE
    assert cost.dtype is torch.bfloat16
    assert np.array_equal(np.asarray(cost), cost.float().numpy())
    assert np.array_equal(np.outer(cost, cost), np.outer(cost.float().numpy(), cost.float().numpy()))
    assert np.asarray(SQUARE.half()).dtype == np.float16
    assert np.array_equal(cost.numpy(), cost.float().numpy())
    assert np.array_equal(torch.Tensor.numpy(cost, force=True), cost.float().numpy())
    assert SQUARE.numpy().ctypes.data == SQUARE.data_ptr()
    recorded = SQUARE.clone().requires_grad_() @ SQUARE
    with pytest.raises(RuntimeError, match="requires grad"):
        recorded.numpy()
    assert recorded.numpy(force=True).dtype == np.float32
    for array in (np.asarray, torch.Tensor.numpy):
        with hmp.disable_casts(), pytest.raises(TypeError):
            array(cost)
    hmp.restore()
    with pytest.raises(TypeError):
        cost.numpy()
    hmp.restore()
    with pytest.raises(TypeError):
        np.asarray(cost)
