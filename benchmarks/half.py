"""Times products of tensors in half precision: torch's own, those of ``preset="half"``, and the same in float32.

python benchmarks/half.py [--processors] [--kinds bf16 fp16] [--only NAME ...]

Each row is one form of product, without and with gradients: the times of torch and of habana_mp in half precision as
multiples of float32's time, the median of the rounds. ``--processors`` measures on each of tests/processors.py that
this one can stand for, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from states import converted
from timing import Contender, run
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from processors import PROCESSORS

KINDS = {"bf16": torch.bfloat16, "fp16": torch.float16}
Sizes = Sequence[tuple[int, ...]]

#: Calls, and the sizes of their tensors.
FORMS: dict[str, tuple[Callable[..., Tensor], Sizes]] = {
    "linear, one row": (F.linear, [(1, 1024), (1024, 1024), (1024,)]),
    "linear, 8 rows": (F.linear, [(8, 1024), (1024, 1024), (1024,)]),
    "linear, 128 rows": (F.linear, [(128, 1024), (1024, 1024), (1024,)]),
    "linear, a batch": (F.linear, [(4, 32, 1024), (1024, 1024)]),
    "mm": (torch.mm, [(256, 512), (512, 512)]),
    "mm, turned": (lambda x, w: x @ w.t(), [(256, 512), (512, 512)]),
    "mm, both turned": (lambda x, w: x.t() @ w.t(), [(512, 256), (512, 512)]),
    "mm, every other column": (lambda x, w: x[:, ::2] @ w, [(256, 1024), (512, 512)]),
    "addmm": (torch.addmm, [(512,), (256, 512), (512, 512)]),
    "addmm of a matrix": (torch.addmm, [(256, 512), (256, 512), (512, 512)]),
    "addmm, scaled": (partial(torch.addmm, alpha=0.5, beta=2.0), [(256, 512), (256, 512), (512, 512)]),
    "bmm": (torch.bmm, [(8, 128, 128), (8, 128, 128)]),
    "bmm, turned": (lambda x, y: x @ y.mT, [(8, 128, 128), (8, 128, 128)]),
    "bmm, broadcast": (torch.matmul, [(8, 128, 128), (1, 128, 128)]),
    "baddbmm": (torch.baddbmm, [(8, 128, 128), (8, 128, 128), (8, 128, 128)]),
    "addbmm": (torch.addbmm, [(128, 128), (8, 128, 128), (8, 128, 128)]),
    "matmul of four dimensions": (torch.matmul, [(2, 8, 128, 64), (2, 8, 64, 128)]),
    "einsum": (partial(torch.einsum, "bhqd,bhkd->bhqk"), [(2, 8, 128, 64), (2, 8, 128, 64)]),
    "tensordot": (partial(torch.tensordot, dims=1), [(256, 512), (512, 512)]),
    "mv": (torch.mv, [(1024, 1024), (1024,)]),
    "addmv": (torch.addmv, [(1024,), (1024, 1024), (1024,)]),
    "dot": (torch.dot, [(1 << 20,), (1 << 20,)]),
    "bilinear": (F.bilinear, [(64, 64), (64, 64), (64, 64, 64), (64,)]),
    "conv1d": (F.conv1d, [(8, 64, 256), (64, 64, 3), (64,)]),
    "conv1d without a batch": (F.conv1d, [(64, 1024), (64, 64, 3), (64,)]),
    "conv2d": (partial(F.conv2d, padding=1), [(4, 64, 28, 28), (64, 64, 3, 3), (64,)]),
    "conv2d, channels last": (
        lambda x, w: F.conv2d(x.contiguous(memory_format=torch.channels_last), w),
        [(4, 64, 28, 28), (64, 64, 3, 3)],
    ),
    "conv2d, 1 x 1": (F.conv2d, [(4, 64, 28, 28), (64, 64, 1, 1)]),
    "conv2d, strided": (partial(F.conv2d, stride=2), [(4, 64, 28, 28), (64, 64, 3, 3)]),
    "conv2d, dilated": (partial(F.conv2d, dilation=2), [(4, 64, 28, 28), (64, 64, 3, 3)]),
    "conv2d, grouped": (partial(F.conv2d, groups=4), [(4, 64, 28, 28), (64, 16, 3, 3)]),
    "conv2d, depthwise": (partial(F.conv2d, groups=64), [(4, 64, 28, 28), (64, 1, 3, 3)]),
    "conv2d without a batch": (F.conv2d, [(64, 56, 56), (64, 64, 3, 3)]),
    "conv3d": (F.conv3d, [(2, 16, 8, 28, 28), (16, 16, 3, 3, 3)]),
    "conv_transpose1d": (F.conv_transpose1d, [(8, 64, 256), (64, 64, 3)]),
    "conv_transpose2d": (partial(F.conv_transpose2d, stride=2), [(4, 64, 14, 14), (64, 64, 3, 3)]),
    "conv_transpose3d": (F.conv_transpose3d, [(2, 16, 8, 14, 14), (16, 16, 3, 3, 3)]),
    "attention": (F.scaled_dot_product_attention, [(2, 8, 128, 64)] * 3),
    "attention, causal": (partial(F.scaled_dot_product_attention, is_causal=True), [(2, 8, 128, 64)] * 3),
}
#: Layers of modules, by the sizes of their input.
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LSTM": (lambda: nn.LSTM(128, 128, batch_first=True), (8, 32, 128)),
    "GRU": (lambda: nn.GRU(128, 128, batch_first=True), (8, 32, 128)),
}


def operands(name: str, dtype: torch.dtype, *, with_gradients: bool) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Returns the call of a form, and its tensors."""
    torch.manual_seed(0)
    if name in LAYERS:
        make, size = LAYERS[name]
        layer = make().to(dtype).requires_grad_(with_gradients)
        return lambda x: layer(x)[0], [torch.randn(size).to(dtype)]
    call, sizes = FORMS[name]
    return call, [torch.randn(one).to(dtype).requires_grad_(with_gradients) for one in sizes]


