"""Compares whole models: hmp.convert with torch.autocast, FP32, and the model converted to bfloat16.

    python benchmarks/models.py [--small | --kinds] [--within | --recommended | --sums] [--only CASE[,CASE]] [--quick]
        [--threads N | --busy] [--write]
    python benchmarks/models.py --processors [--quick] [--write]

All contenders run the same model in turn, round after round. Each contender has its own process, as in real use, so its
caches last from step to step. After some rounds new processes are started, since the position of its memory makes a
process faster or slower as long as it runs. A ratio is the other contender's time divided by hmp's time in the same
round; the tables have the median of all rounds. Above 1 hmp is faster. Autocast is used as its documentation
recommends: one region for each step, around the forward pass and the loss. `hmp` has the lists that autocast has on a
CPU, and `hmp default` has the default lists. Before anything is timed, all results are compared with those of FP32.
--write puts the table into docs/performance.md. If no other option selects other models, it also puts a plot into
docs/performance.svg.

--small runs short steps, in which the overhead of each call matters most. --kinds runs small networks of many other
kinds, forward and in training.

--within compares convert(within="modules") with convert() alone, for the same models. --recommended compares
preset="recommended" with FP32 and autocast. With these variables it is run as a processor would run it that has
AVX-512 or AVX2 and no bfloat16 instructions:

    ONEDNN_MAX_CPU_ISA=AVX512_CORE HABANA_MP_KERNELS=avx512
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 HABANA_MP_KERNELS=avx2

--processors does so for five models, on this processor as it is and with AVX2 alone; with --write it puts a plot into
docs/processors.svg.

--sums compares preset="recommended" with float32 results of the head (`linear @ head -> fp32`), and of all products.

--busy is for a machine that other programs use: one thread, and processor time instead of elapsed time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chart
import torch
import torch.nn.functional as F
from networks import Bert, Llama, ViT, resnet18, resnet50
from small_networks import (
    CLASSES,
    CellInALoop,
    EinsumAttention,
    Encoder,
    Experts,
    Generator,
    Graph,
    Recommender,
    Recurrent,
    UNet,
    Waves,
    mlp,
    volumes,
)
from states import autocast, converted
from timing import Contender, Elsewhere, run, serve
from torch import nn

from habana_mp import hmp, kernels

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from processors import PROCESSORS

DOCS = Path(__file__).parents[1] / "docs"

State = Callable[[], AbstractContextManager[Any]]


@dataclass
class Way:
    """The states in which a contender runs: in the whole run, in a forward pass, and in an optimizer's step."""

    all_the_while: State = nullcontext
    forward: State = nullcontext
    step: State = nullcontext


#: Float32 results: of the head, which networks.Llama computes itself, and of all products.
HEAD = {"linear @ Llama": "lower -> fp32", "linear @ Llama.layers": "lower"}
SUMS = dict.fromkeys(("linear", "matmul", "bmm"), "lower -> fp32")

WAYS = {
    "FP32": Way(),
    "autocast": Way(forward=autocast),
    "bf16 model": Way(),
    "hmp": Way(lambda: converted(preset="torch-cpu"), step=hmp.disable_casts),
    "hmp default": Way(converted, step=hmp.disable_casts),
    "hmp within": Way(lambda: converted(preset="torch-cpu", within="modules"), step=hmp.disable_casts),
    "hmp default within": Way(lambda: converted(within="modules"), step=hmp.disable_casts),
    "hmp recommended": Way(lambda: converted(preset="recommended"), step=hmp.disable_casts),
    "hmp head": Way(lambda: converted(preset="recommended", rules=HEAD), step=hmp.disable_casts),
    "hmp sums": Way(lambda: converted(preset="recommended", rules=SUMS), step=hmp.disable_casts),
    # For benchmarks/allocator.py.
    "hmp, none kept": Way(lambda: converted(preset="torch-cpu", reuse_memory=False), step=hmp.disable_casts),
}
CONTENDERS = ("FP32", "autocast", "bf16 model", "hmp", "hmp default")
#: The contenders in training and for small networks: all except the model in bfloat16.
LOWERED_WHILE_RUNNING = ("FP32", "autocast", "hmp", "hmp default")
#: For --within. Autocast is among them because its difference from FP32 sets the limit for the others.
WHERE = ("autocast", "hmp", "hmp within", "hmp default", "hmp default within")
#: For --sums.
WITH_SUMS = ("FP32", "autocast", "hmp recommended", "hmp head", "hmp sums")
#: For --recommended.
RECOMMENDED = ("FP32", "autocast", "hmp recommended")
#: For --processors, since a step of training under autocast takes 10 to 20 s with AVX2.
ALONE = ("FP32", "hmp recommended")


