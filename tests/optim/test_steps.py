"""AdamW, Adam, SGD and Adagrad against torch's, step by step: bit for bit with its fused ones, and wherever those are
wrong or would not do, with its for-loop."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from habana_mp import _core
from helpers.optimizers import (
    CLASSES,
    SHAPES,
    assert_close,
    assert_same_optimizers,
    every_option,
    make,
    pair,
    parameters,
    set_gradients,
    state_of,
)
from helpers.processes import TESTS

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]


@pytest.mark.parametrize("threads", [1, 2])
@every_option
def test_each_step_has_the_bits_of_the_fused_one(
    name: str, options: dict[str, Any], threads: int, taken: list[int]
) -> None:
    torch.set_num_threads(threads)
    ours, theirs, params, others = pair(name, options, fused=True)
    for step in range(6):
        set_gradients(params, step)
        set_gradients(others, step)
        ours.step()
        theirs.step()
        assert_same_optimizers(ours, theirs)
    assert taken == [len(SHAPES)] * 6


@pytest.mark.parametrize("foreach", [False, True])
@every_option
def test_steps_are_as_close_to_the_other_implementations_as_the_fused_one(
    name: str, options: dict[str, Any], foreach: bool
) -> None:
    if foreach and isinstance(options.get("lr"), Tensor):
        options = options | {"lr": 0.01}
    ours, theirs, params, others = pair(name, options, foreach=foreach)
    fused_params = parameters()
    fused = make(CLASSES[name][1], fused_params, options | {"fused": True})
    for step in range(6):
        for some in (params, others, fused_params):
            set_gradients(some, step)
        for optimizer in (ours, theirs, fused):
            optimizer.step()
        for mine, fused_one, other in zip(params, fused_params, others, strict=True):
            distance = (mine - other).abs()
            assert torch.equal(distance, (fused_one - other).abs())
    assert_close(params, others)


@pytest.mark.parametrize("size", [1, 7, 15, 17, 1000, 4099])
@every_option
def test_arrays_that_fill_no_register_differ_in_the_last_bit_at_most(
    name: str, options: dict[str, Any], size: int
) -> None:
    mine, other = parameters([(size,)]), parameters([(size,)])
    ours_class, torch_class = CLASSES[name]
    ours, theirs = make(ours_class, mine, options), make(torch_class, other, options | {"fused": True})
    for step in range(4):
        set_gradients(mine, step)
        set_gradients(other, step)
        ours.step()
        theirs.step()
    whole = size // 16 * 16
    assert torch.equal(mine[0][:whole], other[0][:whole])
    assert_close(mine, other, rtol=1e-6)
    assert_close(state_of(ours), state_of(theirs), rtol=1e-6)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 1e-42, 3e38, 0.0, -0.0])
@every_option
def test_special_gradients_and_weights_give_what_torch_gives(name: str, options: dict[str, Any], value: float) -> None:
    ours, theirs, params, others = pair(name, options, fused=True)
    for step in range(3):
        for some in (params, others):
            set_gradients(some, step)
            with torch.no_grad():
                some[0].grad[step] = value
                some[1][step::7] = value
                if step == 0:
                    some[4].grad[:] = value
        ours.step()
        theirs.step()
    assert_same_optimizers(ours, theirs)


numbers = st.floats(0, 1, allow_nan=False, width=32)


@settings(deadline=None, max_examples=150)
@given(
    name=st.sampled_from(sorted(CLASSES)),
    shapes=st.lists(st.lists(st.integers(0, 20), max_size=4).map(tuple), min_size=1, max_size=5),
    lr=numbers,
    weight_decay=numbers,
    decays=st.tuples(st.floats(0, 0.999), st.floats(0, 0.9999)),
    flags=st.tuples(st.booleans(), st.booleans()),
    steps=st.integers(1, 4),
    seed=st.integers(0, 2**31),
)
def test_whatever_the_options_and_shapes_torch_gives_the_same(
    name: str,
    shapes: list[tuple[int, ...]],
    lr: float,
    weight_decay: float,
    decays: tuple[float, float],
    flags: tuple[bool, bool],
    steps: int,
    seed: int,
) -> None:
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "maximize": flags[0]}
    if name == "SGD":
        options |= {"momentum": decays[0], "nesterov": flags[1] and decays[0] > 0}
    elif name == "Adagrad":
        options |= {"lr_decay": decays[0], "initial_accumulator_value": decays[1] * flags[1]}
    else:
        options |= {"betas": decays, "amsgrad": flags[1]}
    mine, other = parameters(shapes), parameters(shapes)
    ours = make(CLASSES[name][0], mine, options)
    theirs = make(CLASSES[name][1], other, options | {"fused": True})
    for step in range(steps):
        set_gradients(mine, seed + step)
        set_gradients(other, seed + step)
        ours.step()
        theirs.step()
    for one, expected in zip(mine, other, strict=True):
        whole = one.numel() // 16 * 16
        assert torch.equal(one.flatten()[:whole], expected.flatten()[:whole])
        torch.testing.assert_close(one, expected, rtol=1e-5, atol=1e-6)


PATH_SCRIPT = """
import sys, torch
from helpers.optimizers import CLASSES, OPTIONS, make, parameters, set_gradients, state_of
from habana_mp import _core, optim
from habana_mp.patches.torch import kernel_steps
assert _core.kernels_path() == {path!r}
torch.set_num_threads(int({threads}))
results = []
for name, options in OPTIONS:
    params = parameters([(4099,), (64, 48), (1 << 17,)])
    kept = [torch.empty_like(param, dtype=dtype) for param, dtype in zip(params, (torch.bfloat16, torch.float16) * 2)]
    kernel_steps.casts_to_write = lambda some: kept
    optimizer = make(CLASSES[name][0], params, options)
    for step in range(3):
        set_gradients(params, step)
        optimizer.step()
    results += [*(param.detach() for param in params), *kept, *state_of(optimizer)]
torch.save(results, sys.stdout.buffer)
"""


def results_of(path: str, threads: int) -> list[Tensor]:
    script = PATH_SCRIPT.format(path=path, threads=threads)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=TESTS,
        env=os.environ | {"HABANA_MP_KERNELS": path},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    results: list[Tensor] = torch.load(io.BytesIO(done.stdout))
    return results


@pytest.fixture(scope="module")
def scalar_results() -> list[Tensor]:
    return results_of("scalar", 1)


@pytest.mark.parametrize("path", _core.kernels_paths())
def test_every_instruction_set_and_number_of_threads_gives_the_same_bits(
    path: str, scalar_results: list[Tensor]
) -> None:
    for one, other in zip(results_of(path, 2), scalar_results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_option
def test_weights_in_half_precision_are_stepped_when_fused(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    # torch's own fused SGD leaves them as they are.
    ours_class, torch_class = CLASSES[name]
    start = torch.linspace(-1, 1, 64).to(dtype)
    mine, others = ([torch.nn.Parameter(start.clone())] for _ in range(2))
    ours, theirs = make(ours_class, mine, options | {"fused": True}), make(torch_class, others, options)
    for step in range(3):
        for params, optimizer in ((mine, ours), (others, theirs)):
            params[0].grad = torch.full_like(start, 0.5 + step)
            optimizer.step()
        # Fused steps round once, the others after each operation.
        torch.testing.assert_close(mine[0], others[0], rtol=0.02, atol=0.02)
    assert (mine[0] != start).any()
