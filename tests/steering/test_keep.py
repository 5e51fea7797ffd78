"""``hmp.keep``."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from habana_mp import hmp
from helpers.lists import Converter
from helpers.steered import BF16, FP32, LOWERED, Part, inputs, network, precisions

KEPT = (FP32, FP32)


def test_a_module_is_kept_before_and_after_convert_until_it_is_let_go(converted: Converter) -> None:
    model = network()
    assert hmp.keep(model.layers[0]) is model.layers[0]
    converted(bf16=["linear", "softmax"])
    assert precisions(model(inputs()))[:2] == [KEPT, LOWERED]
    hmp.keep(model.layers[1])
    assert precisions(model(inputs()))[:2] == [KEPT, KEPT]
    hmp.keep(model.layers, precision=None)
    assert precisions(model(inputs()))[:2] == [LOWERED, LOWERED]


def test_the_innermost_kept_module_decides(converted: Converter) -> None:
    model = network()
    hmp.keep(model)
    hmp.keep(model.layers[0], torch.float16)
    hmp.keep(model.layers[0].proj, "bf16")
    converted(bf16=["linear", "softmax"])
    assert precisions(model(inputs())) == [(BF16, torch.float16), KEPT, KEPT, KEPT]


def test_all_modules_of_a_class_are_kept(converted: Converter) -> None:
    @hmp.keep
    class Router(Part):
        pass

    @hmp.keep(precision=torch.float16)
    class Half(Part):
        pass

    model = nn.Sequential(Router(), Half())
    hmp.keep(model[1], precision=None)
    converted(bf16=["linear", "softmax"])
    found = [part(inputs()) for part in (model[0], model[1], Half())]
    assert precisions(found) == [KEPT, LOWERED, (torch.float16,) * 2]
    hmp.keep(Router, precision=None)
    assert precisions([model[0](inputs())]) == [LOWERED]


def test_it_is_a_property_of_the_module_and_not_of_its_state(converted: Converter) -> None:
    model = network()
    names = list(model.state_dict())
    hmp.keep(model.layers[1])
    assert list(model.state_dict()) == names
    other = network()
    other.load_state_dict(model.state_dict())
    converted(bf16=["linear", "softmax"])
    assert precisions(other(inputs()))[1] == LOWERED
    assert precisions(copy.copy(model)(inputs()))[1] == KEPT


@pytest.mark.parametrize("runs_before", [False, True])
def test_a_part_of_a_kept_module_is_kept_when_it_is_called_alone(converted: Converter, runs_before: bool) -> None:
    model = hmp.keep(network())
    converted(bf16=["linear", "softmax"])
    if runs_before:
        model(inputs())
    assert precisions([model.layers[0](inputs())]) == [KEPT]
    assert model.layers[0].proj(inputs()).dtype is FP32
    hmp.keep(model.layers[0], "bf16")
    assert precisions([model.layers[0](inputs())]) == [LOWERED]


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "compiled": lambda module: torch.compile(module, backend="eager"),
    "parallel": nn.DataParallel,
    "checkpointed": lambda module: checkpoint_wrapper(module),
    "twice": lambda module: nn.DataParallel(checkpoint_wrapper(module)),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_is_kept_and_so_is_a_wrapped_part_of_a_kept_module(
    converted: Converter, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    converted(bf16=["linear"])
    assert hmp.keep(wrap(nn.Linear(8, 8)))(inputs()).dtype is FP32
    assert wrap(hmp.keep(nn.Linear(8, 8)))(inputs()).dtype is FP32
    assert wrap(nn.Linear(8, 8))(inputs()).dtype is BF16
    model = hmp.keep(nn.Sequential(nn.Linear(8, 8), Part()))
    part: Any = wrap(model[1])
    assert precisions([part(inputs())]) == [KEPT]


def test_a_module_that_only_runs_in_a_kept_ones_forward_is_not_kept_afterwards(converted: Converter) -> None:
    class Loss(nn.Module):
        def forward(self, network: nn.Module) -> torch.Tensor:
            found: torch.Tensor = network(inputs())
            return found

    converted(bf16=["linear"])
    loss, part = hmp.keep(Loss()), nn.Linear(8, 8)
    assert loss(part).dtype is FP32
    assert part(inputs()).dtype is BF16


def test_restore_forgets_it_also_in_copies_and_files(converted: Converter) -> None:
    model = network()
    hmp.keep(model.layers[1])
    before = pickle.dumps(model)
    hmp.restore()
    after = pickle.dumps(model)
    converted(bf16=["linear", "softmax"])
    for one in (model, copy.deepcopy(model), pickle.loads(after)):
        assert precisions(one(inputs()))[1] == LOWERED
    assert precisions(pickle.loads(before)(inputs()))[1] == KEPT


def test_in_a_kept_module_tensors_that_are_lower_already_become_float32(converted: Converter) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8))
    hmp.keep(list(model)[1:])
    converted(bf16=["linear", "layer_norm", "gelu"])
    assert model[0](inputs()).dtype is BF16
    assert model(inputs()).dtype is FP32
    result = torch.ones(4, 8, dtype=BF16)

    @hmp.keep
    class InPlace(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(torch.ones(4, 8)).add_(1)

    assert InPlace()(result) is result  # rule 3
    assert result.dtype is BF16


@pytest.mark.parametrize("given", [None, "linear", [], [nn.Linear(2, 2), 3], int, lambda x: x])
def test_what_is_no_module_is_refused(given: object) -> None:
    with pytest.raises(TypeError, match=r"`hmp.keep` takes a module, modules, or a class of modules; got "):
        hmp.keep(given)


@pytest.mark.parametrize("given", ["fp23", torch.float64, torch.int8, 32])
def test_an_unknown_precision_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match=r"`precision` must be torch.float32, torch.bfloat16 or torch.float16"):
        hmp.keep(nn.Linear(2, 2), given)