# ---- the cases -------------------------------------------------------------------------------------------------------


#: Takes the contender's name. Returns its step, and the difference of its result from FP32's. Enters the state of the
#: whole run, which lasts until the ExitStack closes.
Make = Callable[[str, ExitStack], tuple[Callable[[], object], float]]


@dataclass
class Case:
    title: str
    make: Make
    contenders: tuple[str, ...] = CONTENDERS


def llama_110m() -> Llama:
    return Llama(hidden=768, layers=12, heads=12, intermediate=2048)


def llama_500m() -> Llama:
    return Llama(hidden=2048, layers=8, heads=16, intermediate=5632)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Returns the norm of the difference, relative to the norm of the other."""
    return ((one.float() - other.float()).norm() / other.float().norm()).item()


def inference(
    model: Callable[[], nn.Module],
    batch: Callable[[], torch.Tensor],
    prepare: Callable[[nn.Module, torch.Tensor], tuple[Any, ...]] = lambda model, batch: (batch,),
    call: Callable[..., torch.Tensor] = lambda model, x: model(x),
) -> Make:
    """Makes a forward pass: ``call`` with the model and the result of ``prepare``, which runs once in that state."""

    def make(name: str, state: ExitStack) -> tuple[Callable[[], object], float]:
        way = WAYS[name]
        mine, inputs = model().eval(), batch()
        state.enter_context(torch.no_grad())
        expected = call(mine, *prepare(mine, inputs))
        if name == "bf16 model":
            mine.bfloat16()
            inputs = inputs.bfloat16() if inputs.is_floating_point() else inputs
        state.enter_context(way.all_the_while())
        with way.forward():
            prepared = prepare(mine, inputs)

        def step() -> torch.Tensor:
            with way.forward():
                return call(mine, *prepared)

        return step, difference(step(), expected)

    return make


def decoded(model: Any, word: torch.Tensor, pasts: Any) -> torch.Tensor:
    return model(word, pasts)[0]


def with_past(model: Any, words: torch.Tensor) -> tuple[Any, ...]:
    """Returns the last word, and the keys and values of the words before it."""
    return words[:, -1:], model(words[:, :-1])[1]


def prefilled(model: Any, words: torch.Tensor) -> torch.Tensor:
    """Returns the scores of the last position alone, as `generate` of transformers computes them at its beginning."""
    return model(words, last=1)[0]


def words(batch: int, length: int, count: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(0, count, (batch, length))


def numbers(*sizes: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(sizes)


def images(batch: int, size: int) -> Callable[[], torch.Tensor]:
    return numbers(batch, 3, size, size)


def training(
    model: Callable[[], nn.Module],
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    loss_of: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor],
    micro_steps: int = 1,
    fused: bool = False,
) -> Make:
    """Makes a training step: forward and backward of ``micro_steps`` batches, and a step of AdamW."""

    def make(name: str, state: ExitStack) -> tuple[Callable[[], object], float]:
        trained = model()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-5, fused=fused)
        batches = [batch() for _ in range(micro_steps)]

        def gradients(way: Way) -> torch.Tensor:
            backward(way)
            return torch.cat([one.grad.flatten() for one in trained.parameters() if one.grad is not None])

        def backward(way: Way) -> None:
            optimizer.zero_grad()
            for inputs, labels in batches:
                with way.forward():
                    loss = loss_of(trained, inputs, labels) / micro_steps
                loss.backward()

        way = WAYS[name]
        expected = gradients(WAYS["FP32"])
        state.enter_context(way.all_the_while())

        def step() -> None:
            backward(way)
            with way.step():
                optimizer.step()

        return step, difference(gradients(way), expected)

    return make


def guess_each(model: nn.Module, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    scores = model(words)
    scores = scores[0] if isinstance(scores, tuple) else scores
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def classify(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(images), labels)


def texts(batch: int, length: int, count: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randint(0, count, (batch, length)), torch.randint(0, count, (batch, length)))


def labelled(*sizes: int, classes: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (torch.randn(sizes), torch.randint(0, classes, sizes[:1]))


def pictures(batch: int, size: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return labelled(batch, 3, size, size, classes=1000)


def compiled(length: int) -> Make:
    """Makes a forward pass of the model, compiled with frozen weights."""

    def make(name: str, state: ExitStack) -> tuple[Callable[[], object], float]:
        import torch._inductor.config

        torch._inductor.config.freezing = True
        way, model, inputs = WAYS[name], llama_110m().eval(), words(1, length, 32_000)()
        state.enter_context(torch.no_grad())
        expected = prefilled(model, inputs)
        state.enter_context(way.all_the_while())
        call = torch.compile(lambda: prefilled(model, inputs))

        def step() -> torch.Tensor:
            with way.forward():
                return call()

        return step, difference(step(), expected)

    return make


CASES = {
    "decode-110m": Case("Llama 110 M, one token", inference(llama_110m, words(1, 65, 32_000), with_past, decoded)),
    "prefill-110m": Case("Llama 110 M, 64 tokens", inference(llama_110m, words(1, 64, 32_000), call=prefilled)),
    "decode-500m": Case("Llama 0.5 B, one token", inference(llama_500m, words(1, 65, 32_000), with_past, decoded)),
    "prefill-500m": Case("Llama 0.5 B, 64 tokens", inference(llama_500m, words(1, 64, 32_000), call=prefilled)),
    "resnet50-1": Case("ResNet-50, batch 1", inference(resnet50, images(1, 224))),
    "resnet50-16": Case("ResNet-50, batch 16", inference(resnet50, images(16, 224))),
    "vit-1": Case("ViT-B/16, batch 1", inference(lambda: ViT(768, 12, 12, 224), images(1, 224))),
    "vit-16": Case("ViT-B/16, batch 16", inference(lambda: ViT(768, 12, 12, 224), images(16, 224))),
    "train-bert": Case(
        "train BERT (6 layers), 8 x 64 tokens",
        training(lambda: Bert(768, 6, 12), texts(8, 64, 30_522), guess_each),
        LOWERED_WHILE_RUNNING,
    ),
    "train-vit": Case(
        "train ViT (3 layers), 8 x 224x224",
        training(lambda: ViT(768, 3, 12, 224), pictures(8, 224), classify),
        LOWERED_WHILE_RUNNING,
    ),
    "train-resnet50": Case(
        "train ResNet-50, 8 x 112x112", training(resnet50, pictures(8, 112), classify), LOWERED_WHILE_RUNNING
    ),
    "train-llama": Case(
        "train Llama (6 layers), 8 x 64 tokens",
        training(lambda: Llama(768, 6, 12, 2048), texts(8, 64, 32_000), guess_each),
        LOWERED_WHILE_RUNNING,
    ),
    "train-bert-micro": Case(
        "train BERT (12 layers), 4 x 1 x 64 tokens",
        training(lambda: Bert(768, 12, 12), texts(1, 64, 30_522), guess_each, micro_steps=4),
        LOWERED_WHILE_RUNNING,
    ),
    "compiled-1": Case("compiled Llama 110 M, one token", compiled(1), LOWERED_WHILE_RUNNING),
    "compiled-64": Case("compiled Llama 110 M, 64 tokens", compiled(64), LOWERED_WHILE_RUNNING),
}

#: For --processors.
FIVE_CASES = ("decode-110m", "prefill-110m", "vit-1", "train-bert", "train-vit")

#: Small networks of other kinds: title, model, and the sizes of the input.
KINDS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp-1": ("MLP, 2 x 64, one row", lambda: mlp(8, 64, 64, 10), (1, 8)),
    "mlp-32": ("MLP, 2 x 512, 32 rows", lambda: mlp(128, 512, 512, 10), (32, 128)),
    "mlp-256": ("MLP, 2 x 1024, 256 rows", lambda: mlp(784, 1024, 1024, 10), (256, 784)),
    "lstm": ("LSTM, 8 x 50 steps", lambda: Recurrent(nn.LSTM), (8, 50, 64)),
    "gru": ("GRU, 8 x 50 steps", lambda: Recurrent(nn.GRU), (8, 50, 64)),
    "cell": ("GRU cell in a loop, 8 x 50 steps", CellInALoop, (8, 50, 64)),
    "waves": ("gated 1-d convolutions, 2 x 4000", Waves, (2, 1, 4000)),
    "unet": ("U-Net, 2 x 64x64", UNet, (2, 3, 64, 64)),
    "generator": ("transposed convolutions, 16 images", Generator, (16, 64)),
    "volumes": ("3-d convolutions, 2 x 8x32x32", volumes, (2, 3, 8, 32, 32)),
    "encoder-1": ("nn.TransformerEncoder, 1 x 16", Encoder, (1, 16, 256)),
    "encoder": ("nn.TransformerEncoder, 4 x 64", Encoder, (4, 64, 256)),
    "einsum": ("attention by einsum, 4 x 64", EinsumAttention, (4, 64, 256)),
    "recommender": ("26 tables, 64 rows", Recommender, (64, 39)),
    "graph": ("graph of 2000 nodes", Graph, (2000, 64)),
    "experts": ("8 experts, 64 rows", Experts, (64, 128)),
}


KIND_CASES = {
    name + suffix: Case(title, make, LOWERED_WHILE_RUNNING)
    for name, (what, model, sizes) in KINDS.items()
    for suffix, title, make in (
        ("", what, inference(model, numbers(*sizes))),
        ("-train", f"train {what}", training(model, labelled(*sizes, classes=CLASSES), classify)),
    )
}


def layers_16(*, softmax: bool) -> nn.Sequential:
    """Returns 50 tiny linear layers, each followed by a softmax if ``softmax`` is true."""
    layer = (lambda: (nn.Linear(16, 16), nn.Softmax(-1))) if softmax else (lambda: (nn.Linear(16, 16),))
    return nn.Sequential(*(one for _ in range(50) for one in layer()))


def summed_up(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return model(inputs).sum()


SMALL_CASES = {
    "linears-16": Case("50 linears of 16x16", inference(lambda: layers_16(softmax=False), numbers(4, 16))),
    "linears-16-train": Case(
        "train 50 linears of 16x16",
        training(lambda: layers_16(softmax=False), labelled(4, 16, classes=16), summed_up, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
    "softmax-16": Case("50 linears of 16x16 and softmax", inference(lambda: layers_16(softmax=True), numbers(4, 16))),
    "softmax-16-train": Case(
        "train 50 linears of 16x16 and softmax",
        training(lambda: layers_16(softmax=True), labelled(4, 16, classes=16), classify, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
    "mlp-64-train": Case(
        "train MLP, 2 x 64, one row",
        training(lambda: mlp(8, 64, 64, 10), labelled(1, 8, classes=CLASSES), classify, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
    "small-vit-train": Case(
        "train ViT (4 x 384), 8 x 96x96",
        training(lambda: ViT(384, 4, 6, 96), pictures(8, 96), classify, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
    "small-resnet-train": Case(
        "train ResNet-18, 8 x 96x96", training(resnet18, pictures(8, 96), classify, fused=True), LOWERED_WHILE_RUNNING
    ),
    "small-experts-train": Case(
        "train MoE decoder (4 x 256, 4 experts), 2 x 32 tokens",
        training(lambda: Llama(256, 4, 4, 512, 2000, experts=4), texts(2, 32, 2000), guess_each, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
    "small-bert-train": Case(
        "train BERT (4 x 512), 4 x 1 x 16 tokens",
        training(lambda: Bert(512, 4, 8, 8000), texts(1, 16, 8000), guess_each, micro_steps=4, fused=True),
        LOWERED_WHILE_RUNNING,
    ),
}
ALL_CASES = CASES | KIND_CASES | SMALL_CASES


# ---- timing and output -----------------------------------------------------------------------------------------------


def command(case: str, name: str, *, busy: bool) -> list[str]:
    """Returns the command that runs one contender of a case; see :func:`alone`."""
    options = ["--busy"] if busy else ["--threads", str(torch.get_num_threads())]
    return [sys.executable, __file__, *options, "--alone", case, name]


def alone(case: str, name: str, *, busy: bool) -> None:
    """Runs one contender for another process, which is at the other end of stdin and stdout."""
    answers, sys.stdout = sys.stdout, sys.stderr
    torch.manual_seed(0)
    with ExitStack() as state:
        step, found = ALL_CASES[case].make(name, state)
        serve(Contender(name, step, clock=time.process_time if busy else time.perf_counter), found, answers)


@dataclass
class Result:
    title: str
    contenders: dict[str, Contender]

    def faster(self, name: str, peer: str) -> tuple[float, float, float] | None:
        """Returns the speed of ``name`` as a multiple of ``peer``'s: median, and the middle half of the rounds. None if
        one of them was not run."""
        if peer not in self.contenders or name not in self.contenders:
            return None
        return self.contenders[peer].ratio_to(self.contenders[name])


def timed(
    name: str, contenders: tuple[str, ...], *, busy: bool, processes: int, rounds: int, target_seconds: float
) -> Result:
    """Times the contenders for ``rounds`` rounds, ``processes`` times, each time in new processes."""
    together = Result(ALL_CASES[name].title, {one: Contender(one, lambda: None) for one in contenders})
    for _ in range(processes):
        for one in timed_once(name, contenders, busy=busy, rounds=rounds, target_seconds=target_seconds):
            together.contenders[one.name].seconds += one.seconds
    return together


def timed_once(name: str, names: tuple[str, ...], *, busy: bool, rounds: int, target_seconds: float) -> list[Elsewhere]:
    """Times the contenders, each in a new process. Raises ArithmeticError if a result is too far from FP32's."""
    with ExitStack() as stack:
        contenders = [Elsewhere(one, command(name, one, busy=busy)) for one in names]
        for one in contenders:
            stack.callback(one.close)
        differences = {one.name: one.difference for one in contenders}
        # bfloat16 has 8 bits of precision. The casts alone explain the difference of torch.autocast from FP32. This
        # difference is large for the gradients of a deep network that is not trained yet.
        limit = max(0.02, 1.5 * differences["autocast"]) if "autocast" in differences else 0.1
        far = {one: found for one, found in differences.items() if not found <= limit}
        if far:
            raise ArithmeticError(f"{ALL_CASES[name].title}: the results are too far from FP32's: {differences}")
        # While a process waits, others evict its data from the processor's caches. So it first runs untimed.
        run(list(contenders), rounds=rounds, target_seconds=target_seconds, settle_seconds=target_seconds / 4)
    return contenders


