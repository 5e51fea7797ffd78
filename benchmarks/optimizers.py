"""Compares the optimizers of habana_mp.optim with torch's fused ones, with and without a bfloat16 copy of all weights.

    python benchmarks/optimizers.py [--rounds N] [--threads N] [--small]

All contenders step the same weights with the same gradients and the same state, in turn, round after round. A ratio is
torch's time divided by the package's time in the same round, and the result is the median of all rounds. Above 1 the
package is faster. The package writes the copy in the same pass, and `torch._foreach_copy_` writes it after torch's
step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timing import Contender, run
from torch import Tensor

from habana_mp import _core, optim
from habana_mp.patches.torch import kernel_steps

LLAMA_LAYER = [(768, 768)] * 4 + [(2048, 768)] * 2 + [(768, 2048)] + [(768,)] * 2
BERT_LAYER = [(768, 768), (768,)] * 4 + [(3072, 768), (3072,), (768, 3072), (768,)] + [(768,)] * 4
#: Models of 12 layers and 110 M parameters, and a thousand small weights, which show the cost for each weight.
MODELS = {
    "Llama-like": [(32_000, 768), *LLAMA_LAYER * 12, (768,)],
    "BERT-like": [(30_522, 768), (512, 768), (2, 768), (768,), (768,), *BERT_LAYER * 12, (768, 768), (768,)],
    "1000 of 64": [(64,)] * 1000,
}
OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "AdamW": (optim.AdamW, torch.optim.AdamW, {"lr": 1e-5}),
    "SGD, momentum": (optim.SGD, torch.optim.SGD, {"lr": 1e-5, "momentum": 0.9, "weight_decay": 0.01}),
    "SGD": (optim.SGD, torch.optim.SGD, {"lr": 1e-5}),
}


@contextmanager
def written_to(copies: dict[Tensor, Tensor]) -> Iterator[None]:
    """The package's steps write these copies."""
    before = kernel_steps.casts_to_write
    kernel_steps.casts_to_write = lambda params: [copies[param] for param in params]
    try:
        yield
    finally:
        kernel_steps.casts_to_write = before


def compare(name: str, optimizer: str, threads: int, rounds: int) -> None:
    ours_class, torch_class, options = OPTIMIZERS[optimizer]
    params = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in MODELS[name]]
    for param in params:
        param.grad = torch.randn_like(param) * 0.01
    copies = {param: param.detach().bfloat16() for param in params}
    ours, torchs = ours_class(params, **options), torch_class(params, fused=True, **options)
    torchs.step()
    ours.state = torchs.state
    weights, kept = [param.detach() for param in params], list(copies.values())

    def step_and_copy() -> None:
        torchs.step()
        torch._foreach_copy_(kept, weights)

    contenders = [
        Contender("ours with the copy", ours.step, lambda: written_to(copies)),
        Contender("torch and the copy", step_and_copy),
        Contender("ours", ours.step),
        Contender("torch", torchs.step),
    ]
    torch.set_num_threads(threads)
    run(contenders, rounds=rounds, target_seconds=0.05)
    one, two, three, four = contenders
    cells = [
        f"{median:5.2f} ({low:.2f} to {high:.2f})" for median, low, high in (two.ratio_to(one), four.ratio_to(three))
    ]
    times = "".join(f"{contender.median * 1e3:9.2f}" for contender in contenders)
    print(f"{name:12} {optimizer:14} {threads:7}   {cells[0]:22} {cells[1]:22}{times}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, help="one number of threads alone (default 1 and 2)")
    parser.add_argument("--small", action="store_true", help="the small weights alone")
    arguments = parser.parse_args()
    print(f"instruction set: {_core.kernels_path()}, torch {torch.__version__}, {arguments.rounds} rounds")
    print("weights      optimizer      threads   x with the copy        x without          ms: each of the four")
    for name in ["1000 of 64"] if arguments.small else MODELS:
        for optimizer in OPTIMIZERS:
            for threads in [arguments.threads] if arguments.threads else [1, 2]:
                compare(name, optimizer, threads, arguments.rounds)


if __name__ == "__main__":
    main()
