"""Weights that our kernels cannot step are stepped by torch, beside those that they can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from habana_mp import optim
from helpers.optimizers import CLASSES, assert_close, every_option, make

pytestmark = [pytest.mark.processor, pytest.mark.usefixtures("one_thread")]


def transposed(shape: tuple[int, int]) -> Tensor:
    return torch.randn(shape[::-1], generator=torch.Generator().manual_seed(3)).t()


def channels_last(shape: tuple[int, int, int, int]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("value", [transposed((32, 48)), channels_last((4, 16, 3, 3))], ids=["transposed", "channels"])
@every_option
def test_strides_that_are_alike_are_ours(name: str, options: dict[str, Any], value: Tensor, taken: list[int]) -> None:
    results = []
    for kind, fused in zip(CLASSES[name], (None, False), strict=True):
        param = torch.nn.Parameter(value.clone())
        optimizer = make(kind, [param], options | {"fused": fused})
        for step in range(3):
            param.grad = value.clone().sin_().add_(step)
            optimizer.step()
        assert param.stride() == value.stride()
        results.append(param)
    assert_close([results[0]], [results[1]])
    assert taken == [1, 1, 1]


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("value", "gradient"),
    [
        (transposed((32, 48)), torch.randn(32, 48)),
        (torch.randn(32, 48), transposed((32, 48))),
        (torch.randn(64), torch.ones(1).expand(64)),
        (torch.randn(64), torch.randn(128)[::2]),
        (channels_last((4, 16, 3, 3)), torch.randn(4, 16, 3, 3)),
    ],
    ids=["transposed weight", "transposed gradient", "expanded gradient", "every other", "channels last"],
)
@every_option
def test_strides_that_differ_are_stepped_right(
    name: str, options: dict[str, Any], value: Tensor, gradient: Tensor, fused: bool | None, scaled: bool
) -> None:
    if scaled and (not fused or gradient.stride() == (0,)):
        return  # nobody scales there; one number cannot be scaled 64 times
    param, other = torch.nn.Parameter(value.clone()), torch.nn.Parameter(value.clone())
    ours = make(CLASSES[name][0], [param], options | {"fused": fused})
    theirs = make(CLASSES[name][1], [other], options | {"fused": False})
    for _ in range(3):
        param.grad, other.grad = gradient, gradient.clone()
        if scaled:
            param.grad = torch.empty_strided(gradient.shape, gradient.stride()).copy_(gradient * 4)
            ours.grad_scale, ours.found_inf = torch.tensor(4.0), torch.tensor(0.0)
        ours.step()
        theirs.step()
    assert_close([param], [other])


def a_gap() -> Any:
    return torch.nn.Parameter(torch.arange(64.0)[::2])


def lower() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).bfloat16())


def double() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).double())


def complex_numbers() -> Any:
    return torch.nn.Parameter(torch.complex(torch.arange(32.0), torch.ones(32)))


class OwnTensor(torch.Tensor):
    pass


def own_class() -> Any:
    return torch.nn.Parameter(torch.arange(32.0).as_subclass(OwnTensor))


def negative_view() -> Any:
    return torch.nn.Parameter(torch._neg_view(torch.arange(32.0)))


UNFIT = [a_gap, lower, double, complex_numbers, own_class, negative_view]


@pytest.mark.parametrize("unfit", UNFIT)
@every_option
def test_unfit_weights_go_torchs_way_among_others(
    name: str, options: dict[str, Any], unfit: Callable[[], Any], taken: list[int]
) -> None:
    results = []
    for kind in CLASSES[name]:
        params = [torch.nn.Parameter(torch.arange(16.0)), unfit(), torch.nn.Parameter(torch.arange(48.0))]
        optimizer = make(kind, params, options)
        for step in range(3):
            for param in params:
                param.grad = torch.full_like(param, 0.3 + step)
            optimizer.step()
        results.append(params)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=0, atol=0)
    assert_close([results[0][0], results[0][2]], [results[1][0], results[1][2]])
    assert taken == [2, 2, 2]


def test_a_negative_gradient_is_read_as_such(taken: list[int]) -> None:
    param, other = torch.nn.Parameter(torch.zeros(32)), torch.nn.Parameter(torch.zeros(32))
    param.grad, other.grad = torch._neg_view(torch.ones(32)), -torch.ones(32)
    optim.SGD([param], lr=1.0).step()
    torch.optim.SGD([other], lr=1.0).step()
    assert torch.equal(param, other)
    assert taken == [0]


def test_a_sparse_gradient_is_torchs(taken: list[int]) -> None:
    results = []
    for kind in CLASSES["SGD"]:
        params = [torch.nn.Parameter(torch.ones(8, 4)), torch.nn.Parameter(torch.ones(16))]
        optimizer = kind(params, lr=0.5, momentum=0.9)
        for _ in range(3):
            params[0].grad = torch.sparse_coo_tensor([[0, 3]], torch.ones(2, 4), (8, 4))
            params[1].grad = torch.ones(16)
            optimizer.step()
        results.append(params)
    assert_close(*results)
    assert taken == [1, 1, 1]
