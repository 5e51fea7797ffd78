"""What all tests share: the promise that every test leaves torch as it was, and a policy made of a few names."""

from __future__ import annotations

import gc
import importlib
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Of two workers each has one processor: threads that wait for each other in a loop would make both many times slower.
# A test that is about threads says how many it wants.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import hypothesis
import pytest
import torch

from habana_mp import HmpWarning, _core, hmp
from habana_mp.patches.torch import products as products_patch
from helpers.lists import Converter, write_list
from helpers.ranks import ranks
from helpers.state_of_torch import assert_torch_is_restored, modes_of_thread

# Inductor finds what it has generated again by a key that does not tell how wide the vectors were, and compiles it for
# those of today: under another ATEN_CPU_CAPABILITY such code writes beside its memory. So each has a cache of its own.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(
    Path(__file__).parents[1] / "build" / f"inductor-{torch.backends.cpu.get_cpu_capability().lower()}"
)

_core.bind_torch()
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="every Nth test, from number I on; the first is 0")


def pytest_collection_finish() -> None:
    # Imported objects stay to the end, so they are frozen: otherwise the many tests that collect garbage would look at
    # all of them each time.
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # The same after each file.
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    # One pair of processes serves all tests of a folder.
    if nextitem is None or nextitem.path.parent != item.path.parent:
        ranks.stop()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("part"):
        first, step = map(int, part.split("/"))
        config.hook.pytest_deselected(items=[item for i, item in enumerate(items) if i % step != first])
        items[:] = items[first::step]
    if "QEMU_CPU" in os.environ:
        from aarch64.unable import UNABLE

        for item in items:
            for reason in (why for name, why in UNABLE.items() if item.nodeid.startswith(name)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Whatever a test does, torch is as it was afterwards."""
    before = modes_of_thread()
    yield
    hmp.restore()
    assert_torch_is_restored()
    assert modes_of_thread() == before


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
def without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are computed as on a processor that has no instructions for the lower precisions."""
    monkeypatch.setattr(products_patch, "multiplies_bfloat16", lambda: False)
    monkeypatch.setattr(products_patch, "multiplies_float16", lambda: False)
    torch.manual_seed(0)


@pytest.fixture(params=["as it is", "without instructions"])
def with_and_without_instructions(request: pytest.FixtureRequest) -> None:
    """The test runs as this processor is, and as on one without the instructions."""
    if request.param == "without instructions":
        request.getfixturevalue("without_instructions")
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums are taken in one order, so that results can be compared to the bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    """No test sees what another one compiled. Torch imports these modules late, because they take seconds."""
    importlib.import_module("torch._dynamo.testing")
    importlib.import_module("torch._inductor.config")
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


@pytest.fixture
def alone_in_a_group() -> Iterator[None]:
    """A group of torch.distributed of one process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    state = importlib.import_module("accelerate.state").AcceleratorState
    state._reset_state(reset_partial_state=True)
    yield
    state._reset_state(reset_partial_state=True)
