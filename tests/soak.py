"""Runs mixed work for hours in one process, checks every result, and bounds the growth of the resident memory.

    python tests/soak.py [--minutes N] [--seed N] [--bound MEGABYTES]

The work is chosen at random, the same for the same seed: training, inference, reports, new models, threads, forks,
convert and restore, functions that are wrapped and dropped, list files that change, calls that fail. Each piece checks
its results. The resident memory is sampled after a collection of garbage. The warm-up lasts for a quarter of the time,
and for 2,000 pieces of work at least: until then torch's library fills its cache of kernels for shapes. After it, the
last third of the samples may have a median of at most ``--bound`` megabytes more than the first third. The exit status
is 1 where it has more, where descriptors or threads are left over, where a piece of work failed, and where there were
too few samples after the warm-up. With ``--bound 0`` nothing is said of memory, descriptors and threads.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import faulthandler
import gc
import io
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
PRESETS = ("hmp-default", "torch-cpu", "torch-cuda", "hpu-autocast")
#: Pieces of work before memory is compared, and samples that are enough for a comparison.
WARM_UP, ENOUGH = 2000, 9
#: Seconds for what runs in a thread or a fork.
PATIENCE = 120.0


class WrongResultError(Exception):
    """A piece of work has found a result that is not right."""


def expect(holds: object, what: str) -> None:
    if not holds:
        raise WrongResultError(what)


#: The pieces of work, methods of `Work`, and how often each is chosen beside the others.
SHARES = {
    "training": 8,
    "inference": 8,
    "changed_weights": 4,
    "another_model": 3,
    "wrapped_functions": 3,
    "files": 2,
    "reports": 2,
    "conversion": 2,
    "disabled": 2,
    "restoration": 1,
    "changed_lists": 1,
    "wrong_calls": 1,
    "threads": 1,
    "fork": 1,
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Work:
    """The pieces of work, each a method; what they use again is here."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random, self.folder = random.Random(seed), folder
        torch.manual_seed(seed)
        self.lasting = self.new_model()

    # ---- models --------------------------------------------------------------------------------------------------

    def new_model(self) -> nn.Module:
        width = self.random.choice([16, 64, 128, 192])
        kind = self.random.randrange(3)
        if kind == 0:
            return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10)).train()
        if kind == 1:
            return nn.Sequential(Block(width), nn.Linear(width, 10))
        return nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)
        )

    def input_of(self, model: nn.Module) -> Tensor:
        assert isinstance(model, nn.Sequential)
        first, rows = model[0], self.random.choice([1, 4, 16])
        if isinstance(first, nn.Conv2d):
            return torch.randn(rows, 3, 12, 12)
        if isinstance(first, Block):
            return torch.randn(rows, 5, first.up.in_features)
        assert isinstance(first, nn.Linear)
        return torch.randn(rows, first.in_features)

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """By convert, or in a region."""
        if self.random.random() < 0.5 or not hmp.is_converted():
            with hmp.autocast("cpu", dtype=BF16):
                yield
        else:
            yield

    # ---- pieces of work ------------------------------------------------------------------------------------------

    def training(self) -> None:
        model = self.new_model().train() if self.random.random() < 0.7 else self.lasting.train()
        make = self.random.choice([torch.optim.SGD, torch.optim.AdamW])
        optimizer = make(model.parameters(), lr=1e-3, fused=self.random.random() < 0.5)
        for _ in range(self.random.randrange(1, 6)):
            x = self.input_of(model)
            with self.lowered():
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.random.random() < 0.5)
        expect(loss.isfinite(), "a loss that is not finite")
        expect(
            {one.dtype for one in model.state_dict().values() if one.is_floating_point()} == {FP32},
            "a weight is not float32",
        )

    def inference(self) -> None:
        model = self.lasting.eval()
        x = self.input_of(model)
        with torch.inference_mode() if self.random.random() < 0.5 else torch.no_grad(), self.lowered():
            for _ in range(self.random.randrange(1, 30)):
                result = model(x)
            fresh = copy.deepcopy(model)(x) if not torch.is_inference_mode_enabled() else None
        if fresh is not None:
            expect(torch.allclose(result.float(), fresh.float(), rtol=0.02, atol=0.02), "a model differs from its copy")

    def changed_weights(self) -> None:
        model = self.lasting.eval()
        x = self.input_of(model)
        with torch.no_grad(), self.lowered():
            for parameter in model.parameters():
                if self.random.random() < 0.5:
                    parameter.mul_(1.001)
                else:
                    parameter.data = parameter.detach() * 0.999
            result, fresh = model(x), copy.deepcopy(model)(x)
        expect(torch.allclose(result.float(), fresh.float(), rtol=0.02, atol=0.02), "a cast is not that of its weight")

    def another_model(self) -> None:
        self.lasting = self.new_model()
        cycle = [self.new_model()]
        cycle.append(cycle)  # type: ignore[arg-type]

    def files(self) -> None:
        file = io.BytesIO()
        torch.save(self.lasting.state_dict(), file)
        file.seek(0)
        self.lasting.load_state_dict(torch.load(file, weights_only=True), assign=self.random.random() < 0.3)
        for parameter in self.lasting.parameters():
            parameter.requires_grad_()

    def reports(self) -> None:
        with hmp.watch(self.random.choice(["operations", "modules", "lines"])):
            self.inference()
        report = hmp.report(show=False)
        report.to_json(self.folder / "report.json")
        if self.random.random() < 0.2:
            report.to_html(self.folder / "report.html")
        expect(str(report), "an empty report")
        if self.random.random() < 0.5:
            hmp.reset_report()

    def conversion(self) -> None:
        hmp.convert(
            preset=self.random.choice(PRESETS),
            dtype=self.random.choice([BF16, FP16]),
            within=self.random.choice([None, "modules"]),
            report=self.random.choice(["operations", "modules", "lines"]),
            log=self.random.choice([None, None, self.folder / "casts.log", self.folder / "casts.jsonl"]),
            weight_cache=self.random.random() < 0.8,
            reuse_memory=self.random.random() < 0.8,
        )

    def restoration(self) -> None:
        hmp.restore()
        expect(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32, "a product is lowered after restore")

    def changed_lists(self) -> None:
        names = ["mm", "linear", "conv2d", "relu", "softmax", "exp", "add", "mul", "layer_norm", "gelu", "matmul"]
        self.random.shuffle(names)
        cut = self.random.randrange(1, len(names))
        lists = self.folder / "bf16.txt", self.folder / "fp32.txt"
        for path, part in zip(lists, (names[:cut], names[cut:]), strict=True):
            path.write_text("\n".join(part) + "\n")
        hmp.convert("O1", str(lists[0]), str(lists[1]))
        lowered = torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is BF16
        expect(lowered == ("mm" in names[:cut]), "a list is not obeyed")

    def wrapped_functions(self) -> None:
        scale = torch.randn(3)
        for to, dtype in (("bf16", BF16), ("fp32", FP32)):
            function = hmp.op_wrap(lambda x, y, scale=scale: (x @ y, scale)[0], to=to)
            with hmp.autocast("cpu", dtype=BF16):
                expect(function(torch.ones(4, 4), torch.ones(4, 4)).dtype is dtype, "op_wrap is not obeyed")

    def wrong_calls(self) -> None:
        with self.lowered():
            for call in (
                lambda: torch.mm(torch.ones(2, 3), torch.ones(2, 3)),
                lambda: F.linear(torch.ones(2, 3), torch.ones(4, 5)),
                lambda: torch.cat([torch.ones(2), "two"]),  # type: ignore[list-item]
                lambda: hmp.convert("O9"),
                lambda: hmp.convert(bf16_file_path=str(self.folder / "missing.txt")),
            ):
                try:
                    call()
                except (RuntimeError, TypeError, ValueError, OSError):
                    continue
                raise WrongResultError("a wrong call has not raised")

    def disabled(self) -> None:
        with hmp.disable_casts():
            expect(
                torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is FP32, "a product is lowered under disable_casts"
            )

    def threads(self) -> None:
        errors: list[BaseException] = []
        model, x = copy.deepcopy(self.lasting).eval(), self.input_of(self.lasting)

        def work() -> None:
            try:
                for _ in range(5):
                    with hmp.autocast("cpu", dtype=BF16), torch.no_grad():
                        expect(model(x).isfinite().all(), "a result in a thread is not finite")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            expect(not thread.is_alive(), "a thread does not end")
        if errors:
            raise errors[0]

    def fork(self) -> None:
        model, x = self.lasting.eval(), self.input_of(self.lasting)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                torch.set_num_threads(1)
                with torch.no_grad(), hmp.autocast("cpu", dtype=BF16):
                    right = bool(model(x).isfinite().all())
                os._exit(0 if right else 1)
            except BaseException:
                traceback.print_exc()
                os._exit(2)
        end = time.monotonic() + PATIENCE
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
            if time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise WrongResultError("a forked child does not end")
            time.sleep(0.005)
        expect(ended[1] == 0, f"a forked child ended with {ended[1]}")


