"""disable_casts: as a context, as a decorator of every kind of function, in many threads."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch

from habana_mp import hmp
from helpers.lists import Converter
from helpers.probes import BF16, M, is_cast
from helpers.processes import in_threads


@pytest.fixture
def casting(converted: Converter) -> None:
    converted(bf16=["mm"])
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_disable_casts_nests_and_can_be_entered_again() -> None:
    one = hmp.disable_casts()
    with one:
        with one, hmp.disable_casts():
            assert not is_cast()
        assert not is_cast()
    assert is_cast()
    with one:
        assert not is_cast()
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_generator_that_ends_early_or_in_another_thread_leaves_only_its_own_block() -> None:
    def waiting() -> Generator[None, None, None]:
        with hmp.disable_casts():
            yield

    one = waiting()
    next(one)
    with hmp.disable_casts():
        one.close()
        assert not is_cast()
    assert is_cast()
    kept = [waiting()]
    in_threads(lambda _: next(kept[0]), 1)
    with pytest.raises(RuntimeError, match="not entered in this thread"):
        kept.pop().close()
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_disable_casts_decorates_with_and_without_parentheses() -> None:
    @hmp.disable_casts
    def bare(x: int, *, y: int = 2) -> tuple[bool, int]:
        """Says so."""
        return is_cast(), x + y

    @hmp.disable_casts()
    def called() -> bool:
        return is_cast()

    class Holder:
        @hmp.disable_casts
        def method(self) -> bool:
            return is_cast()

        @staticmethod
        @hmp.disable_casts()
        def static() -> bool:
            return is_cast()

    assert bare(1, y=3) == (False, 4)
    assert bare.__name__ == "bare"
    assert bare.__doc__ == "Says so."
    assert not called()
    assert not Holder().method()
    assert not Holder.static()
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_block_needs_no_parentheses() -> None:
    with hmp.disable_casts:
        assert not is_cast()
        with hmp.disable_casts, hmp.disable_casts(), hmp.disable_casts:
            assert not is_cast()
        assert not is_cast()
    assert is_cast()
    with pytest.raises(KeyError), hmp.disable_casts:
        raise KeyError
    assert is_cast()
    with hmp.disable_casts, hmp.autocast("cpu"):
        assert torch.mm(M, M).dtype is BF16
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_generator_leaves_its_consumer_alone() -> None:
    closed = []

    @hmp.disable_casts
    def numbers() -> Iterator[Any]:
        try:
            got = yield is_cast()
            try:
                yield got, is_cast()
            except KeyError:
                yield "thrown", is_cast()
            return "done"
        finally:
            closed.append(is_cast())

    running = numbers()
    assert next(running) is False
    assert is_cast()
    assert running.send(5) == (5, False)
    assert running.throw(KeyError()) == ("thrown", False)
    assert is_cast()
    with pytest.raises(StopIteration) as stop:
        next(running)
    assert stop.value.value == "done"
    early = numbers()
    next(early)
    early.close()
    assert closed == [False, False]
    assert is_cast()


@pytest.mark.usefixtures("casting")
def test_a_decorated_coroutine_leaves_other_tasks_alone() -> None:
    @hmp.disable_casts()
    async def quiet() -> list[bool]:
        seen = []
        for _ in range(3):
            seen.append(is_cast())
            await asyncio.sleep(0)
        return seen

    async def loud() -> list[bool]:
        seen = []
        for _ in range(3):
            seen.append(is_cast())
            await asyncio.sleep(0)
        return seen

    async def main() -> list[list[bool]]:
        return list(await asyncio.gather(quiet(), loud(), quiet()))

    assert asyncio.run(main()) == [[False] * 3, [True] * 3, [False] * 3]
    assert is_cast()


def test_an_asynchronous_generator_is_not_decorated() -> None:
    async def quiet() -> Any:
        yield is_cast()

    with pytest.raises(TypeError, match="decorates a function, or stands in a `with` statement around a block; got"):
        hmp.disable_casts(quiet)


@pytest.mark.parametrize("wrong", [3, "text", torch.ones(1)], ids=["number", "text", "tensor"])
def test_disable_casts_decorates_only_what_can_be_called(wrong: object) -> None:
    with pytest.raises(TypeError, match="disable_casts"):
        hmp.disable_casts(wrong)  # type: ignore[call-overload]  # wrong on purpose
