"""Threads that convert, restore, disable, log and call at the same time; what races is for ThreadSanitizer to say.

    python tests/sanitize/threads.py [--seconds 20] [--core FILE]

Every call must give a tensor, in a precision that some configuration gives; nothing may be raised but what is expected.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from habana_mp import _core, hmp, kernels

FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def converts(rng: random.Random) -> None:
    choices: list[dict[str, Any]] = [{}, {"opt_level": "O2"}, {"dtype": torch.float16}, {"preset": "torch-cuda"}]
    hmp.convert(**rng.choice(choices))


def restores(_: random.Random) -> None:
    hmp.restore()
    time.sleep(0.001)


class Logs:
    """Changes where the log goes."""

    def __init__(self, folder: Path) -> None:
        logger = logging.getLogger("threads")
        logger.addHandler(logging.StreamHandler(io.StringIO()))
        logger.propagate = False
        logger.setLevel(logging.INFO)
        self._places = (folder / "log.txt", folder / "log.jsonl", logger)

    def __call__(self, rng: random.Random) -> None:
        hmp.convert(log=rng.choice(self._places))
        for _ in range(20):
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        _core.log_flush()
        if rng.random() < 0.5:
            _core.log_back_to(None)


def disables(_: random.Random) -> None:
    a = torch.ones(3, 3)
    with hmp.disable_casts():
        for _ in range(5):
            assert torch.mm(a, a).dtype == torch.float32
        with hmp.disable_casts():
            assert (a @ a).dtype == torch.float32


def calls(rng: random.Random) -> None:
    size = rng.choice([1, 4, 64, 300])
    a, b = torch.randn(size, size), torch.randn(size, size)
    with torch.no_grad() if rng.random() < 0.5 else contextlib.nullcontext():
        for result in (torch.mm(a, b), a @ b, torch.cat([a, b.bfloat16()]), torch.softmax(a, 0), a.mul(b), a.add(1)):
            assert result.dtype in FLOATING, result.dtype
        bound = a.mm
        bound(b)
    a[0] = b[-1].bfloat16()
    a += b
    assert a.dtype == torch.float32


def trains(_: random.Random) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        model(torch.randn(4, 8)).float().sum().backward()
    except RuntimeError as error:
        # The policy was taken away between two layers, and the second one met the first one's precision.
        if "dtype" not in str(error):
            raise
    optimizer.step()
    assert model[0].weight.dtype == torch.float32


def casts_into_blocks(rng: random.Random) -> None:
    _core.keep_blocks(1 << 10, 1 << 14)
    inputs = [torch.randn(rng.choice([20, 32, 40]), 40, requires_grad=True) for _ in range(3)]
    other = torch.randn(40, 7)
    for result in [torch.mm(one, other) for one in inputs]:
        result.float().sum().backward()
    for one in inputs:
        assert one.grad is not None
        assert one.grad.dtype == torch.float32


class Shares:
    """Layers that all threads use and one of them writes, while no other one uses them: torch does not allow that."""

    _users = 4

    def __init__(self) -> None:
        self._free = threading.Semaphore(self._users)
        self._layers = [torch.nn.Linear(size, size) for size in (8, 140, 300)]

    def uses(self, rng: random.Random) -> None:
        layer = rng.choice(self._layers)
        mode = rng.choice((torch.no_grad, torch.inference_mode, contextlib.nullcontext))
        with self._free, mode():
            for _ in range(6):
                result = layer(torch.randn(2, layer.in_features))
        assert result.dtype in FLOATING
        if result.requires_grad:
            with contextlib.suppress(RuntimeError):  # written before the backward
                result.float().sum().backward()

    def writes(self, rng: random.Random) -> None:
        weight = rng.choice(self._layers).weight
        with contextlib.ExitStack() as held, torch.no_grad():
            for _ in range(self._users):
                held.enter_context(self._free)
            rng.choice((lambda: weight.add_(0.1), lambda: weight.data.zero_(), lambda: weight.detach().numpy()))()
        if rng.random() < 0.1:
            self._layers[0] = torch.nn.Linear(8, 8)


def wraps(_: random.Random) -> None:
    wrapped = hmp.op_wrap(lambda x: x * 2, to="bf16")
    for _ in range(5):
        wrapped(torch.ones(4))


def casts_arrays(rng: random.Random) -> None:
    array = np.ones(rng.choice([10, 1 << 15, 1 << 18]), np.float32)
    for path in _core.kernels_paths():
        _core.kernels_cast(array, np.dtype(np.float16), None, 3, path)
    assert (kernels.to_float32(kernels.to_bfloat16(array, threads=2)) == 1).all()


def reports(_: random.Random) -> None:
    hmp.report(show=False)
    hmp.is_converted()
    hmp.reset_report()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cold", action="store_true", help="leave it to the threads to import what torch imports late")
    parser.add_argument("--core", type=Path, help="the core that must be loaded")
    given = parser.parse_args()
    if given.core is not None and Path(_core.__file__).resolve() != given.core.resolve():
        sys.exit(f"the wrong core is loaded: {_core.__file__}, expected {given.core}")
    torch.set_num_threads(1)
    if not given.cold:
        importlib.import_module("torch._dynamo")
    # Threads change places as often as they can.
    sys.setswitchinterval(1e-5)
    end = time.monotonic() + given.seconds
    rounds: dict[str, int] = {}
    failed: list[str] = []

    def runs(name: str, action: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        done = 0
        try:
            while time.monotonic() < end and not failed:
                action(rng)
                done += 1
        except Exception:
            failed.append(f"{name}:\n{traceback.format_exc()}")
        rounds[f"{name}-{seed}"] = done

    with tempfile.TemporaryDirectory() as folder:
        shares = Shares()
        actions: list[Callable[[random.Random], None]] = [
            converts,
            restores,
            Logs(Path(folder)),
            disables,
            calls,
            calls,
            calls,
            trains,
            casts_into_blocks,
            casts_into_blocks,
            shares.uses,
            shares.uses,
            shares.writes,
            wraps,
            casts_arrays,
            reports,
        ]
        threads = [
            threading.Thread(target=runs, args=(getattr(action, "__name__", "logs"), action, given.seed + number))
            for number, action in enumerate(actions)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hmp.restore()
    print(f"threads: {sum(rounds.values())} rounds, {rounds}")
    for text in failed:
        print(text)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
