"""Steps of another kind: errors, shared memory, modes, compiled code, other threads."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from habana_mp import _core, optim
from helpers.optimizers import CLASSES, assert_close, every_class, parameters, set_gradients, state_of

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_sparse_gradient_raises_before_anything_is_written(name: str) -> None:
    params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(8, 4))]
    params[0].grad = torch.ones(16)
    params[1].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        CLASSES[name][0](params).step()
    assert torch.equal(params[0], torch.ones(16))


def test_what_torch_refuses_is_refused_before_anything_is_written() -> None:
    params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(8, 4))]
    params[0].grad = torch.ones(16)
    params[1].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optim.SGD(params, lr=0.1, momentum=0.9, fused=True).step()
    assert torch.equal(params[0], torch.ones(16))


class Own(Tensor):
    pass


@pytest.mark.parametrize("kind_of_tensor", [Tensor, Own])
@every_class
def test_weights_that_share_memory_are_stepped_in_order(name: str, kind_of_tensor: type, taken: list[int]) -> None:
    results = []
    for kind in CLASSES[name]:
        memory = torch.arange(96.0)
        params = [torch.nn.Parameter(memory[:64]), torch.nn.Parameter(memory[32:].as_subclass(kind_of_tensor))]
        optimizer = kind(params, lr=0.1, weight_decay=0.1)
        for step in range(3):
            set_gradients(params, step)
            optimizer.step()
        results.append(memory)
    assert torch.equal(*results)
    assert taken == [0, 0, 0]


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_a_count_of_steps_that_two_weights_share_goes_on_in_order(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = [torch.nn.Parameter(torch.ones(16)), torch.nn.Parameter(torch.ones(16, dtype=torch.float64))]
        optimizer = kind(params, lr=0.1)
        for factor in (1.0, -0.5):
            for param in params:
                param.grad = factor * torch.ones_like(param)
            optimizer.step()
            optimizer.state[params[1]]["step"] = optimizer.state[params[0]]["step"]
        results.append([*params, *state_of(optimizer)])
    assert_close(*results)


def test_a_weight_that_is_its_own_gradient_is_torchs(taken: list[int]) -> None:
    param = torch.nn.Parameter(torch.arange(64.0))
    param.grad = param.detach()
    optim.SGD([param], lr=0.5).step()
    assert torch.equal(param, torch.arange(64.0) / 2)
    assert taken == [0]


def test_capturable_is_refused_as_by_torch() -> None:
    params = parameters()
    set_gradients(params, 0)
    with pytest.raises(AssertionError, match="capturable"):
        optim.AdamW(params, capturable=True).step()


@pytest.mark.parametrize("name", ["AdamW", "Adam"])
def test_capturable_is_nothing_to_the_fused_step_whatever_the_strides(name: str) -> None:
    def step(kind: Any, value: Tensor, grad: Tensor, **options: Any) -> Tensor:
        param = torch.nn.Parameter(value)
        param.grad = grad
        kind([param], lr=0.1, **options).step()
        return param

    ours, theirs = CLASSES[name]
    options = {"fused": True, "capturable": True}
    images = torch.ones(8, 4, 1, 1).to(memory_format=torch.channels_last)
    assert torch.equal(*(step(kind, torch.ones(8, 4, 1, 1), images, **options) for kind in (ours, theirs)))
    # Where weights have gaps torch's fused step is wrong, and ours is the for-loop.
    with_gaps = step(ours, torch.ones(16, 4)[::2], torch.ones(8, 4), **options)
    assert torch.equal(with_gaps, step(theirs, torch.ones(8, 4), torch.ones(8, 4), foreach=False))


@every_class
def test_a_scale_is_for_the_fused_step_only(name: str) -> None:
    for kind in CLASSES[name]:
        params = parameters()
        set_gradients(params, 0)
        optimizer = kind(params, lr=0.1)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(0.0)
        with pytest.raises(AssertionError, match="grad_scale"):
            optimizer.step()
        assert all(torch.equal(*both) for both in zip(params, parameters(), strict=True))


@every_class
def test_a_differentiable_step_is_recorded(name: str, taken: list[int]) -> None:
    results = []
    for kind in CLASSES[name]:
        gradient = torch.linspace(0.1, 1, 16).requires_grad_()
        weight = torch.ones(16).requires_grad_().clone()
        weight.grad = gradient
        kind([weight], lr=0.1, differentiable=True, weight_decay=0.1).step()
        (weight**2).sum().backward()
        results.append(gradient.grad)
    assert torch.equal(*results)
    assert not taken


@every_class
def test_dispatch_modes_see_what_torch_does(name: str, taken: list[int]) -> None:
    seen: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    params = parameters()
    optimizer = CLASSES[name][0](params, lr=0.1)
    set_gradients(params, 0)
    with Watch():
        optimizer.step()
    assert any("add" in one for one in seen)
    assert taken == [0]


@every_class
def test_weights_without_memory_are_torchs(name: str) -> None:
    with FakeTensorMode():
        params = [torch.nn.Parameter(torch.ones(16))]
        params[0].grad = torch.ones(16)
        CLASSES[name][0](params, lr=0.1).step()
    param = torch.nn.Parameter(torch.ones(16, device="meta"))
    param.grad = torch.ones(16, device="meta")
    CLASSES[name][0]([param], lr=0.1).step()
    zero = torch.nn.Parameter(torch.ones(16))
    zero.grad = torch._efficientzerotensor(16)
    CLASSES[name][0]([zero], lr=0.1, weight_decay=0).step()
    assert torch.equal(zero, torch.ones(16))


@every_class
def test_a_lazy_clone_keeps_its_values(name: str) -> None:
    original = torch.ones(64)
    clone = torch._lazy_clone(original)
    param = torch.nn.Parameter(clone)
    param.grad = torch.ones(64)
    CLASSES[name][0]([param], lr=0.1).step()
    assert torch.equal(original, torch.ones(64))
    assert not torch.equal(param, original)


@every_class
def test_weights_of_inference_mode_are_refused_outside_as_by_torch(name: str) -> None:
    with torch.inference_mode():
        weight = torch.ones(16)
    weight.grad = torch.ones(16)
    with pytest.raises(RuntimeError, match="inference tensor"):
        CLASSES[name][0]([weight], lr=0.1).step()


@every_class
def test_a_step_in_inference_mode_is_a_step(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters()
        set_gradients(params, 0)
        with torch.inference_mode():
            kind(params, lr=0.1, fused=True).step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@every_class
def test_a_compiled_step_is_a_step(name: str) -> None:
    results = []
    for kind in CLASSES[name]:
        params = parameters([(16,), (8, 8)])
        optimizer = kind(params, lr=0.1)
        step = torch.compile(optimizer.step, backend="eager")
        for number in range(3):
            set_gradients(params, number)
            step()
        results.append(params)
    assert_close(*results)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_rate_in_a_tensor_breaks_no_graph_that_torchs_step_leaves_whole(name: str) -> None:
    breaks = []
    for kind in CLASSES[name]:
        torch._dynamo.reset()
        counters.clear()
        params = parameters([(16,), (8, 8)])
        optimizer = kind(params, lr=torch.tensor(0.1))
        step = torch.compile(lambda optimizer=optimizer: optimizer.step(), backend="eager")
        for number in range(3):
            set_gradients(params, number)
            step()
        breaks.append({reason.split("\n")[0] for reason in counters["graph_break"]})
    # Torch 2.15 does not look into the state of a class that it does not know.
    assert breaks[0] - {"Skip inlining `torch.compiler.disable()`d function"} <= breaks[1]


@every_class
def test_other_threads_run_during_a_step(name: str) -> None:
    params = parameters([(1 << 22,)])
    set_gradients(params, 0)
    optimizer = CLASSES[name][0](params, lr=0.1)
    optimizer.step()
    stop, counted = threading.Event(), [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)  # gives the GIL up at once, and asks for it again

    thread = threading.Thread(target=count)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # nobody has to give it up because of the time
    try:
        before = counted[0]
        for _ in range(300):
            optimizer.step()
            if counted[0] != before:
                break
        assert counted[0] > before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_lists_of_different_lengths_are_refused() -> None:
    weight = [torch.ones(4)]
    for wrong in ({"grads": []}, {"states": [[]]}, {"lowers": []}, {"steps": [None, None]}, {"states": [weight] * 4}):
        given: dict[str, Any] = {"params": weight, "grads": weight, "states": [], "steps": [], "lowers": [None]}
        with pytest.raises(ValueError, match="as long as that of the parameters"):
            _core.StepPlan(**(given | wrong), writes_grads=False)
