"""Drives every path of the core once, for the sanitizers and valgrind: a plain and quick script.

    python tests/sanitize/core_exercise.py [--core FILE]

--core is the core that must be loaded; another one is an error, so that no sanitizer watches the wrong one. With
`--small` nothing larger than some thousand numbers is cast, for a program that runs fifty times slower.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from exercise_calls import the_arguments, the_assignment, the_errors, the_functions, the_second_try
from exercise_casts import the_buffers, the_casts, the_kernels, the_weights
from exercise_common import converted, raises

from habana_mp import _core, hmp, kernels


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        product = torch.mm(torch.ones(3, 3), torch.ones(3, 3))
        assert product.dtype == torch.float32
        self.weight = torch.nn.Parameter(product)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) @ self.weight


def the_places() -> None:
    """The probes: autocast, construction, optimizers, parameters made of results, disabled casts."""
    with converted():
        a = torch.ones(3, 3)
        with torch.autocast("cpu", enabled=False):
            assert torch.mm(a, a).dtype == torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16):
                torch.mm(a, a)
            with torch.autocast("cpu", enabled=False), torch.autocast("cpu", enabled=False):
                torch.mm(a, a)
        with raises(TypeError):
            torch.set_autocast_enabled("cpu", 1, 2)  # type: ignore[call-arg]
        with raises(TypeError):
            torch.autocast_increment_nesting(1)  # type: ignore[call-arg]
        model = Model()
        closed = 0

        def closure() -> torch.Tensor:
            nonlocal closed
            closed += 1
            optimizer.zero_grad()
            loss = model(a).float().sum()
            loss.backward()
            return loss

        for optimizer in (torch.optim.SGD(model.parameters(), 0.1), torch.optim.LBFGS(model.parameters(), max_iter=2)):
            optimizer.step(closure)
            optimizer.step(closure=closure)
        assert closed > 1

        def fails() -> Any:
            raise ValueError("closure")

        with raises(ValueError):
            optimizer.step(fails)
        assert torch.mm(a, a).dtype == torch.bfloat16

        class Fails(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                raise ValueError("__init__")

        with raises(ValueError):
            Fails()
        assert torch.mm(a, a).dtype == torch.bfloat16
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            late = torch.nn.Module()
            late.weight = torch.nn.Parameter(torch.mm(a, a))
            late.register_buffer("buffer", torch.mm(a, a))
        assert told
        with hmp.disable_casts():
            with hmp.disable_casts():
                assert torch.mm(a, a).dtype == torch.float32
            assert torch.mm(a, a).dtype == torch.float32

        @hmp.disable_casts()
        def generator() -> Iterator[torch.dtype]:
            for _ in range(3):
                yield torch.mm(a, a).dtype

        assert set(generator()) == {torch.float32}
        del late
        gc.collect()


def the_log() -> None:
    handler = logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("core_exercise")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False

    class Calls(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            torch.mm(torch.ones(2, 2), torch.ones(2, 2))
            raise RuntimeError("a handler that fails")

    a = torch.ones(3, 3)
    with tempfile.TemporaryDirectory() as folder:
        for log in (Path(folder, "log.txt"), Path(folder, "log.jsonl"), logger, None):
            with contextlib.redirect_stdout(io.StringIO()), converted(log=log):
                for _ in range(600):
                    torch.mm(a, a)
                with hmp.disable_casts():
                    torch.mm(a, a)
                with raises(RuntimeError):
                    torch.mm(a, torch.ones(5, 5))
                _core._log_operation('\udc80 "quoted" \n \x01 \u00e9 \u20ac \U0001f600', "x", 0, 0, 2)
                _core._log_event("\ud800 event")
                _core.log_flush()
        assert Path(folder, "log.jsonl").read_bytes().count(b"\n") > 600
        hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        logger.addHandler(Calls())
        with converted(log=logger), contextlib.suppress(RuntimeError):
            torch.mm(a, a)
        with contextlib.redirect_stdout(None), converted(isVerbose=True):  # type: ignore[type-var]
            torch.mm(a, a)
        if Path("/dev/full").exists():
            with converted(log="/dev/full"):
                for _ in range(2000):
                    torch.mm(a, a)
        sys.unraisablehook = hook
        for wrong in (("x", None), ("python", 1), ("file", 1), ("file", folder)):
            with contextlib.suppress(Exception):
                _core.log_to(*wrong)
        _core.log_off()
        for precision, reason in ((-1, 0), (0, 99)):
            with raises(ValueError):
                _core._log_operation("x", "x", precision, reason, 0)


def the_fork() -> None:
    with tempfile.TemporaryDirectory() as folder, converted(log=Path(folder, "log.jsonl")):
        a = torch.ones(3, 3)
        torch.mm(a, a)
        kernels.to_float16(np.zeros(1 << 12, np.float32), threads=2)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                torch.mm(a, a)
                _core.kernels_cast_with(
                    np.zeros(1 << 16, np.float32), np.dtype(np.float16), None, 2, _core.kernels_path(), False
                )
                hmp.restore()
                hmp.convert()
                torch.mm(a, a)
                hmp.restore()
                status = 0
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def the_installation() -> None:
    for _ in range(5):
        with converted():
            hmp.convert("O2")
            hmp.convert(preset="torch-cuda")
            held = torch.ones(2, 2).mm
        assert held(torch.ones(2, 2)).dtype == torch.float32
        assert _core.installed_count() == 0
    hmp.restore()


def the_regions() -> None:
    region, x = hmp.autocast("cpu"), torch.randn(4, 4, requires_grad=True)
    for _ in range(3):
        with region, hmp.autocast("cpu", torch.float16, preset="torch-cuda"):
            torch.mm(x, x).sum().backward()
            torch.nn.functional.softmin(x, -1)
            with hmp.disable_casts(), region, torch.autocast("cpu", enabled=False):
                torch.mm(x, x)
            with raises(RuntimeError):
                torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.detach().sigmoid())
            hmp.restore()
    with raises(RuntimeError):
        region.__exit__()
    state = _core.current_state()
    assert _core.exchange_state(state) == state


PARTS: list[Callable[[], None]] = [
    the_kernels,
    the_weights,
    the_casts,
    the_buffers,
    the_arguments,
    the_errors,
    the_second_try,
    the_functions,
    the_assignment,
    the_places,
    the_regions,
    the_log,
    the_fork,
    the_installation,
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=Path, help="the core that must be loaded")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", help="one part")
    given = parser.parse_args()
    if given.core is not None and Path(_core.__file__).resolve() != given.core.resolve():
        sys.exit(f"the wrong core is loaded: {_core.__file__}, expected {given.core}")
    torch.set_num_threads(2)
    for part in PARTS:
        if given.only is None or part.__name__ == given.only:
            part()
            print(f"core_exercise: {part.__name__} ({_core.reader()}, {_core.kernels_path()})", flush=True)


if __name__ == "__main__":
    main()
