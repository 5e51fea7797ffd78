"""Changes of a weight by the steps of optimizers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from habana_mp import hmp
from helpers.weight_changes.basics import COLUMN, ROW, SIZE, Change, floats_at, noise

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class OldStyle(torch.optim.Optimizer):
    """Writes as optimizers did before `no_grad` existed."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def update(self, one: torch.Tensor) -> None:
        one.data.add_(one.grad.data, alpha=-0.1)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                self.update(one)


class OneElement(OldStyle):
    """Writes a single element without torch."""

    def update(self, one: torch.Tensor) -> None:
        floats_at(one.data_ptr())[ROW * SIZE + COLUMN] += 1


def _optimizers() -> Iterator[tuple[str, Any]]:
    optim = torch.optim
    # Rprop does not change a weight after a step that was too large for it.
    rates = {"Adadelta": 50.0, "SGD": 0.5, "Muon": 0.1, "Rprop": 0.01}
    found = [one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    for one in found:
        if one is not optim.Optimizer:
            options = {"lr": rates.get(one.__name__, 0.1)}
            accepted = one.__init__.__code__.co_varnames
            yield one.__name__, partial(one, **options)
            for way in ("foreach", "fused"):
                if way in accepted:
                    yield f"{one.__name__}, {way}", partial(one, **options, **{way: True})
    yield "SGD with momentum", partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, foreach=False)
    yield "AdamW with amsgrad", partial(optim.AdamW, lr=0.1, amsgrad=True, maximize=True)
    for own in (OldStyle, OneElement):
        yield own.__name__, own


OPTIMIZERS: dict[str, Optimizer] = dict(_optimizers())


def steps(make: Optimizer, of: nn.Linear) -> Change:
    optimizer = make([of.weight])

    def change(n: int) -> None:
        x = noise(4, SIZE)

        def closure() -> torch.Tensor:
            of.zero_grad()
            with torch.enable_grad():
                loss = (of(x).float() - n).square().mean()
                loss.backward()
            if isinstance(optimizer, torch.optim.SparseAdam):
                of.weight.grad = of.weight.grad.to_sparse()
            return loss

        closure()
        with hmp.disable_casts():
            optimizer.step(closure if isinstance(optimizer, torch.optim.LBFGS) else None)

    return change


def in_the_backward(of: nn.Linear) -> Change:
    """An optimizer that steps as soon as a gradient exists."""
    optimizer = torch.optim.SGD([of.weight], lr=0.5)
    armed: list[int] = []

    def step(_: torch.Tensor) -> None:
        if armed:
            armed.pop()
            optimizer.step()

    of.weight.register_post_accumulate_grad_hook(step)

    def change(n: int) -> None:
        armed.append(n)
        of(noise(2, SIZE)).sum().backward()

    return change
