"""The core uses no memory that was freed, whatever runs in the middle of a call.

Freed memory is made unreadable in the children that run here (tests/sanitize/guard_pages.cpp).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.preloaded import TESTS, compiled, run_guarded

HERE = Path(__file__).parent
COLLECTIONS = HERE / "hostile_collections.py"
SCENARIOS = (
    *("activation", "large_activation", "image", "uneven_rows", "new_weight", "kept_weight", "packed_weight"),
    *("packing", "training_step", "guarded", "observed", "under_rules"),
)


@pytest.fixture(scope="module")
def guard_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(TESTS / "sanitize" / "guard_pages.cpp", tmp_path_factory.mktemp("guard_pages"))


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(HERE / "collector.c", tmp_path_factory.mktemp("collector"))


def test_the_guard_sees_a_read_of_freed_memory(guard_pages: Path, tmp_path: Path) -> None:
    script = tmp_path / "reads.py"
    script.write_text(
        "import ctypes, torch\n"
        "x = torch.ones(100)\naddress = x.data_ptr()\ndel x\ny = torch.ones(100)\nprint('freed', flush=True)\n"
        "ctypes.string_at(address, 4)\n"
    )
    done = run_guarded(guard_pages, script, seconds=60)
    assert (done.returncode, done.stdout) == (-11, "freed\n")


@pytest.mark.parametrize(("scenario", "every"), [("activation", "3"), ("arrays", "1")])
def test_a_collection_that_changes_the_tensors_of_a_call_does_no_harm(
    scenario: str, every: str, guard_pages: Path, collector: Path
) -> None:
    done = run_guarded(guard_pages, COLLECTIONS, str(collector), scenario, "--every", every, seconds=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.trust
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_collection_at_any_allocation_of_a_call_does_no_harm(
    scenario: str, guard_pages: Path, collector: Path
) -> None:
    done = run_guarded(guard_pages, COLLECTIONS, str(collector), scenario, seconds=3500)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("what", ["the_buffers"])
def test_steps_and_casts_use_no_freed_memory(what: str, guard_pages: Path) -> None:
    done = run_guarded(guard_pages, HERE / "exercises.py", "--small", what, seconds=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.trust
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("what", ["the_buffers", "the_casts", "the_weights", "the_kernels"])
def test_large_steps_casts_and_products_on_threads_use_no_freed_memory(what: str, guard_pages: Path) -> None:
    done = run_guarded(guard_pages, HERE / "exercises.py", what, seconds=3500, threads=2)
    assert done.returncode == 0, done.stderr[-3000:]
