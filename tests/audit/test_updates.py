"""The predicted share of lost updates is that of the next step, and the prediction changes nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

BF16, FP16 = torch.bfloat16, torch.float16
optim = torch.optim


class Noisy(optim.SGD):
    """Uses random numbers, an attribute of its own, and gradients as scratch memory."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.norms: list[torch.Tensor] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                self.norms.append(one.grad.norm())
                one.grad.add_(torch.randn_like(one.grad), alpha=1e-3)
        super().step(closure)


class Failing(Noisy):
    def step(self, closure: Any = None) -> None:
        super().step(closure)
        raise RuntimeError("it fails after it has changed everything")


OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": lambda weights: optim.SGD(weights, 0.1),
    "SGD with momentum": lambda weights: optim.SGD(weights, 1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adam": lambda weights: optim.Adam(weights, 1e-4),
    "AdamW": lambda weights: optim.AdamW(weights, 1e-4, weight_decay=0.1, amsgrad=True),
    "AdamW, foreach": lambda weights: optim.AdamW(weights, 1e-4, foreach=True),
    "AdamW, fused": lambda weights: optim.AdamW(weights, 1e-4, fused=True),
    "Adagrad": lambda weights: optim.Adagrad(weights, 1e-3),
    "Adafactor": lambda weights: optim.Adafactor(weights, 1e-3),
    "RMSprop": lambda weights: optim.RMSprop(weights, 1e-4, momentum=0.9),
    "two groups": lambda weights: optim.AdamW([{"params": weights[:1], "lr": 1e-5}, {"params": weights[1:]}], 1e-4),
}


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))


def backward(model: nn.Module, dtype: torch.dtype) -> None:
    model.zero_grad()
    x = torch.randn(32, 64, dtype=dtype)
    x[:, ::2] = 0  # so that half of the gradients of a layer are zero
    F.cross_entropy(model(x).float(), torch.randint(0, 8, (32,))).backward()


def shares_of_step(
    model: nn.Module, optimizer: optim.Optimizer, make: Callable[..., optim.Optimizer]
) -> dict[str, float]:
    """Makes the step, and returns the share of lost updates of each layer. A model in float32 with the state of the
    optimizer shows which elements the step changes."""
    exact = copy.deepcopy(model).float()
    of_exact = make([*exact.parameters()])
    of_exact.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, other in zip(exact.parameters(), model.parameters(), strict=True):
        one.grad = other.grad.float()
    before = [one.detach().clone() for one in model.parameters()]
    of_exact.step()
    optimizer.step()
    all_of, lost = [], []
    for old, new, other in zip(before, model.parameters(), exact.parameters(), strict=True):
        moved = other != old
        all_of.append(int(moved.sum()))
        lost.append(int((moved & (new == old)).sum()))
    return {name: sum(lost[at : at + 2]) / sum(all_of[at : at + 2]) for name, at in (("0", 0), ("2", 2))}


# The `eps` of the other optimizers is zero in float16, so their steps make NaN.
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, BF16) for name in OPTIMIZERS), ("SGD", FP16), ("SGD with momentum", FP16)]
)
@pytest.mark.parametrize("is_converted", [False, True], ids=["", "converted"])
def test_the_share_of_lost_updates_is_that_of_the_next_step(name: str, dtype: torch.dtype, is_converted: bool) -> None:
    if is_converted:
        hmp.convert(dtype=dtype)
    model, make = network().to(dtype), OPTIMIZERS[name]
    optimizer = make([*model.parameters()])
    largest = 0.0
    for _ in range(4):
        backward(model, dtype)
        found = {one.name: one.lost for one in hmp.audit(model, optimizer).rows if one.kind == "lost updates"}
        share = shares_of_step(model, optimizer, make)
        assert found == pytest.approx(share, rel=0.1)
        largest = max(largest, *share.values())
    assert largest > 0.01