def ratio(result: Result, name: str, peer: str) -> str:
    found = result.faster(name, peer)
    return "" if found is None else f"{found[0]:.2f}"


def middle_half(result: Result, name: str, peer: str) -> str:
    found = result.faster(name, peer)
    return "" if found is None else f"{found[1]:.2f} to {found[2]:.2f}"


def milliseconds(result: Result, digits: int) -> list[str]:
    return [f"{result.contenders[name].median * 1e3:.{digits}f}" for name in ("FP32", "autocast", "hmp")]


def cells_with_halves(result: Result, digits: int, peers: tuple[str, ...]) -> list[str]:
    """Returns a row: ratios to autocast with the middle half of the rounds, and ratios to ``peers`` without it."""
    return [
        result.title,
        *milliseconds(result, digits),
        ratio(result, "hmp", "autocast"),
        middle_half(result, "hmp", "autocast"),
        *(ratio(result, "hmp", peer) for peer in peers),
        ratio(result, "hmp default", "autocast"),
        middle_half(result, "hmp default", "autocast"),
    ]


def model_cells(result: Result) -> list[str]:
    return cells_with_halves(result, 1, ("bf16 model", "FP32"))


def kind_cells(result: Result) -> list[str]:
    both = [ratio(result, name, peer) for name in ("hmp", "hmp default") for peer in ("autocast", "FP32")]
    return [result.title, *milliseconds(result, 2), *both]


