"""What the tests share: a policy made of a few names, and the promise that every test leaves torch as it was."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import shutil
import subprocess
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from habana_mp import HmpWarning, _core, hmp

# Inductor finds what it has generated again by a key that does not tell how wide the vectors were, and compiles it for
# those of today: under another ATEN_CPU_CAPABILITY such code writes beside its memory. So each has a cache of its own.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(
    Path(__file__).parents[1] / "build" / f"inductor-{torch.backends.cpu.get_cpu_capability().lower()}"
)

Converter = Callable[..., None]

HAS_COMPILER = shutil.which("c++") is not None or shutil.which("g++") is not None
#: Of torch.compile; Inductor itself needs a C++ compiler.
BACKENDS = ["eager", "aot_eager", *(["inductor"] if HAS_COMPILER else [])]

_core.bind_torch()
#: In the first releases that have it, fully_shard takes streams of CUDA whatever it shards; it was private then.
needs_fully_shard = pytest.mark.skipif(
    not torch.distributed.is_available()
    or not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"),
    reason="this torch's fully_shard needs a GPU",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="one test of N, the Ith first")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        first, step = map(int, part.split("/"))
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % step != first])
        items[:] = items[first::step]


def write_list(path: Path, names: Iterable[str]) -> str:
    """A list file with these names; its path."""
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return str(path)


def assert_torch_is_restored() -> None:
    """Nothing is covered, and a GEMM, an activation and an assignment do what torch does."""
    assert not hmp.is_converted()
    assert _core.installed_count() == 0
    matrix = torch.ones(2, 2)
    assert torch.mm(matrix, matrix).dtype is torch.float32
    assert (matrix @ matrix).dtype is torch.float32
    assert torch.relu(matrix).dtype is torch.float32
    assert matrix.t().dtype is torch.float32
    assert torch.softmax(matrix.bfloat16(), -1).dtype is torch.bfloat16
    assert not torch.nn.modules.module._global_parameter_registration_hooks
    assert not torch.nn.modules.module._global_buffer_registration_hooks


@contextlib.contextmanager
def interrupted(
    is_place: Callable[[types.FrameType, str], bool], nth: int = 1, error: type[BaseException] = KeyboardInterrupt
) -> Iterator[None]:
    """The error is raised, as the handler of a signal may, in the nth place of these: of a frame and what is told of it
    (``call``, ``c_return``)."""
    left = nth

    def interrupt(frame: types.FrameType, event: str, _: Any) -> None:
        nonlocal left
        if is_place(frame, event):
            left -= 1
            if left == 0:
                sys.setprofile(None)
                raise error

    sys.setprofile(interrupt)
    try:
        yield
    finally:
        sys.setprofile(None)


def seeded(call: Callable[[], Any]) -> Any:
    """The result of ``call`` with the same random numbers each time."""
    torch.manual_seed(0)
    return call()


def in_threads(work: Callable[[int], None], count: int = 4) -> None:
    """``work`` with each number below ``count``, in a thread each, at once."""
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def all_bfloat16_tensors() -> list[torch.Tensor]:
    """Those that no Python code holds too: kept casts, and buffers."""
    found = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return [one for one in found if one.dtype is torch.bfloat16 and not one.is_nested]


def packed() -> int:
    """How many weights are kept in a packed form."""
    return hmp.report(show=False).weights.packed


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of lists, tuples and dictionaries."""
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def assert_same(result: Any, expected: Any, *, close: bool = False) -> None:
    """Equal dtypes, shapes and values; ``close`` where LAPACK's own result depends on where the memory lies."""
    got, wanted = tensors(result), tensors(expected)
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted, strict=True):
        assert one.dtype is other.dtype
        if close:
            torch.testing.assert_close(one, other)
        else:
            assert torch.equal(one, other)


def run_script(
    code: str, *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, among the tests if nothing else is said."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd or Path(__file__).parent,
        env={**os.environ, **environment},
    )


def enable_compiled_autograd(compiler: Any) -> Any:
    """torch's own, which has another name in older releases."""
    from torch._dynamo import compiled_autograd

    name = "_enable" if hasattr(compiled_autograd, "_enable") else "enable"
    return getattr(compiled_autograd, name)(compiler)


def skip_where_no_region_is_exported(strict: bool) -> None:
    """A strict export of older releases takes no region of torch.autocast, theirs or ours."""

    class Region(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return torch.mm(x, x)

    try:
        torch.export.export(Region(), (torch.eye(2),), strict=strict)
    except torch._export.verifier.SpecViolationError:
        pytest.skip("this torch exports no region of torch.autocast so")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Whatever a test does, torch is as it was afterwards."""
    yield
    hmp.restore()
    assert_torch_is_restored()


@pytest.fixture
def converted(tmp_path: Path) -> Converter:
    """A function that converts with exactly the names given: ``converted(bf16=["mm"], fp32=["exp"])``."""

    def convert(*, bf16: Iterable[str] = (), fp32: Iterable[str] = (), **options: Any) -> None:
        hmp.convert(
            "O1",
            write_list(tmp_path / "made_bf16.txt", bf16),
            write_list(tmp_path / "made_fp32.txt", fp32),
            **options,
        )

    return convert


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are taken in one order, so that results can be compared to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """No test sees what another one compiled."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def quiet_libraries() -> Iterator[None]:
    """Libraries advise and warn; only a warning of ours is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HmpWarning)
        yield


@pytest.fixture
def counted() -> Iterator[None]:
    """The report counts from zero, before and after."""
    hmp.reset_report()
    yield
    hmp.reset_report()
