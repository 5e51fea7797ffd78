"""The optimizers are torch's classes: states, groups, schedulers, closures, hooks, scalers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from habana_mp import optim
from helpers.optimizers import (
    CLASSES,
    assert_close,
    assert_same_optimizers,
    every_class,
    every_option,
    make,
    pair,
    parameters,
    set_gradients,
    state_of,
)

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]


@every_option
def test_states_can_be_exchanged_with_torch_in_both_directions(name: str, options: dict[str, Any]) -> None:
    options = options | {"fused": True}
    ours, theirs, params, others = pair(name, options)
    for step in range(4):
        set_gradients(params, step)
        set_gradients(others, step)
        ours.step()
        theirs.step()
        mine, expected = ours.state_dict(), theirs.state_dict()
        assert mine["state"].keys() == expected["state"].keys()
        for group, other in zip(mine["param_groups"], expected["param_groups"], strict=True):
            assert group.keys() == other.keys()
        # Each goes on with what the other has.
        ours_class, torch_class = CLASSES[name]
        ours, theirs = make(ours_class, params, options), make(torch_class, others, options)
        ours.load_state_dict(copy.deepcopy(expected))
        theirs.load_state_dict(copy.deepcopy(mine))
    assert_same_optimizers(ours, theirs)


@every_class
def test_it_is_torchs_class(name: str) -> None:
    ours, torchs = CLASSES[name]
    assert issubclass(ours, torchs)
    assert isinstance(ours(parameters(), lr=0.1), torch.optim.Optimizer)


@every_class
def test_pickled_and_copied_optimizers_go_on(name: str) -> None:
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    optimizer.step()
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        mine = other.param_groups[0]["params"]
        set_gradients(mine, 1)
        other.step()
    set_gradients(params, 1)
    optimizer.step()
    assert_same_optimizers(optimizer, other)


@every_class
def test_groups_have_their_own_options(name: str) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, True), strict=True):
        params = parameters()
        optimizer = kind([{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:3]}], lr=0.1, fused=fused)
        optimizer.add_param_group({"params": params[3:], "lr": 0.3, "maximize": True})
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        results.append(optimizer)
    assert_same_optimizers(*results)


@every_class
def test_a_scheduler_sets_the_rate(name: str) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, True), strict=True):
        params = parameters()
        optimizer = kind(params, lr=0.1, fused=fused)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=6, cycle_momentum="Adam" in name)
        for step in range(5):
            set_gradients(params, step)
            optimizer.step()
            scheduler.step()
        results.append(optimizer)
    assert_same_optimizers(*results)


@every_class
def test_a_closure_is_called_with_gradients_enabled_and_its_loss_returned(name: str) -> None:
    params = parameters([(16,)])
    optimizer = CLASSES[name][0](params, lr=0.1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    first = params[0].detach().clone()
    assert optimizer.step(closure) == (first**2).sum()
    assert not torch.equal(params[0], first)
    assert torch.equal(params[0].grad, 2 * first)


@every_class
def test_hooks_run_once_around_a_step(name: str) -> None:
    CLASSES[name][1](parameters(), lr=0.1)  # torch wraps the step of each class as it is used
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    set_gradients(params, 0)
    optimizer.step()
    assert calls == ["before", "after"]


@every_class
def test_weights_without_gradients_are_left_alone(name: str) -> None:
    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)
    assert not optimizer.state[params[1]].get("step")  # Adagrad's begin with zero
    optimizer.zero_grad()
    optimizer.step()


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize(("name", "options"), [("AdamW", {}), ("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9})])
def test_a_grad_scaler_skips_infinite_gradients_and_scales_the_others(
    name: str, options: dict[str, Any], fused: bool | None
) -> None:
    results = []
    for kind, implementation in zip(CLASSES[name], (fused, True), strict=True):
        params = parameters()
        optimizer = make(kind, params, options | {"fused": implementation})
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(5):
            scaler.scale(torch.zeros(()))
            set_gradients(params, step, scale=float(scaler.get_scale()))
            if step == 2:
                params[0].grad[3, 3] = float("inf")
            if step == 3:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 512.0
        results.append(optimizer)
    if fused:
        assert_same_optimizers(*results)
    assert_close(*[group["params"] for optimizer in results for group in optimizer.param_groups])


def test_infinite_gradients_of_a_first_step_leave_no_momentum() -> None:
    params = parameters()
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9, fused=True)
    set_gradients(params, 0)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf
    optimizer.step()
    others = parameters()
    theirs = torch.optim.SGD(others, lr=0.1, momentum=0.9, fused=True)
    set_gradients(others, 0)
    theirs.step()
    assert_same_optimizers(optimizer, theirs)


@every_option
def test_every_write_is_counted_once(name: str, options: dict[str, Any]) -> None:
    params = parameters()
    optimizer = make(CLASSES[name][0], params, options)
    set_gradients(params, 0)
    optimizer.step()
    tensors = [*params, *(value for value in state_of(optimizer) if value is not None)]
    gradients = [param.grad for param in params]
    before = [one._version for one in (*tensors, *gradients)]
    optimizer.step()
    after = [one._version for one in (*tensors, *gradients)]
    assert after == [version + 1 for version in before[: len(tensors)]] + before[len(tensors) :]


@every_class
def test_a_backward_that_needs_the_old_weights_raises(name: str) -> None:
    weight = torch.nn.Parameter(torch.randn(8, 8))
    x = torch.randn(8, 8, requires_grad=True)
    loss = (x @ weight).sum()
    weight.grad = torch.randn(8, 8)
    CLASSES[name][0]([weight], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