def small_cells(result: Result) -> list[str]:
    return cells_with_halves(result, 2, ("FP32",))


def within_cells(result: Result) -> list[str]:
    pairs = (("hmp within", "hmp"), ("hmp default within", "hmp default"))
    milliseconds = f"{result.contenders['hmp'].median * 1e3:.1f}"
    return [result.title, milliseconds, *(cell(result, *pair) for pair in pairs for cell in (ratio, middle_half))]


def recommended_cells(result: Result) -> list[str]:
    cells = [cell(result, "hmp recommended", peer) for peer in ("FP32", "autocast") for cell in (ratio, middle_half)]
    return [result.title, f"{result.contenders['hmp recommended'].median * 1e3:.2f}", *cells]


def sums_cells(result: Result) -> list[str]:
    cells = [ratio(result, "hmp recommended", name) for name in ("hmp head", "hmp sums", "FP32")]
    return [result.title, f"{result.contenders['hmp recommended'].median * 1e3:.2f}", *cells]


@dataclass
class Table:
    """A table of docs/performance.md: its name in the page, its columns with their widths in a terminal, and the
    function that makes a row."""

    name: str
    columns: list[tuple[str, int]]
    cells: Callable[[Result], list[str]]

    @property
    def headings(self) -> list[str]:
        return [heading for heading, _ in self.columns]

    def show(self, cells: list[str]) -> None:
        print("".join(f"{one:>{width}}" for one, (_, width) in zip(cells, self.columns, strict=True)), flush=True)

    def write(self, results: list[Result], how: str, *below: str) -> None:
        """Writes ``how``, the rows and ``below`` into the page, between the table's HTML comments."""
        rows = (self.headings, ["---"] * len(self.columns), *map(self.cells, results))
        text = "\n\n".join([how, "\n".join(f"| {' | '.join(row)} |" for row in rows), *below]) + "\n"
        begin, end = f"<!-- {self.name}: written by benchmarks/models.py -->\n", f"<!-- {self.name}: end -->\n"
        page = DOCS / "performance.md"
        before, rest = page.read_text("utf-8").split(begin)
        page.write_text(before + begin + text + end + rest.split(end)[1], "utf-8")


