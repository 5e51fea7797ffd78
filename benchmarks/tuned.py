"""Tunes the lists of nine small trainings, and compares them with float32 and with everything lowered by the preset.

    python benchmarks/tuned.py [--only NAME] [--seeds 2] [--rounds 5]

The value of a training is its loss on new data. It is good enough if it exceeds the loss in float32 by at most the
noise, which is the standard deviation of the loss in float32 over five seeds. Each training has one row. The row
contains the excess of the loss over float32 with everything lowered and with the tuned lists, each in multiples of the
noise; the number of configurations that were run; the lines in float32; and the speed of the tuned lists relative to
everything lowered, measured in interleaved rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from states import converted
from timing import Contender
from timing import run as interleaved

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import digits
import language_model
from small_networks import UNet

from habana_mp import hmp
from helpers.architectures import make_model

#: The preset that is tuned.
PRESET = "hmp-default"
SEEDS_OF_NOISE = 5

Batch = dict[str, torch.Tensor]


def train(model: Any, loss_of: Callable[[int], torch.Tensor], steps: int, rate: float) -> float:
    """Trains the model. ``loss_of(count)`` returns the loss of this many new samples. Returns the loss of more
    samples."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(16).backward()
        with hmp.disable_casts():
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return float(loss_of(128))


def denoise(seed: int) -> float:
    """A U-Net removes noise from pictures of waves."""
    torch.manual_seed(seed)
    model = UNet(width=16)
    model.head = torch.nn.Conv2d(16, 3, 1)
    place = torch.linspace(0, 1, 32)

    def loss(count: int) -> torch.Tensor:
        speed, phase = torch.rand(2, count, 3, 1, 1) * 8
        clean = (speed * place + phase).sin() * (phase * place[:, None] + speed).cos()
        noisy = clean + 0.5 * torch.randn_like(clean)
        return F.mse_loss(model.pixels(noisy).float(), clean)

    return train(model, loss, steps=60, rate=3e-3)


def sequences(count: int) -> torch.Tensor:
    """Returns sequences of 24 words, each of which determines the next."""
    words = [torch.randint(3, 90, (count,))]
    for _ in range(23):
        words.append((5 * words[-1] + 7) % 87 + 3)
    return torch.stack(words, 1)


def causal(count: int) -> Batch:
    words = sequences(count)
    return {"input_ids": words, "labels": words}


def masked(count: int) -> Batch:
    words = sequences(count)
    hidden = torch.rand(words.shape) < 0.2
    return {"input_ids": words.masked_fill(hidden, 2), "labels": words.masked_fill(~hidden, -100)}


def classified(count: int) -> Batch:
    words = sequences(count)
    return {"input_ids": words, "labels": (words[:, 0] > 45).long()}


def images(count: int) -> Batch:
    labels = torch.arange(count) % 2
    return {"pixel_values": torch.randn(count, 3, 64, 64) + 0.1 * labels[:, None, None, None], "labels": labels}


def architecture(kind: str, name: str, batch: Callable[[int], Batch], steps: int = 60) -> Callable[[int], float]:
    """Returns the training of an architecture of transformers."""

    def run(seed: int) -> float:
        model = make_model(kind, name)
        torch.manual_seed(seed)
        return train(model, lambda count: model(**batch(count)).loss.float(), steps, rate=2e-3)

    return run


TRAININGS: dict[str, Callable[[int], float]] = {
    "digits CNN": lambda seed: digits.train(seed, epochs=5).loss,
    "language model": lambda seed: language_model.train(seed, 120, "softmax"),
    "U-Net": denoise,
    "bert": architecture("masked", "bert", masked),
    "distilbert": architecture("sequence", "distilbert", classified),
    "gpt2": architecture("causal", "gpt2", causal),
    "llama": architecture("causal", "llama", causal),
    "t5": architecture("seq2seq", "t5", causal),
    "vit": architecture("image", "vit", images),
}


def excess(values: Sequence[float], exact: Sequence[float], noise: float) -> float:
    """Returns the mean excess of the values over those of float32, in multiples of the noise."""
    return statistics.fmean(one - other for one, other in zip(values, exact, strict=True)) / noise


def row(name: str, run: Callable[[int], float], seeds: range, rounds: int) -> Iterator[str]:
    exact = [run(seed) for seed in range(SEEDS_OF_NOISE)]
    noise = statistics.stdev(exact)
    found = hmp.tune(run, lambda value, of_float32: value <= of_float32 + noise, seeds=seeds, preset=PRESET)
    with converted(preset=PRESET):
        lowered = [run(seed) for seed in seeds]
    lines = [*found.rules, *found.faster]
    yield f"{name:<16}"
    yield f"{statistics.fmean(exact):>9.4f}{noise:>9.4f}"
    yield f"{excess(lowered, exact[: len(seeds)], noise):>9.2f}"
    yield f"{excess([value for _, value in found.values.values()], exact[: len(seeds)], noise):>9.2f}"
    yield f"{found.runs:>6}"
    if not found.passed:
        yield "   no lists are good enough"
    elif not lines:
        yield "        as all lowered: the same lists"
    else:
        with tempfile.TemporaryDirectory() as folder:
            found.write(folder)
            tuned = Contender("tuned", lambda: run(0), lambda: converted(preset=folder))
            lower = Contender("all lowered", lambda: run(0), lambda: converted(preset=PRESET))
            interleaved([tuned, lower], rounds=rounds, target_seconds=0.1)
        yield f"{1 / tuned.ratio_to(lower)[0]:>8.2f}  {', '.join(lines)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=list(TRAININGS), help="one training")
    parser.add_argument("--seeds", type=int, default=2, help="each configuration must be good enough with all of them")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds")
    print(f"{'training':<16}{'float32':>9}{'noise':>9}{'lowered':>9}{'tuned':>9}{'runs':>6}{'speed':>8}  in float32")
    for name in [options.only] if options.only else TRAININGS:
        for part in row(name, TRAININGS[name], range(options.seeds), options.rounds):
            print(part, end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    main()
