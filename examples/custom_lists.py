"""Lists of your own: move softmax and layer_norm between the precisions and see what it does to a model's output.

``python examples/custom_lists.py``
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp

#: The default lists, to start from.
LISTS = Path(__file__).parent.parent / "lists"


@hmp.op_wrap(to="fp32")
def rms_norm(x: torch.Tensor) -> torch.Tensor:
    """A function of our own. Its input arrives in float32, and inside of it the lists are silent."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Model(nn.Module):
    """Attention, a layer norm and our own norm."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_qkv = nn.Linear(width, 3 * width)
        nn.init.normal_(self.to_qkv.weight, std=0.3)  # Large scores: softmax is then sensitive to their precision.
        self.out = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1)
        return self.out(rms_norm(weights @ v))


@dataclass(frozen=True)
class Result:
    """What one pair of lists did."""

    softmax: str
    layer_norm: str
    own_function: str
    error: float


def names_in(path: Path) -> set[str]:
    return {name for line in path.read_text().splitlines() if (name := line.partition("#")[0].strip())}


def write_lists(folder: Path, lower: set[str], fp32: set[str]) -> tuple[Path, Path]:
    """Two list files: one name a line; what follows a ``#`` is a comment."""
    paths = folder / "bf16.txt", folder / "fp32.txt"
    for path, names in zip(paths, (lower, fp32), strict=True):
        path.write_text("# written by custom_lists.py\n" + "\n".join(sorted(names)) + "\n")
    return paths


def run(model: Model, x: torch.Tensor, lower: set[str], fp32: set[str]) -> tuple[torch.Tensor, dict[str, str]]:
    """The model's output under these lists, and the precision that each operation ran in."""
    with tempfile.TemporaryDirectory() as folder:
        bf16_path, fp32_path = write_lists(Path(folder), lower, fp32)
        hmp.convert("O1", bf16_path, fp32_path)  # The files are read at once: they may go now.
    hmp.reset_report()
    try:
        with torch.no_grad():
            y = model(x)
    finally:
        hmp.restore()
    return y, {row.operation: row.precision for row in hmp.report(show=False)}


def main(arguments: Sequence[str] | None = None) -> dict[str, Result]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    model = Model().eval()
    x = 3 * torch.randn(32, 24, 48)
    with torch.no_grad():
        reference = model(x)

    lower, fp32 = names_in(LISTS / "hmp_default_bf16.txt"), names_in(LISTS / "hmp_default_fp32.txt")
    trials = {
        "default lists": (lower, fp32),
        "softmax to bf16": (lower | {"softmax"}, fp32 - {"softmax"}),
        "layer_norm to fp32": (lower - {"layer_norm"}, fp32 | {"layer_norm"}),
        "matmul to fp32": (lower - {"matmul"}, fp32 | {"matmul"}),
        "only linear in bf16": ({"linear"}, fp32 | lower - {"linear"}),
        "everything in fp32": (set[str](), fp32 | lower),
    }
    results = {}
    for name, lists in trials.items():
        y, ran = run(model, x, *lists)
        error = ((y.float() - reference).norm() / reference.norm()).item()
        results[name] = Result(ran["softmax"], ran["layer_norm"], ran["rms_norm"], error)

    print(f"{'':<19}  softmax  layer_norm  rms_norm  error of the output")
    for name, result in results.items():
        print(
            f"{name:<19}  {result.softmax:<7}  {result.layer_norm:<10}  {result.own_function:<8}  {result.error:19.2e}"
        )
    return results


if __name__ == "__main__":
    main()
