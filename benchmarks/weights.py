"""Measures cached casts of weights: the use of a cached cast compared with a new cast, for more and more weights; many
small layers in a row; linear layers of many sizes; and tokens of a decoder whose weights were saved, held or read.

python benchmarks/weights.py [--quick] [--layers | --products | --saved] [--threads N]
"""

from __future__ import annotations

import argparse
import copy
import io
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from networks import Llama
from safetensors.torch import save
from states import autocast, converted
from timing import Contender, run
from torch import nn

from habana_mp import hmp


def uses(weights: list[nn.Parameter], x: torch.Tensor) -> Callable[[], object]:
    """Returns a call that uses one weight after the other."""
    in_turn = cycle(weights)
    return lambda: F.linear(x, next(in_turn))


def small_layers(width: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(50)]), torch.randn(4, width)


#: Computes a layer from an input, a weight and a bias.
ByHand = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Product(nn.Module):
    """A layer as user code may write it by hand."""

    def __init__(self, width: int, call: ByHand) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.call(x, self.weight, self.bias)


def added(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Computes a layer in the way of transformers' GPT-2."""
    return torch.addmm(bias, x, weight)


def by_a_view(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Multiplies by a view of the weight. The bias is not used."""
    return x @ weight.T


def small_products(call: ByHand, width: int) -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(*[Product(width, call) for _ in range(50)]), torch.randn(4, width)


def attention(width: int) -> tuple[nn.Module, torch.Tensor]:
    """Returns an encoder layer and its input. Torch passes rows to its linear layers that are not evenly spaced."""
    return nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True).eval(), torch.randn(4, 32, width)


def contenders(model: nn.Module, x: torch.Tensor) -> list[Contender]:
    """Returns the contenders, autocast first."""
    lower, lower_x = copy.deepcopy(model).bfloat16(), x.bfloat16()

    def in_a_region() -> object:
        with autocast():
            return model(x)

    return [
        Contender("autocast", in_a_region),
        Contender("hmp", lambda: model(x), converted),
        Contender("bf16 model", lambda: lower(lower_x)),
        Contender("FP32", lambda: model(x)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    parser.add_argument("--layers", action="store_true", help="the many small layers alone")
    parser.add_argument("--products", action="store_true", help="linear layers of many sizes alone")
    parser.add_argument("--saved", action="store_true", help="tokens before and after saving alone")
    parser.add_argument("--threads", type=int, default=1, help="default 1")
    given = parser.parse_args()
    quick = given.quick
    options = {"rounds": 7 if quick else 21, "target_seconds": 0.05 if quick else 0.2}
    torch.set_num_threads(given.threads)
    if given.products:
        measure_products(**options)
        return
    if not given.layers and not given.saved:
        measure_uses(**options)
    if not given.saved:
        measure_layers(**options)
    if not given.layers:
        measure_after_saving(7 if quick else 15)


def measure_uses(**options: Any) -> None:
    """Prints the time that a cached cast and a new cast add to a call, for several numbers of weights."""
    x = torch.randn(4, 16).bfloat16()

    print(
        "F.linear of 16x16 weights, one after the other; what is added to the call with weights in bf16, in nanoseconds"
    )
    print(f"{'weights':>10}{'cached, no_grad':>16}{'cast, no_grad':>16}{'cached, grad':>16}{'cast, grad':>16}")
    for count in (1, 100, 10_000, 100_000):
        weights = [nn.Parameter(torch.randn(16, 16)) for _ in range(count)]
        lower = [nn.Parameter(w.detach().bfloat16()) for w in weights]
        row = []
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                base = Contender("bf16", uses(lower, x), converted)
                cached = Contender("cached", uses(weights, x), converted)
                cast = Contender("cast", uses(weights, x), lambda: converted(weight_cache=False))
                # Entering `converted` empties the cache, so it is entered only once for all rounds. The first passes
                # over the weights are not measured.
                with converted():
                    for one in (base, cached):
                        one.state = nullcontext
                        for _ in range(2 * count):
                            one.call()
                    run([base, cached], **options)
                again = Contender("bf16", base.call, converted)
                run([again, cast], **options)
            row += [_extra(cached, base), _extra(cast, again)]
        print(f"{count:>10}" + "".join(f"{value:>16.0f}" for value in row))


def measure_layers(**options: Any) -> None:
    """Prints the speed of small layers, as a multiple of autocast's."""
    for title, make in (
        ("50 linear layers in a row, 4 rows", small_layers),
        ("50 times torch.addmm(bias, x, weight) in a row, 4 rows", partial(small_products, added)),
        ("50 times x @ weight.T in a row, 4 rows", partial(small_products, by_a_view)),
        ("nn.TransformerEncoderLayer, 4x32", attention),
    ):
        print(f"\n{title}, no gradients: times as fast as autocast with one region a pass")
        print(f"{'width':>10}{'autocast, us':>16}{'hmp':>10}{'bf16 model':>16}{'FP32':>10}")
        for width in (64, 128, 256, 512):
            peer, *others = contenders(*make(width))
            with torch.no_grad():
                run([peer, *others], settle_seconds=0.05, **options)
            ratios = [peer.ratio_to(one)[0] for one in others]
            widths = (10, 16, 10)
            cells = "".join(f"{ratio:>{wide}.2f}" for ratio, wide in zip(ratios, widths, strict=True))
            print(f"{width:>10}{peer.median * 1e6:>16.0f}" + cells)


def measure_products(**options: Any) -> None:
    """Prints the time of linear layers of many sizes, without gradients."""
    print("\nnn.Linear(size, size), no gradients: us by torch's function; times as fast by our kernels; used or not")
    for size in (64, 256, 1024, 4096):
        for rows in (1, 4, 7, 16, 64, 256):
            layer, x = nn.Linear(size, size), torch.randn(rows, size)
            with torch.no_grad():
                by_torch = Contender("torch", partial(copy.deepcopy(layer).bfloat16(), x.bfloat16()))
                by_ours = Contender("ours", partial(layer, x), converted)
                run([by_torch, by_ours], **options)
                with converted():
                    layer(x)
                    used = bool(hmp.report(show=False).weights.products)
            print(f"{size:>6}{rows:>6}{by_torch.median * 1e6:>10.1f}{by_torch.ratio_to(by_ours)[0]:>8.2f}{used!s:>8}")


#: Scripts do this with a model between two tokens. The result is held while the next tokens are timed.
DONE: dict[str, Callable[[nn.Module], object]] = {
    "nothing": lambda model: None,
    "torch.save": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "safetensors": lambda model: save(dict(model.state_dict())),
    "a held state_dict": lambda model: model.state_dict(),
    "held detached weights": lambda model: [one.detach() for one in model.parameters()],
    "deepcopy": copy.deepcopy,
    "data_ptr": lambda model: [one.data_ptr() for one in model.parameters()],
    "numpy": lambda model: [one.detach().numpy().size for one in model.parameters()],
}


def measure_after_saving(rounds: int) -> None:
    """Prints the time of a token of a decoder before and after its weights were saved, held or read."""
    print("\na token of a decoder of 110 M parameters, after 64 words: ms before and after, and their ratio")
    words = torch.randint(32_000, (1, 65))
    for name, done in DONE.items():
        model = Llama(hidden=768, layers=12, heads=12, intermediate=2048).eval()
        with converted(), torch.no_grad():
            _, pasts = model(words[:, :64])
            token = Contender(name, lambda model=model, pasts=pasts: model(words[:, 64:], pasts))
            token.time(8)
            before = statistics.median(token.time(3) for _ in range(rounds))
            held = done(model)
            token.time(8)
            after = statistics.median(token.time(3) for _ in range(rounds))
            del held
        print(f"{name:<24}{before * 1e3:>8.1f}{after * 1e3:>8.1f}{after / before:>8.2f}")


def _extra(one: Contender, base: Contender) -> float:
    """Returns the median of the additional time in the same round, in nanoseconds."""
    extra = sorted(a - b for a, b in zip(one.seconds, base.seconds, strict=True))
    return extra[len(extra) // 2] * 1e9


if __name__ == "__main__":
    main()
