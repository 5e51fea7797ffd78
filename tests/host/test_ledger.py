"""The ledger: `holds` runs a check once, `require` each time, and both store the result."""

from __future__ import annotations

import pytest

from habana_mp.common import ledger
from habana_mp.common.ledger import Assumption, UnmetError, holds, require


@pytest.fixture(autouse=True)
def own_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test declares is forgotten after it."""
    monkeypatch.setattr(ledger, "_declared", {})
    monkeypatch.setattr(ledger, "_found", {})


def an_assumption(name: str = "a.thing") -> Assumption:
    return Assumption(name, assumed="it is there", check="it is looked for", otherwise="nothing happens")


def test_a_test_runs_once_and_its_outcome_is_remembered() -> None:
    asked = []
    assumption = an_assumption()
    assert ledger.state_of("a.thing") == "not asked yet"
    for _ in range(3):
        assert holds(assumption, lambda: asked.append(1) or True)
    assert len(asked) == 1
    assert ledger.rows() == [("a.thing", "it is there", "it is looked for", "nothing happens", "holds")]


def test_what_a_test_raises_counts_as_no_and_is_told() -> None:
    def missing() -> bool:
        raise UnmetError("torch.x.y is missing")

    assert not holds(an_assumption("one"), lambda: [].pop())
    assert not holds(an_assumption("two"), missing)
    assert not holds(an_assumption("three"), lambda: False)
    assert [state for *_, state in ledger.rows()] == [
        "does not hold: IndexError: pop from empty list",
        "does not hold: torch.x.y is missing",
        "does not hold: its check failed",
    ]


def test_one_part_that_is_not_so_does_not_hide_the_others() -> None:
    assumption = an_assumption()
    assert holds(assumption, lambda: True, "one part")
    assert not holds(assumption, lambda: False, "another")
    assert holds(assumption, lambda: True, "a third")
    assert ledger.state_of("a.thing") == "does not hold: its check failed"


def test_what_is_required_is_asked_each_time_and_raised() -> None:
    assumption = an_assumption()
    with pytest.raises(RuntimeError, match=r"it is there \(a\.thing: its check failed\)"):
        require(assumption, lambda: False)
    require(assumption, lambda: True)
    assert ledger.state_of("a.thing") == "holds"

    def refuse() -> bool:
        raise RuntimeError("in words of its own")

    with pytest.raises(RuntimeError, match="in words of its own"):
        require(assumption, refuse)


def test_a_name_stands_for_one_assumption() -> None:
    an_assumption()
    with pytest.raises(ValueError, match="declared twice"):
        an_assumption()
