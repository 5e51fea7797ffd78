"""A record beside regions, conversions, diagnoses and watches: each ends what it began, and nothing else."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from habana_mp import _core, hmp
from habana_mp.patches.installation import installation
from helpers.each import each
from helpers.lists import Converter
from helpers.probes import BF16, FP16, FP32, dtype_of_product
from helpers.recorded import rows_of


class Worker:
    """A thread that runs functions, one after the other."""

    def __init__(self) -> None:
        self._work: Queue[Callable[[], Any] | None] = Queue()
        self._done: Queue[Any] = Queue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._done.put(work())
            except BaseException as error:
                self._done.put(error)

    def do(self, work: Callable[[], Any]) -> Any:
        self._work.put(work)
        done = self._done.get()
        if isinstance(done, BaseException):
            raise done
        return done

    def end(self) -> None:
        self._work.put(None)
        self._thread.join()


@contextmanager
def workers(count: int) -> Iterator[list[Worker]]:
    made = [Worker() for _ in range(count)]
    try:
        yield made
    finally:
        for one in made:
            one.end()


class Held:
    """A block that is entered and left by calls."""

    def __init__(self, block: AbstractContextManager[Any]) -> None:
        self._stack = ExitStack()
        self._block = block

    def begin(self) -> None:
        self._stack.enter_context(self._block)

    def end(self) -> None:
        self._stack.close()


# ---- regions --------------------------------------------------------------------------------------------------------


def test_a_record_that_ends_in_another_thread_leaves_a_region_open(tmp_path: Path) -> None:
    with workers(1) as (other,):
        region, record = Held(hmp.autocast("cpu", FP16)), Held(hmp.record(tmp_path))
        other.do(record.begin)
        region.begin()
        assert dtype_of_product() is FP16
        other.do(record.end)
        assert dtype_of_product() is FP16
        other.do(record.begin)
        region.end()
        other.do(record.end)
    assert dtype_of_product() is FP32
    assert [row["results"][0]["dtype"] for row in rows_of(tmp_path)] == ["float16"]


@each("reentrant", [True, False])
def test_a_checkpoint_is_computed_again_as_in_its_region_if_a_record_has_ended(reentrant: bool, tmp_path: Path) -> None:
    dtypes = []

    def block(x: torch.Tensor) -> torch.Tensor:
        dtypes.append((y := x @ x).dtype)
        return y @ y  # the recomputation ends here

    x = torch.ones(4, 4, requires_grad=True)
    with hmp.autocast("cpu"):
        y = checkpoint(block, x, use_reentrant=reentrant)
        with hmp.record(tmp_path / str(reentrant)):
            torch.exp(x)
    y.sum().backward()
    assert dtypes == [BF16, BF16]


def test_a_custom_backward_runs_after_a_record_has_ended(tmp_path: Path) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        @hmp.custom_fwd(device_type="cpu")
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a)
            return a @ a

        @staticmethod
        @hmp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (a,) = ctx.saved_tensors
            return gradient @ a.t() + a.t() @ gradient

    a = torch.ones(2, 2, requires_grad=True)
    with hmp.record(tmp_path), hmp.autocast("cpu"):
        y = Product.apply(a)
    y.sum().backward()
    assert y.dtype is BF16
    assert a.grad is not None


def test_an_error_in_a_record_leaves_the_region_around_it(tmp_path: Path) -> None:
    record = hmp.record(tmp_path)
    with hmp.autocast("cpu"):
        with pytest.raises(ZeroDivisionError), record, record:
            raise ZeroDivisionError
        assert dtype_of_product() is BF16
        assert list(tmp_path.iterdir()) == []


def test_a_record_does_not_bring_an_ended_region_to_life(tmp_path: Path) -> None:
    with hmp.autocast("cpu"):
        hmp.restore()
        with hmp.record(tmp_path):
            assert dtype_of_product() is FP32
    assert _core.installed_count() == 0


# ---- conversions ----------------------------------------------------------------------------------------------------


def test_a_record_is_no_conversion(tmp_path: Path) -> None:
    with hmp.record(tmp_path):
        assert not hmp.is_converted()
        assert hmp.report(show=False).configuration is None
        hmp.tune(lambda seed: torch.mm(torch.ones(2, 2), torch.ones(2, 2)).sum().item(), lambda a, b: True, seeds=[0])
        torch.exp(torch.ones(2))
    assert [row["operation"] for row in rows_of(tmp_path)][-1] == "exp"
    assert _core.installed_count() == 0


def test_a_record_goes_on_after_restore(tmp_path: Path, converted: Converter) -> None:
    converted(bf16=["mm"])
    with hmp.record(tmp_path):
        dtype_of_product()
        hmp.restore()
        assert not hmp.is_converted()
        dtype_of_product()
    assert [row["results"][0]["dtype"] for row in rows_of(tmp_path)] == ["bfloat16", "float32"]
    assert _core.installed_count() == 0


def test_a_tuning_leaves_the_region_of_another_thread() -> None:
    with workers(1) as (other,):
        region = Held(hmp.autocast("cpu"))
        other.do(region.begin)
        hmp.tune(lambda seed: torch.mm(torch.ones(2, 2), torch.ones(2, 2)).sum().item(), lambda a, b: True, seeds=[0])
        assert not hmp.is_converted()
        assert dtype_of_product() is FP32
        assert other.do(dtype_of_product) is BF16
        other.do(region.end)


# ---- other observers ------------------------------------------------------------------------------------------------


@each("first", ["record", "diagnosis"])
def test_a_record_and_a_diagnosis_end_in_either_order(first: str, tmp_path: Path, converted: Converter) -> None:
    converted(bf16=["mm"])
    is_inside, goes_on = threading.Event(), threading.Event()

    model, x = torch.nn.Linear(2, 2), torch.ones(2, 2)

    def step() -> torch.Tensor:
        is_inside.set()
        goes_on.wait()
        return model(x).sum()

    thread = threading.Thread(target=lambda: hmp.diagnose(step))
    record = Held(hmp.record(tmp_path / first))
    record.begin()
    thread.start()
    is_inside.wait()
    if first == "record":
        record.end()
    goes_on.set()
    thread.join()
    if first == "diagnosis":
        torch.exp(torch.ones(2))
        record.end()
        assert [row["operation"] for row in rows_of(tmp_path / first)] == ["exp"]
    assert installation._observers == {}


# ---- random orders --------------------------------------------------------------------------------------------------


class Model:
    """Says of each thread in which dtype a product is computed."""

    def __init__(self, threads: int) -> None:
        self.converted: torch.dtype | None = None
        #: The regions that were entered since the last `restore`.
        self.regions: set[torch.dtype] = set()
        self.open: list[list[torch.dtype]] = [[] for _ in range(threads)]

    def dtype_in(self, thread: int) -> torch.dtype:
        if self.open[thread]:
            is_patched = self.converted is not None or bool(self.regions)
            return self.open[thread][-1] if is_patched else FP32
        return self.converted or FP32


def check_one_order(seed: int, folder: Path) -> None:
    """Makes random changes in three threads, and compares each thread's product with the model after each of them."""
    choose = random.Random(seed)
    hmp.restore()
    with workers(3) as threads:
        model = Model(3)
        stacks: list[list[tuple[str, Held]]] = [[], [], []]
        records = [hmp.record(folder / f"{seed} {number}") for number in range(2)]
        runs: list[int] = []  # the numbers of the records that were entered and not left
        done: list[str] = []

        def leave(thread: int) -> None:
            kind, held = stacks[thread].pop()
            threads[thread].do(held.end)
            if kind == "region":
                model.open[thread].pop()
            elif kind.startswith("record"):
                runs.remove(int(kind[-1]))

        for _ in range(30):
            thread = choose.randrange(3)
            do = threads[thread].do
            change = choose.choice(
                ["convert", "restore", "region", "region", "record", "record", "watch", "leave", "leave"]
            )
            done.append(f"{change} in {thread}")
            if change == "convert":
                model.converted = choose.choice([BF16, FP16])
                do(lambda: hmp.convert(dtype=model.converted, report=choose.choice(["operations", "lines"])))
            elif change == "restore":
                do(hmp.restore)
                model.converted, model.regions = None, set()
            elif change == "region":
                dtype = choose.choice([BF16, FP16])
                stacks[thread].append(("region", held := Held(hmp.autocast("cpu", dtype))))
                do(held.begin)
                model.open[thread].append(dtype)
                model.regions.add(dtype)
            elif change == "record":
                number = choose.randrange(2)
                held = Held(records[number])
                if runs and number not in runs:
                    with pytest.raises(RuntimeError, match="another record runs"):
                        do(held.begin)
                else:
                    do(held.begin)
                    runs.append(number)
                    stacks[thread].append((f"record {number}", held))
            elif change == "watch":
                stacks[thread].append(("watch", held := Held(hmp.watch("lines"))))
                do(held.begin)
            elif stacks[thread]:
                leave(thread)
            for number in range(3):
                assert threads[number].do(dtype_of_product) is model.dtype_in(number), done
            assert hmp.is_converted() == (model.converted is not None), done
            if not (model.converted or model.regions or runs):
                assert _core.installed_count() == 0, done
        for thread in range(3):
            while stacks[thread]:
                leave(thread)
    hmp.restore()
    assert _core.installed_count() == 0, done
    assert installation._observers == {}, done


def test_in_any_order_of_records_regions_and_conversions_the_decisions_are_as_without_records(tmp_path: Path) -> None:
    for seed in range(12):
        check_one_order(seed, tmp_path)