_TIMES = [("case", 44), ("FP32, ms", 10), ("autocast, ms", 13), ("hmp, ms", 9), ("x autocast", 11)]
_DEFAULT = ("default lists, x autocast", 26)
_HALF = ("middle half", 14)
MODELS_TABLE = Table("models", [*_TIMES, _HALF, ("x bf16 model", 13), ("x FP32", 8), _DEFAULT, _HALF], model_cells)
WITHIN_TABLE = Table(
    "within",
    [_TIMES[0], ("hmp, ms", 9), ("within, x everywhere", 22), _HALF, ("default lists, x everywhere", 29), _HALF],
    within_cells,
)
RECOMMENDED_TABLE = Table(
    "recommended",
    [_TIMES[0], ("recommended, ms", 16), ("x FP32", 8), _HALF, ("x autocast", 11), _HALF],
    recommended_cells,
)
SUMS_TABLE = Table(
    "sums",
    [_TIMES[0], ("recommended, ms", 16), ("head, x its time", 18), ("all, x its time", 17), ("FP32, x its time", 18)],
    sums_cells,
)
KINDS_TABLE = Table("kinds", [*_TIMES, ("x FP32", 8), _DEFAULT, ("x FP32", 8)], kind_cells)
SMALL_TABLE = Table("small", [*_TIMES, _HALF, ("x FP32", 8), _DEFAULT, _HALF], small_cells)