def everything(model: nn.Module, optimizer: optim.Optimizer) -> list[Any]:
    """Returns copies of what an audit could change."""
    tensors = [*model.parameters(), *model.buffers(), *(one.grad for one in model.parameters())]
    tensors += [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return [
        [(id(one), one._version, one.detach().float().tolist()) for one in tensors],
        [(id(key), sorted(state)) for key, state in optimizer.state.items()],
        copy.deepcopy([{**one, "params": None} for one in optimizer.param_groups]),
        sorted(vars(optimizer)),
        len(getattr(optimizer, "norms", ())),
        torch.get_rng_state().tolist(),
        [one.training for one in model.modules()],
        (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), hmp.is_converted()),
        hmp.report(show=False).environment,
        str(hmp.report(show=False)),
    ]


@pytest.mark.parametrize(
    ("make", "is_stepped"),
    [(optim.AdamW, True), (optim.AdamW, False), (optim.LBFGS, False), (Noisy, True), (Failing, False)],
)
@pytest.mark.parametrize("is_converted", [False, True], ids=["", "converted"])
@pytest.mark.usefixtures("counted")
def test_an_audit_changes_nothing(make: Any, is_stepped: bool, is_converted: bool) -> None:
    if is_converted:
        hmp.convert()
    model = nn.Sequential(network(), nn.BatchNorm1d(8)).bfloat16().eval()
    optimizer = make(model.parameters(), lr=1e-3)
    if is_stepped:
        backward(model, BF16)
        optim.lr_scheduler.StepLR(optimizer, 1)  # replaces `step`
        optimizer.step()
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("a hook of the optimizer was called"))
    backward(model, BF16)
    before = everything(model, optimizer)
    found = hmp.audit(model, optimizer)
    assert everything(model, optimizer) == before
    assert not found.healthy
    shares = [one.lost for one in found.rows if one.kind == "lost updates"]
    assert all((one is None) == (make in (optim.LBFGS, Failing)) for one in shares)


def test_an_audit_that_raises_changes_nothing() -> None:
    class Unsaved(nn.Sequential):
        def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
            raise KeyError("weights")

    hmp.convert()
    model = Unsaved(*network()).bfloat16()
    optimizer = optim.AdamW(model.parameters())
    backward(model, BF16)
    before = everything(model, optimizer)
    with pytest.raises(KeyError):
        hmp.audit(model, optimizer)
    assert everything(model, optimizer) == before


def test_weights_without_a_gradient_have_no_known_share() -> None:
    model = network().bfloat16()
    found = hmp.audit(model, optim.AdamW(model.parameters()))
    assert [one.lost for one in found.rows if one.kind == "lost updates"] == [None, None]
    assert "after a backward shows how many" in found.findings[0].text


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (Failing, "RuntimeError: it fails after it has changed everything"),
        (optim.LBFGS, "TypeError: LBFGS.step() missing 1 required positional argument: 'closure'"),
    ],
)
def test_the_error_of_the_copied_step_is_told(make: Callable[..., optim.Optimizer], error: str) -> None:
    model = network().bfloat16()
    backward(model, BF16)
    found = hmp.audit(model, make(model.parameters(), lr=1e-3))
    words = f"It is unknown how many, since the step of a copy of {make.__name__} failed for `0`: {error}. "
    assert words in found.findings[0].text
    assert [one.failed for one in found.rows if one.kind == "lost updates"] == [error, error]
    assert not any(one.failed for one in found.rows if one.kind != "lost updates")


def test_a_step_that_fails_for_one_layer_leaves_the_share_of_the_others() -> None:
    class Square(optim.SGD):
        def step(self, closure: Any = None) -> None:
            if self.param_groups[0]["params"][0].shape[0] == 8:
                raise ValueError("8 rows")
            super().step()

    model = network().bfloat16()
    backward(model, BF16)
    text = hmp.audit(model, Square(model.parameters(), lr=1e-3)).findings[0].text
    assert "the next step of Square rounds " in text
    assert "; the step of a copy of Square failed for `2`: ValueError: 8 rows. " in text


def test_an_optimizer_that_wraps_another_one_is_looked_into() -> None:
    class Wrapper:
        def __init__(self, optimizer: optim.Optimizer) -> None:
            self.optimizer = optimizer

    model = network().bfloat16()
    backward(model, BF16)
    wrapped: Any = Wrapper(optim.AdamW(model.parameters()))
    assert "the next step of AdamW rounds" in hmp.audit(model, wrapped).findings[0].text
