"""The search for a minimal set finds exactly what is needed, in few calls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from habana_mp.diagnosis.search import minimal_set


@given(st.integers(1, 200), st.sets(st.integers(0, 199), min_size=1, max_size=6))
def test_exactly_the_culprits_are_found_in_few_calls(count: int, wanted: set[int]) -> None:
    culprits = {one % count for one in wanted}
    calls = 0

    def passes(chosen: tuple[int, ...]) -> bool:
        nonlocal calls
        calls += 1
        return culprits <= set(chosen)

    found = minimal_set(range(count), passes)
    assert found is not None
    assert set(found) == culprits
    k = len(culprits)
    assert calls <= 2 * k * math.ceil(math.log2(max(2, count))) + k + 2  # the two: with none, and with all


@given(st.integers(1, 60), st.lists(st.sets(st.integers(0, 59), min_size=1, max_size=4), min_size=1, max_size=4))
def test_of_several_sets_one_is_found_of_which_nothing_can_be_left_out(count: int, ways: list[set[int]]) -> None:
    sets = [{one % count for one in way} for way in ways]

    def passes(chosen: tuple[int, ...]) -> bool:
        return any(one <= set(chosen) for one in sets)

    found = minimal_set(range(count), passes)
    assert found is not None
    assert passes(tuple(found))
    assert not any(passes(tuple(other for other in found if other != one)) for one in found)


@pytest.mark.parametrize(("passes", "found"), [(True, []), (False, None)])
def test_nothing_or_everything_is_asked_first(passes: bool, found: list[int] | None) -> None:
    assert minimal_set(range(9), lambda _: passes) == found