def training_mean(results: list[Result]) -> str:
    """Returns a line with the mean of all training steps, or nothing if there are fewer than two."""
    steps = [one.faster("hmp", "autocast") for one in results if one.title.startswith("train ")]
    medians = [one[0] for one in steps if one is not None]
    if len(medians) < 2:
        return ""
    return f"Training steps, geometric mean: {statistics.geometric_mean(medians):.2f} times as fast as autocast."


def mean_of(results: list[Result], table: Table) -> str:
    """Returns a line that summarizes the rows of a table, or nothing."""
    if table in (WITHIN_TABLE, SUMS_TABLE):
        return ""
    if table is not RECOMMENDED_TABLE:
        return training_mean(results)
    found = {peer: [one.faster("hmp recommended", peer) for one in results] for peer in ("FP32", "autocast")}
    means = {peer: statistics.geometric_mean([one[0] for one in each if one]) for peer, each in found.items()}
    return f"Geometric mean: {means['FP32']:.2f} times as fast as float32, {means['autocast']:.2f} times as autocast."


def machine(*, busy: bool) -> str:
    """Describes the machine: the release of torch, the processors, their instructions, the kernels."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    features = [one for one in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if one in flags.split()]
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} of {os.cpu_count()} processors, {' '.join(features)}, "
        f"kernels {kernels.path()}" + (", processor time beside other programs" if busy else "")
    )


def draw(results: list[Result], how: str, about: str) -> None:
    """Writes the plot to docs/performance.svg."""
    bars = {}
    for result in results:
        found = {name: result.faster(name, "autocast") for name in CONTENDERS if name != "autocast"}
        bars[result.title] = {name: one for name, one in found.items() if one is not None}
    picture = chart.bars(bars, "Times as fast as torch.autocast", [f"{how}: {about}", "line: middle half of rounds"])
    (DOCS / "performance.svg").write_text(picture, "utf-8")


def compare_processors(about: str, *, writes: bool, processes: int, rounds: int, target_seconds: float) -> None:
    """Times five models on this processor as it is and with AVX2 alone, beside FP32."""
    bars: dict[str, dict[str, chart.Figure]] = {ALL_CASES[name].title: {} for name in FIVE_CASES}
    without = PROCESSORS[0].settings()
    for where, settings in (("bfloat16 instructions", {}), ("AVX2 alone", without)):
        os.environ.update(settings)  # each contender has its own process
        for name in FIVE_CASES:
            result = timed(name, ALONE, busy=False, processes=processes, rounds=rounds, target_seconds=target_seconds)
            found = result.faster("hmp recommended", "FP32")
            assert found is not None
            bars[result.title][where] = found
            print(f"{result.title}: {where}: {found[0]:.2f} ({found[1]:.2f} to {found[2]:.2f})", flush=True)
    if writes:
        notes = [f"python benchmarks/models.py --processors: {about}", "line: middle half of rounds"]
        (DOCS / "processors.svg").write_text(chart.bars(bars, "habana_mp, times as fast as float32", notes), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small steps")
    parser.add_argument("--kinds", action="store_true", help="small networks of other kinds")
    parser.add_argument("--within", action="store_true", help='convert(within="modules") beside convert()')
    parser.add_argument("--recommended", action="store_true", help='preset="recommended" beside FP32 and autocast')
    parser.add_argument("--sums", action="store_true", help="float32 results of products beside recommended")
    parser.add_argument("--processors", action="store_true", help="five models on this processor and with AVX2 alone")
    parser.add_argument("--only", metavar="CASE[,CASE]", help="of " + ", ".join(ALL_CASES))
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    parser.add_argument("--threads", type=int, default=2, help="default 2")
    parser.add_argument("--busy", action="store_true", help="one thread, processor time")
    parser.add_argument("--write", action="store_true", help="write docs/performance.md and docs/performance.svg")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    every = SMALL_CASES if options.small else KIND_CASES if options.kinds else CASES
    names = options.only.split(",") if options.only else list(every)
    if unknown := set(names) - set(ALL_CASES):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}")
    if options.write and options.only:
        parser.error("--write is for all cases")
    torch.set_num_threads(1 if options.busy else options.threads)
    if options.alone:
        alone(*options.alone, busy=options.busy)
        return

    about = machine(busy=options.busy)
    processes, rounds, target_seconds = (1, 3, 0.1) if options.quick else (3, 5, 0.3)
    if options.processors:
        compare_processors(
            about, writes=options.write, processes=processes, rounds=rounds, target_seconds=target_seconds
        )
        return
    if options.recommended:
        table = RECOMMENDED_TABLE
    elif options.within:
        table = WITHIN_TABLE
    elif options.sums:
        table = SUMS_TABLE
    else:
        table = SMALL_TABLE if options.small else KINDS_TABLE if options.kinds else MODELS_TABLE
    chosen = {WITHIN_TABLE.name: WHERE, RECOMMENDED_TABLE.name: RECOMMENDED, SUMS_TABLE.name: WITH_SUMS}
    contenders = chosen.get(table.name)
    print(about)
    table.show(table.headings)
    results = []
    for name in names:
        results.append(
            timed(
                name,
                contenders or ALL_CASES[name].contenders,
                busy=options.busy,
                processes=processes,
                rounds=rounds,
                target_seconds=target_seconds,
            )
        )
        table.show(table.cells(results[-1]))
    mean = mean_of(results, table)
    if mean:
        print(mean)
    if options.write:
        how = " ".join(["python benchmarks/models.py", *sys.argv[1:]])
        if table is MODELS_TABLE:
            below = [training_mean(results), "![Times as fast as torch.autocast](performance.svg)"]
            draw(results, how, about)
        else:
            below = [mean] if mean else []
        table.write(results, f"`{how}`: {about}.", *below)


if __name__ == "__main__":
    main()
