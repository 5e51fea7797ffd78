"""Gradients of products can be differentiated, as often as those of torch: a lost term would go unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from habana_mp.patches.torch import products as products_patch
from helpers.each import each

Call = Callable[..., torch.Tensor]
Tensors = Sequence[torch.Tensor]

BF16, FP32 = torch.bfloat16, torch.float32


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # torch derives no other one twice
        return F.scaled_dot_product_attention(q, k, v)


#: Calls, the sizes of their tensors, and the position of the one that is added. `n` is a small or a large size.
CALLS: dict[str, tuple[Call, Callable[[int], Sequence[tuple[int, ...]]], int | None]] = {
    "linear": (F.linear, lambda n: [(n, 9), (n, 9), (n,)], 2),
    "linear of batches": (F.linear, lambda n: [(2, n, 8), (n, 8)], None),
    "linear of a vector": (F.linear, lambda n: [(n,), (9, n), (9,)], 2),
    "linear, one number for all": (F.linear, lambda n: [(n, 9), (n, 9), (1,)], 2),
    "mm": (torch.mm, lambda n: [(n, 9), (9, n)], None),
    "mm of a view": (lambda x, w: x.mm(w.t()), lambda n: [(n, 9), (n, 9)], None),
    "@": (lambda x, w: x @ w, lambda n: [(2, n, 9), (9, n)], None),
    "matmul of batches": (torch.matmul, lambda n: [(2, 3, n, 9), (1, 3, 9, n)], None),
    "matmul of a vector": (torch.matmul, lambda n: [(n, n), (n,)], None),
    "addmm": (torch.addmm, lambda n: [(n,), (n, 9), (9, n)], 0),
    "addmm, scaled": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2.0),
        lambda n: [(n, n), (n, 9), (9, n)],
        0,
    ),
    "mv": (torch.mv, lambda n: [(n, n), (n,)], None),
    "addmv": (torch.addmv, lambda n: [(n,), (n, n), (n,)], 0),
    "dot": (torch.dot, lambda n: [(n * n,), (n * n,)], None),
    "bmm": (torch.bmm, lambda n: [(2, n, 9), (2, 9, n)], None),
    "baddbmm": (lambda b, x, w: torch.baddbmm(b, x, w, alpha=2.0), lambda n: [(2, n, n), (2, n, 9), (2, 9, n)], 0),
    "addbmm": (torch.addbmm, lambda n: [(n, n), (2, n, 9), (2, 9, n)], 0),
    "einsum": (lambda q, k: torch.einsum("bqd,bkd->bqk", q, k), lambda n: [(2, n, 9), (2, n, 9)], None),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), lambda n: [(n, 9), (9, n)], None),
    "inner": (torch.inner, lambda n: [(n, 9), (n, 9)], None),
    "chain_matmul": (torch.linalg.multi_dot, lambda n: [], None),
    "bilinear": (F.bilinear, lambda n: [(n, 5), (n, 6), (7, 5, 6), (7,)], 3),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding="same"), lambda n: [(2, 4, n), (n, 4, 3)], None),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, 2, 1), lambda n: [(2, 4, n, 8), (6, 4, 3, 3), (6,)], 2),
    "conv2d, in groups": (lambda x, w: F.conv2d(x, w, groups=2), lambda n: [(2, 4, n, 8), (6, 2, 3, 3)], None),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=1), lambda n: [(2, 3, 4, n, 5), (4, 3, 3, 3, 3), (4,)], 2),
    "conv_transpose1d": (F.conv_transpose1d, lambda n: [(2, 4, n), (4, 6, 3), (6,)], 2),
    "conv_transpose2d": (
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
        lambda n: [(2, 4, n, 5), (4, 6, 3, 3), (6,)],
        2,
    ),
    "conv_transpose3d": (F.conv_transpose3d, lambda n: [(2, 3, 3, n, 4), (3, 4, 3, 3, 3)], None),
    "attention": (_attention, lambda n: [(1, 2, n, 8)] * 3, None),
}
del CALLS["chain_matmul"]
CALLS["multi_dot"] = (lambda *x: torch.linalg.multi_dot(x), lambda n: [(n, 9), (9, 8), (8, n)], None)
CASES = [
    (name, result)
    for name in CALLS
    for result in ("lower", "lower -> fp32")
    if name != "attention" or ">" not in result
]
LISTED = [
    *["linear", "mm", "matmul", "addmm", "mv", "addmv", "dot", "bmm", "baddbmm", "addbmm", "einsum", "tensordot"],
    *["inner", "multi_dot", "bilinear", "conv1d", "conv2d", "conv3d"],
    *["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"],
]


@pytest.fixture(params=["as it is", "without instructions"], autouse=True)
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without instructions":
        monkeypatch.setattr(products_patch, "multiplies_bfloat16", lambda: False)
    torch.manual_seed(0)


def convert(result: str) -> None:
    hmp.convert(preset="recommended", within="everywhere", rules=dict.fromkeys(LISTED, result))


def random_like(values: Tensors) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(one.shape) for one in values]


def derivatives(call: Call, values: Tensors, order: int) -> Iterator[list[torch.Tensor | None]]:
    """Yields the gradients of a loss, then those of each gradient in a random direction, and so on. The terms are apart
    from each other, so that none hides a lost one."""
    made = call(*values)
    losses = [(made.to(values[0].dtype).sin() * random_like([made])[0]).sum()]
    for _ in range(order):
        found = [
            torch.autograd.grad(loss, values, create_graph=True, allow_unused=True) if loss.requires_grad else ()
            for loss in losses
        ]
        yield [one for some in found for one in some or [None] * len(values)]
        losses = [
            (one * other).sum()
            for some in found
            for one, other in zip(some, random_like(values), strict=bool(some))
            if one is not None
        ]


def compare(made: Sequence[torch.Tensor | None], wanted: Sequence[torch.Tensor | None], near: float) -> None:
    assert len(made) == len(wanted)
    for place, (one, other) in enumerate(zip(made, wanted, strict=True)):
        length = 0.0 if other is None else other.norm().item()
        if one is None or other is None:
            assert length < 1e-9, place
            assert one is None or one.norm() < 1e-9
        else:
            assert (one.double() - other).norm() <= near * length + 1e-9, place
