"""Activation checkpointing: the second run of a block sees exactly the casts of the first, whatever is on by then."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import checkpoint as checkpointing
from torch.utils.checkpoint import (
    checkpoint,  # taken before convert
)

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.each import each
from helpers.probes import BF16, FP32, M, N
from helpers.processes import in_threads

KINDS = {"reentrant": True, "plain": False}

pytestmark = pytest.mark.filterwarnings("ignore:torch.autocast is enabled")


Block = Callable[[torch.Tensor], torch.Tensor]
Context = Callable[[], Any]
STATES: dict[str, Context] = {
    "casts": contextlib.nullcontext,
    "disabled": hmp.disable_casts,
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast": lambda: torch.autocast("cpu", dtype=BF16),
}


class Mixed(nn.Module):
    """Listed and unlisted operations, and a part under a state of its own."""

    def __init__(self, inner: str = "casts") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = inner
        self.dense, self.norm, self.out = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 4)
        self.weight = nn.Parameter(N.clone())
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with STATES[self.inner]():
            part = torch.relu(torch.mm(x.float(), self.weight).float())  # torch.autocast leaves relu alone
        self.seen.append(part.dtype)
        hidden = F.gelu(self.norm(self.dense(part.float())))
        self.seen.append(hidden.dtype)
        return torch.softmax(self.out(hidden.float()), -1).float() + x.float()


def gradients(model: nn.Module, call: Callable[..., torch.Tensor], before: str = "casts", after: str = "casts") -> Any:
    """The result and all gradients, of a forward and a backward in the named states."""
    x = M.clone().requires_grad_()
    torch.manual_seed(1)
    with STATES[before]():
        out = call(model, x)
    with STATES[after]():
        out.float().pow(2).sum().backward()
    return out.dtype, [x.grad, *(one.grad for one in model.parameters())]


def plainly(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x)


def assert_same_runs(got: Any, wanted: Any) -> None:
    assert got[0] is wanted[0]
    assert_same(got[1], wanted[1])


@pytest.fixture(autouse=True)
def default_policy(one_thread: None) -> None:
    hmp.convert()


@each("kind", KINDS)
@each("inner", STATES)
@each("before", STATES)
@each("after", STATES)
def test_gradients_are_those_without_checkpointing_in_every_state(
    before: str, after: str, inner: str, kind: str
) -> None:
    expected = gradients(Mixed(inner), plainly, before, after)
    model = Mixed(inner)
    again = functools.partial(checkpoint, use_reentrant=KINDS[kind])
    assert_same_runs(gradients(model, again, before, after), expected)
    assert len(model.seen) == 4
    assert model.seen[:2] == model.seen[2:]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("state", ["casts", "disabled"])
def test_a_block_that_raises_in_either_run_leaves_the_state_right(kind: str, state: str) -> None:
    fails = [True]

    def block(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, N)
        if fails[0]:
            raise KeyError("the block")
        return torch.exp(out) * out

    x = M.clone().requires_grad_()
    with STATES[state](), pytest.raises(KeyError, match="the block"):
        checkpoint(block, x, use_reentrant=KINDS[kind])
    assert torch.mm(M, N).dtype is BF16
    fails[0] = False
    with STATES[state]():
        out = checkpoint(block, x, use_reentrant=KINDS[kind])
    fails[0] = True
    with pytest.raises(KeyError, match="the block"):
        out.sum().backward()
    assert torch.mm(M, N).dtype is BF16
    with hmp.disable_casts():
        assert torch.mm(M, N).dtype is FP32


def test_a_second_run_under_no_policy_is_an_error_and_no_wrong_gradient() -> None:
    out = checkpoint(Mixed(), M.clone().requires_grad_(), use_reentrant=False)
    hmp.restore()
    with pytest.raises(torch.utils.checkpoint.CheckpointError, match="different metadata"):
        out.sum().backward()


class Nested(nn.Module):
    """A checkpointed block inside a checkpointed block, each in a state of its own."""

    def __init__(self, kinds: tuple[bool, bool] | None, states: tuple[str, str]) -> None:
        super().__init__()
        self.kinds, self.states = kinds, states
        self.first, self.second = Mixed("disabled"), Mixed()

    def run(self, depth: int, block: Block, x: torch.Tensor) -> torch.Tensor:
        with STATES[self.states[depth]]():
            return block(x) if self.kinds is None else checkpoint(block, x, use_reentrant=self.kinds[depth])

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(1, self.first, torch.mm(x, N)) + self.second(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.run(0, self.inner, x))


@each("kinds", [(a, b) for a in (True, False) for b in (True, False)])
@each("states", [("casts", "disabled"), ("disabled", "casts"), ("autocast", "autocast off")])
@each("after", ["casts", "disabled"])
def test_checkpoints_nest_in_both_kinds(kinds: tuple[bool, bool], states: tuple[str, str], after: str) -> None:
    expected = gradients(Nested(None, states), plainly, after=after)
    assert_same_runs(gradients(Nested(kinds, states), plainly, after=after), expected)


@each("before, after", [("casts", "disabled"), ("disabled", "casts"), ("casts", "casts")])
@each("policy", ["products", "everything", "nothing"])
def test_selective_checkpointing_gives_the_same_gradients(policy: str, before: str, after: str) -> None:
    kept: list[Any] = []

    def decide(_: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
        product = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        kept.append((operation, [one.dtype for one in args if isinstance(one, torch.Tensor)]))
        save = policy == "everything" or (product and policy == "products")
        policies = checkpointing.CheckpointPolicy
        return policies.MUST_SAVE if save else policies.PREFER_RECOMPUTE

    contexts = functools.partial(checkpointing.create_selective_checkpoint_contexts, decide)
    expected = gradients(Mixed(), plainly, before, after)
    call = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
    assert_same_runs(gradients(Mixed(), call, before, after), expected)
    kind = FP32 if before == "disabled" else BF16
    assert (torch.ops.aten.mm.default, [kind, kind]) in kept


@each("kind", KINDS)
@each("before", ["casts", "disabled"])
@each("there", ["casts", "disabled"])
def test_a_backward_in_another_thread_and_state_gives_the_same_gradients(kind: str, before: str, there: str) -> None:
    expected = gradients(Mixed(), plainly, before)
    model, x = Mixed(), M.clone().requires_grad_()
    with STATES[before]():
        out = checkpoint(model, x, use_reentrant=KINDS[kind])
    after: list[torch.dtype] = []

    def work(_: int) -> None:
        with STATES[there]():
            out.float().pow(2).sum().backward()
        after.append(torch.mm(M, N).dtype)

    in_threads(work, 1)
    assert_same_runs((out.dtype, [x.grad, *(one.grad for one in model.parameters())]), expected)
    assert after == [BF16]


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("before", ["casts", "disabled"])
def test_a_compiled_checkpointed_block_gives_the_gradients_of_the_plain_one(before: str) -> None:
    def call(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model.product, x, model.weight, use_reentrant=False)

    class Simple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(N.clone())

        def product(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return torch.softmax(torch.relu(torch.mm(x, weight)), -1)

    expected = gradients(Simple(), call, before, "casts")
    for after in ("casts", "disabled"):
        got = gradients(Simple(), torch.compile(call, backend="aot_eager", fullgraph=True), before, after)
        assert_same_runs(got, expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["fp32", "bf16"])
def test_a_block_inside_of_a_wrapped_function_is_run_again_with_silent_lists(kind: str, to: str) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.exp(torch.mm(x, N.to(x.dtype))), -1)

    checked = hmp.op_wrap(functools.partial(checkpoint, block, use_reentrant=KINDS[kind]), to=to)
    grads = []
    for function in (hmp.op_wrap(block, to=to), checked):
        x = M.clone().requires_grad_()
        out = function(x)
        assert out.dtype is (FP32 if to == "fp32" else BF16)
        out.backward(N.to(out.dtype))
        grads.append(x.grad)
    assert torch.equal(*grads)


def leave_casts() -> None:
    with hmp.disable_casts():
        pass


@pytest.mark.parametrize(
    "what",
    [
        leave_casts,
        lambda: checkpoint(torch.sin, M.clone().requires_grad_(), use_reentrant=False),
        lambda: checkpoint(torch.sin, M.clone().requires_grad_(), use_reentrant=True).sum().backward(),
    ],
    ids=["disable_casts", "plain", "reentrant"],
)
def test_within_autocast_that_is_off_casts_begin_again_where_it_is_on_whatever_came_before(
    what: Callable[[], Any],
) -> None:
    def inside() -> torch.dtype:
        with torch.autocast("cpu", dtype=BF16):
            return torch.relu(M).dtype  # torch.autocast leaves relu alone

    with torch.autocast("cpu", enabled=False):
        assert inside() is BF16
        what()
        assert torch.relu(M).dtype is FP32
        assert inside() is BF16
        with hmp.disable_casts():
            assert inside() is FP32
        assert inside() is BF16


def test_a_block_in_a_backward_that_repeats_a_forward_runs_by_the_lists() -> None:
    dtypes = []

    class Repeated(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                made = checkpoint(lambda y: y @ N, x.detach().requires_grad_(), use_reentrant=False)
            dtypes.append(made.dtype)
            return gradient

    hmp.convert()
    Repeated.apply(M.clone().requires_grad_()).sum().backward()  # type: ignore[no-untyped-call]  # torch's has no types
    assert dtypes == [BF16]
