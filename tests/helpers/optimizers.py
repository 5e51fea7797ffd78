"""The package's optimizers and torch's, with the same weights, gradients and options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from habana_mp import optim

CLASSES = {"AdamW": (optim.AdamW, torch.optim.AdamW), "Adam": (optim.Adam, torch.optim.Adam)}
CLASSES |= {"SGD": (optim.SGD, torch.optim.SGD), "Adagrad": (optim.Adagrad, torch.optim.Adagrad)}
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}),
    ("AdamW", {"weight_decay": 0.0, "betas": (0.3, 0.9)}),
    ("AdamW", {"amsgrad": True, "maximize": True, "eps": 1e-3}),
    ("AdamW", {"lr": torch.tensor(0.01)}),
    ("Adam", {}),
    ("Adam", {"weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"weight_decay": 0.1, "maximize": True, "betas": (0.5, 0.99)}),
    ("SGD", {}),
    ("SGD", {"weight_decay": 0.1, "maximize": True}),
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adagrad", {}),
    ("Adagrad", {"weight_decay": 0.1, "lr_decay": 0.1, "eps": 1e-3}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "maximize": True, "weight_decay": 0.01}),
]
every_option = pytest.mark.parametrize(("name", "options"), OPTIONS, ids=[f"{n}-{'-'.join(o)}" for n, o in OPTIONS])
every_class = pytest.mark.parametrize("name", CLASSES)
#: Whole registers: torch computes the last elements of an array in another way, which changes the last bit.
SHAPES = [(64, 48), (128,), (16, 3, 4, 4), (0, 4), (1 << 17,)]


def parameters(shapes: list[tuple[int, ...]] = SHAPES) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def set_gradients(params: list[Any], step: int, scale: float = 1.0) -> None:
    """Sets gradients that depend only on the step."""
    generator = torch.Generator().manual_seed(step)
    for param in params:
        exponent = torch.randn(param.shape, generator=generator)
        param.grad = torch.randn(param.shape, generator=generator).mul_(10**exponent).mul_(scale)


def make(kind: Any, params: list[Any], options: dict[str, Any]) -> Any:
    return kind(params, **{"lr": 0.01, **options})


def pair(name: str, options: dict[str, Any], **torch_options: Any) -> tuple[Any, Any, list[Any], list[Any]]:
    """Returns the package's optimizer and torch's, and the parameters of each."""
    ours, theirs = parameters(), parameters()
    ours_class, torch_class = CLASSES[name]
    return make(ours_class, ours, options), make(torch_class, theirs, options | torch_options), ours, theirs


def state_of(optimizer: Any) -> list[Any]:
    return [value for param in optimizer.param_groups[0]["params"] for value in optimizer.state[param].values()]


def assert_same_optimizers(ours: Any, theirs: Any) -> None:
    """Asserts equal parameters, gradients and state, bit for bit."""
    for one, other in zip(ours.param_groups, theirs.param_groups, strict=True):
        for param, expected in zip(one["params"], other["params"], strict=True):
            torch.testing.assert_close(param, expected, rtol=0, atol=0, equal_nan=True)
            assert (param.grad is None) == (expected.grad is None)
            if param.grad is not None:
                torch.testing.assert_close(param.grad, expected.grad, rtol=0, atol=0, equal_nan=True)
            assert list(ours.state[param]) == list(theirs.state[expected])
            for key, value in theirs.state[expected].items():
                torch.testing.assert_close(ours.state[param][key], value, rtol=0, atol=0, equal_nan=True)


def assert_close(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=1e-7)