def step(call: Callable[..., Tensor], tensors: list[Tensor], *, with_gradients: bool) -> Callable[[], object]:
    if not with_gradients:

        def forward() -> Tensor:
            with torch.no_grad():
                return call(*tensors)

        return forward
    gradient = torch.ones_like(call(*tensors))

    def both() -> None:
        call(*tensors).backward(gradient)

    return both


def measured(name: str, dtype: torch.dtype, *, with_gradients: bool, rounds: int) -> tuple[float, float, float]:
    """Returns the microseconds of float32, and the times of torch and of habana_mp as multiples of that."""
    steps = [
        step(*operands(name, one, with_gradients=with_gradients), with_gradients=with_gradients)
        for one in (torch.float32, dtype)
    ]
    full = Contender("float32", steps[0])
    torchs = Contender("torch", steps[1])
    ours = Contender("habana_mp", steps[1], partial(converted, preset="half"))
    run([full, torchs, ours], rounds=rounds, target_seconds=0.02)
    return 1e6 * full.median, torchs.ratio_to(full)[0], ours.ratio_to(full)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processors", action="store_true", help="on each that this one can stand for")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these forms")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.processors:
        arguments = [one for one in sys.argv[1:] if one != "--processors"]
        for processor in (one for one in PROCESSORS if one.can_run()):
            print(f"## {processor.onednn or 'all instructions'}", flush=True)
            subprocess.run([sys.executable, __file__, *arguments], env=processor.environment(), check=True)
        return
    print("| form | float32, µs | torch | hmp | with gradients, µs | torch | hmp |\n|---|---|---|---|---|---|---|")
    for kind in options.kinds:
        found = []
        for name in options.only or (*FORMS, *LAYERS):
            cells = []
            for with_gradients in (False, True):
                full, torchs, ours = measured(name, KINDS[kind], with_gradients=with_gradients, rounds=options.rounds)
                cells += [f"{full:.0f}", f"{torchs:.2f}", f"{ours:.2f}"]
                found.append((torchs, ours))
            print(f"| {name}, {kind} | {' | '.join(cells)} |", flush=True)
        means = [statistics.geometric_mean(ratios) for ratios in zip(*found, strict=True)]
        print(f"| {kind}, geometric mean of both | | {means[0]:.2f} | {means[1]:.2f} | | | |", flush=True)


if __name__ == "__main__":
    main()
