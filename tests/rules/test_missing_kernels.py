"""Operations that torch has no kernel for in lower precision run in float32 (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.cases import CASES, NO_KERNEL, Case, differing
from helpers.comparing import assert_same, seeded
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, M

WITHOUT_KERNEL_IN_PYTHON: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "lu": lambda x: torch.lu(x)[0],
    "local_response_norm": lambda x: F.local_response_norm(x.expand(1, 4, 4, 4), 2),
    "lp_pool3d": lambda x: F.lp_pool3d(x.expand(1, 4, 4, 4), 2.0, 2),
}


@pytest.mark.parametrize("name", WITHOUT_KERNEL_IN_PYTHON)
def test_a_function_in_python_without_a_kernel_runs_in_float32(converted: Converter, name: str) -> None:
    call = WITHOUT_KERNEL_IN_PYTHON[name]
    expected = call(M)
    converted(bf16=[name])
    assert_same(call(M), expected)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_an_einsum_of_one_tensor_is_no_product(converted: Converter, precision: str) -> None:
    converted(**{precision: ["einsum"]})
    to, given = (BF16, M) if precision == "bf16" else (FP32, M.bfloat16())
    weight = nn.Parameter(given.clone())
    with torch.no_grad():
        torch.einsum("ii->i", weight).fill_(1)
        torch.einsum(weight, [0, 1], [1, 0])[0, 1] = 2
        assert torch.einsum("ij->", weight).dtype is given.dtype
    assert torch.equal(weight.diagonal(), torch.ones(4, dtype=given.dtype))
    assert weight[1, 0] == 2
    assert torch.einsum("ij,jk->ik", given, given).dtype is to
    assert torch.einsum("ij,j", [given, given[0]]).dtype is to


def test_an_operation_without_a_kernel_writes_into_out() -> None:
    hmp.convert()
    lowered = (M + torch.eye(4)).mm(torch.eye(4))
    expected = torch.linalg.inv(lowered.float())
    given = torch.empty(4, 4)
    assert torch.linalg.inv(lowered, out=given) is given
    assert lowered.dtype is BF16
    assert_same(given, expected)
    values = [torch.empty(0) for _ in range(3)]
    torch.linalg.svd(lowered, out=values)
    assert_same(values, list(torch.linalg.svd(lowered.float())))
    with pytest.raises(RuntimeError, match="BFloat16"):
        torch.linalg.inv(lowered, out=torch.empty(4, 4, dtype=BF16))


def test_operations_without_a_kernel_take_what_was_lowered(converted: Converter) -> None:
    given = []
    for case in CASES:
        if case.name in NO_KERNEL:
            lowered = Case(case.name, case.form, case.call, case.cast(BF16))
            given.append((case, lowered.inputs, lowered.run(lowered.cast(FP32))))
    converted()
    assert differing(given) == {}


@each(
    "made",
    [
        lambda x: torch.distributions.Gamma(x, x),
        lambda x: torch.distributions.Beta(x, x),
        lambda x: torch.distributions.Dirichlet(x),
        lambda x: torch.distributions.StudentT(x),
        lambda x: torch.distributions.Binomial(4, probs=x),
    ],
)
def test_distributions_sample_from_what_was_lowered(converted: Converter, made: Callable[[torch.Tensor], Any]) -> None:
    x = torch.full((8,), 0.5, dtype=BF16)
    expected = seeded(lambda: made(x.float()).sample())
    converted()
    sample = seeded(lambda: made(x).sample())
    assert torch.allclose(sample.float(), expected, rtol=2**-7)


@pytest.mark.parametrize("distribution", ["Beta", "Dirichlet", "Gamma"])
def test_gradients_go_through_samples_of_what_was_lowered(converted: Converter, distribution: str) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        made = getattr(torch.distributions, distribution)
        arguments = (x,) if distribution == "Dirichlet" else (x, x)
        seeded(lambda: made(*arguments).rsample()).float().pow(2).sum().backward()
        assert x.grad is not None
        return x.grad

    x = torch.full((8,), 1.5, dtype=BF16)
    expected = gradient(x.float())
    converted()
    assert torch.allclose(gradient(x).float(), expected, rtol=2**-5, atol=2**-7)


def test_what_was_lowered_is_quantized_as_it_would_be_in_float32(converted: Converter) -> None:
    calls: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: torch.quantize_per_tensor(x, scale=0.1, zero_point=0, dtype=torch.qint8),
        lambda x: torch.quantize_per_channel(x, torch.full((4,), 0.1), torch.zeros(4), 0, torch.qint8),
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False),
    ]
    x = torch.linspace(-1, 1, 16).reshape(4, 4).bfloat16()
    expected = [call(x.float()).int_repr() for call in calls]
    converted()
    assert all(torch.equal(call(x).int_repr(), one) for call, one in zip(calls, expected, strict=True))
    assert {row.precision for row in hmp.report(show=False).rows if row.operation.startswith("quantize")} == {"fp32"}


@pytest.mark.parametrize("lower", [BF16, FP16], ids=str)
def test_more_of_linalg_takes_what_was_lowered(converted: Converter, lower: torch.dtype) -> None:
    square = (torch.eye(4) * 3 + 0.25).to(lower)
    calls: dict[str, Callable[[torch.Tensor], Any]] = {
        "det": torch.det,
        "Tensor.det": lambda x: x.det(),
        "slogdet": torch.linalg.slogdet,
        "logdet": torch.logdet,
        "matrix_exp": torch.matrix_exp,
        "matrix_power": lambda x: torch.linalg.matrix_power(x, -1),
        "pinv": torch.linalg.pinv,
        "lu": torch.linalg.lu,
        "lu_factor": torch.linalg.lu_factor,
        "ldl_factor": torch.linalg.ldl_factor,
        "solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
        "matrix_norm": lambda x: torch.linalg.matrix_norm(x, 2),
        "torch.lu": lambda x: torch.lu(x)[0],
        "svd_lowrank": lambda x: torch.svd_lowrank(x, 2)[1].float() * 0,
        "fftshift of fft": lambda x: torch.fft.fftshift(torch.fft.fft(x)),
        "istft": lambda x: torch.stft(x.flatten(), 4, window=torch.ones(4), return_complex=True),
        "histc": lambda x: torch.histc(x.float()),
        "histogram": lambda x: torch.histogram(x, 3)[0],
        "bessel_j0": torch.special.bessel_j0,
        "zeta": lambda x: torch.special.zeta(x + 2, x + 1),
        "antialias": lambda x: F.interpolate(x[None, None], scale_factor=0.5, mode="bilinear", antialias=True),
        "rrelu": lambda x: torch.rrelu(x, 0.1, 0.1),
    }
    converted(dtype=lower)
    failed = {}
    for name, call in calls.items():
        try:
            call(square)
        except RuntimeError as error:
            failed[name] = str(error)[:100]
    assert failed == {}