# ---- memory ----------------------------------------------------------------------------------------------------------


@dataclass
class Sample:
    minute: float
    pieces: int
    megabytes: float
    objects: int
    threads: int
    descriptors: int
    kept: int
    kept_megabytes: float


def sample(begin: float, pieces: int) -> Sample:
    """After a collection, and after the C library gave back what it does not use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    weights = hmp.report(show=False).weights
    return Sample(
        (time.monotonic() - begin) / 60, pieces, pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(gc.get_objects()),
        len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), weights.weights, weights.bytes / 1e6,
    )  # fmt: skip


def trend(samples: list[Sample], value: Callable[[Sample], float]) -> tuple[float, float]:
    """The growth from the first third to the last one, of medians, and what it is in an hour."""
    third = max(1, len(samples) // 3)
    first, last = samples[:third], samples[-third:]
    growth = statistics.median(map(value, last)) - statistics.median(map(value, first))
    minutes = statistics.median(one.minute for one in last) - statistics.median(one.minute for one in first)
    return growth, growth * 60 / minutes if minutes else 0.0


def show(samples: list[Sample], counts: Counter[str], seconds: Counter[str]) -> None:
    print("\n| minute | pieces of work | resident MB | objects | threads | descriptors | kept casts | MB of them |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for one in samples[:: max(1, len(samples) // 24)]:
        print(
            f"| {one.minute:.1f} | {one.pieces} | {one.megabytes:.1f} | {one.objects} | {one.threads} "
            f"| {one.descriptors} | {one.kept} | {one.kept_megabytes:.2f} |"
        )
    print("\n| piece of work | times | seconds |\n|---|---:|---:|")
    for name, times in counts.most_common():
        print(f"| {name} | {times} | {seconds[name]:.1f} |")


def judge(warm: list[Sample], bound: float) -> int:
    """Prints the growth after the warm-up; returns the number of what grew too much."""
    if len(warm) < ENOUGH:
        print(f"{len(warm)} samples after {WARM_UP} pieces of work, {ENOUGH} are needed: take more minutes")
        return 1
    growth, hourly = trend(warm, lambda one: one.megabytes)
    print(f"resident memory after the warm-up: {growth:+.1f} MB, {hourly:+.1f} MB an hour; bound: {bound:g} MB")
    wrong = 0
    for what, value, most in (
        ("resident MB", lambda one: one.megabytes, bound),
        ("descriptors", lambda one: one.descriptors, 3),
        ("threads", lambda one: one.threads, 3),
    ):
        grown = trend(warm, value)[0]
        if grown > most:
            print(f"{what} grew by {grown:.1f}, more than {most:g}")
            wrong += 1
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bound", type=float, default=32.0, metavar="MEGABYTES", help="of growth after the warm-up")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    torch.set_num_threads(min(2, torch.get_num_threads()))
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    samples: list[Sample] = []
    failures = []
    begin = time.monotonic()
    end, interval = begin + 60 * options.minutes, max(1.0, 60 * options.minutes / 240)
    next_sample = begin
    with tempfile.TemporaryDirectory() as folder:
        work = Work(options.seed, Path(folder))
        names, shares = list(SHARES), list(SHARES.values())
        while (now := time.monotonic()) < end and len(failures) < 10:
            if now >= next_sample:
                samples.append(sample(begin, counts.total()))
                next_sample = now + interval
            name = work.random.choices(names, shares)[0]
            try:
                getattr(work, name)()
            except Exception:
                failures.append(f"piece {counts.total()}, {name}, seed {options.seed}\n{traceback.format_exc()}")
                print(failures[-1], flush=True)
            counts[name] += 1
            seconds[name] += time.monotonic() - now
        hmp.restore()
        del work
        samples.append(sample(begin, counts.total()))
    show(samples, counts, seconds)
    print(
        f"\nseed {options.seed}, {options.minutes:g} minutes, {counts.total()} pieces of work, {len(failures)} failed"
    )
    wrong = len(failures)
    if options.bound:
        wrong += judge(
            [one for one in samples if one.minute >= options.minutes / 4 and one.pieces >= WARM_UP], options.bound
        )
    if samples[-1].kept:
        print(f"{samples[-1].kept} casts are kept of models that are gone")
        wrong += 1
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
