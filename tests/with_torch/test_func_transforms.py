"""torch.func, torch.autograd.functional and forward mode go through the casts as through casts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import FP32, M, N
from helpers.processes import run_script


def test_vmap_equals_a_loop() -> None:
    batch = torch.randn(3, 4, 4)
    hmp.convert()
    for function in (
        lambda x: torch.mm(x, N),
        lambda x: F.linear(x, N),
        lambda x: x @ N * 2,
        lambda x: torch.cat([x, N]),
    ):
        expected = torch.stack([function(one) for one in batch])
        result = torch.func.vmap(function)(batch)
        assert result.dtype is expected.dtype
        torch.testing.assert_close(result, expected)


def loss(w: torch.Tensor) -> torch.Tensor:
    return torch.mm(M, w).float().pow(2).sum()


def loss_by_hand(w: torch.Tensor) -> torch.Tensor:
    return torch.mm(M.bfloat16(), w.bfloat16()).float().pow(2).sum()


@each(
    "transform",
    [
        lambda f: torch.func.grad(f)(N),
        lambda f: torch.func.vmap(torch.func.grad(f))(torch.stack([N, M])),
        lambda f: torch.func.vjp(f, N)[1](torch.tensor(1.0)),
        lambda f: torch.func.jvp(f, (N,), (M,)),
        lambda f: torch.func.linearize(f, N)[1](M),
        lambda f: torch.func.hessian(f)(N[:, :2].contiguous()),
        lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(N),
        lambda f: torch.autograd.functional.jacobian(f, N),
    ],
)
def test_transforms_go_through_the_casts_as_through_those_by_hand(
    converted: Converter, transform: Callable[[Any], Any]
) -> None:
    expected = transform(loss_by_hand)
    converted(bf16=["mm"])
    torch.testing.assert_close(transform(loss), expected)


FUNCTIONALIZED = """
import torch
from habana_mp import hmp
x, y = torch.linspace(0.1, 0.9, 16).reshape(4, 4), torch.linspace(0.9, 0.1, 16).reshape(4, 4)
hmp.convert()
for grad in (False, True):
    for function in (lambda x: torch.mm(x, y), torch.relu, lambda x: torch.cat([x.bfloat16(), y]), torch.log):
        for _ in range(3):
            with torch.set_grad_enabled(grad):
                assert torch.equal(torch.func.functionalize(function)(x), function(x))
print("same")
"""


def test_functionalization_goes_through_the_casts() -> None:
    # In a process of its own: what is wrapped has no memory, and reading it ends the process.
    done = run_script(FUNCTIONALIZED)
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr


def test_forward_mode_gradients_go_through_the_casts(converted: Converter) -> None:
    tangent = torch.randn(4, 4)
    expected = torch.mm(M.bfloat16(), tangent.bfloat16())
    converted(bf16=["mm"])
    for grad in (True, False):
        with torch.set_grad_enabled(grad), fwd.dual_level():
            out = fwd.unpack_dual(torch.mm(M, fwd.make_dual(N, tangent)))
            assert torch.equal(out.tangent, expected)


NORMS = {
    "layer": lambda: nn.LayerNorm(6),
    "batch": lambda: nn.BatchNorm1d(6).eval(),
    "encoder": lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0),
}


@each("norm", NORMS.values())
def test_transforms_go_through_norms_of_lowered_activations(norm: Callable[[], nn.Module]) -> None:
    # The formulas of torch's transforms do not take a float32 weight beside a lower input, as the kernels do.
    model = nn.Sequential(nn.Linear(4, 6), norm(), nn.Linear(6, 2))
    weights, samples = dict(model.named_parameters()), torch.randn(3, 4)

    def loss(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x[None],)).exp().sum()

    plain = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, samples)
    hmp.convert()
    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, samples)
    jacobian = torch.func.jacrev(loss)(weights, samples[0])
    for name in weights:
        for got, expected in ((per_sample[name], plain[name]), (jacobian[name], plain[name][0])):
            assert got.dtype is FP32
            torch.testing.assert_close(got, expected, rtol=0.1, atol=0.05 * expected.abs().max().item() + 1e-3)
    if not isinstance(model[1], nn.TransformerEncoderLayer):  # torch's attention has no forward mode
        tangent = torch.func.jvp(lambda x: loss(weights, x), (samples[0],), (samples[1],))[1]
        expected = torch.func.grad(lambda x: loss(weights, x))(samples[0]) @ samples[1]
        torch.testing.assert_close(tangent.float(), expected.float(), rtol=0.1, atol=0.1)
