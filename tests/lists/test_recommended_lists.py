"""``preset="recommended"``: products run in the lower precision; what is only arithmetic follows its inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.each import each
from helpers.models import Calls
from helpers.processes import RUN, python

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.linspace(-1, 1, 64).reshape(8, 8)

LOWERED: dict[str, Callable[[], torch.Tensor]] = {
    "linear": lambda: F.linear(X, X),
    "matmul": lambda: X @ X,
    "convolution": lambda: F.conv2d(torch.ones(1, 2, 8, 8), torch.ones(2, 2, 3, 3)),
    "attention": lambda: F.scaled_dot_product_attention(X[None], X[None], X[None]),
    "recurrent": lambda: nn.LSTM(8, 8)(X)[0],
    "einsum": lambda: torch.einsum("ij,jk->ik", X, X),
}


@each("call", LOWERED.values())
def test_products_are_lowered_in_modules_and_elsewhere_where_one_says_so(call: Callable[[], torch.Tensor]) -> None:
    hmp.convert(preset="recommended", results="as computed", within="everywhere")
    assert call().dtype is BF16
    hmp.convert(preset="recommended", results="as computed")
    assert Calls(call)().dtype is BF16


FOLLOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("relu", "sigmoid", "tanh", "sin", "cos", "abs", "neg", "sqrt")},
    "mul": lambda x: x * x,
    "cat": lambda x: torch.cat([x, x]),
    "number": lambda x: x * 0.1 + 1,
    "gelu": F.gelu,
    "softmax": lambda x: x.softmax(-1),
    "mean": lambda x: x.mean(0),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "dropout": F.dropout,
}


@each("dtype", [FP32, BF16])
@each("call", FOLLOWS.values())
def test_arithmetic_follows_its_inputs(call: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    hmp.convert(preset="recommended", within="everywhere")
    assert call(X.abs().to(dtype)).dtype is dtype


FLOAT32: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: getattr(torch, name) for name in ("exp", "log", "log1p", "expm1", "cosh")},
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x.norm(),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(8)),
    "mse_loss": lambda x: F.mse_loss(x, x * 0),
    "binary_cross_entropy_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
}


@each("call", FLOAT32.values())
def test_what_needs_float32_has_it(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    hmp.convert(preset="recommended")
    assert call((X + 2).bfloat16()).dtype is FP32


@each(
    "options, preset",
    [
        ([], "recommended"),
        (["--within", "modules"], "recommended"),
        (["--opt-level", "O1"], "hmp-default"),
        (["--preset", "torch-cpu"], "torch-cpu"),
        (["--bf16", "list.txt"], "hmp-default"),
    ],
)
def test_run_takes_the_recommended_lists_where_nothing_says_otherwise(
    options: list[str], preset: str, tmp_path: Path
) -> None:
    (tmp_path / "list.txt").write_text("matmul\n")
    (tmp_path / "script.py").write_text(
        "from habana_mp import hmp\nprint(hmp.report(show=False).configuration['preset'])\n"
    )
    done = python(*RUN, *options, "script.py", cwd=tmp_path)
    assert done.stdout.split()[0] == preset
