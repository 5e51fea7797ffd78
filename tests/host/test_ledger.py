"""The ledger: `holds` runs a check once, `require` each time, and both store the result. The list of patches."""

from __future__ import annotations

import pytest

from habana_mp.common import ledger
from habana_mp.common.ledger import Assumption, UnmetError, holds, require
from habana_mp.patches.all import Patches
from habana_mp.patches.tools.patch import Patch, Settings


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


# ---- the list of patches ---------------------------------------------------------------------------------------------


class Noted(Patch):
    """A patch that notes what is done to it, and fails where it shall."""

    def __init__(self, name: str, notes: list[str], failing: list[str]) -> None:
        self.name, self.notes, self.failing = name, notes, failing

    def install(self, settings: Settings) -> None:
        self.notes.append(f"+{self.name}")
        if self.name in self.failing:
            raise KeyboardInterrupt

    def uninstall(self) -> None:
        self.notes.append(f"-{self.name}")


def test_patches_go_out_in_the_order_opposite_to_that_in_which_they_came_in() -> None:
    notes: list[str] = []
    patches = Patches([Noted(name, notes, []) for name in "abc"])
    patches.install(Settings())
    patches.uninstall()
    patches.uninstall()
    assert notes == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_a_patch_that_fails_takes_those_before_it_out_and_leaves_what_was_in() -> None:
    notes: list[str] = []
    failing = ["b"]
    patches = Patches([Noted(name, notes, failing) for name in "abc"])
    with pytest.raises(KeyboardInterrupt):
        patches.install(Settings())
    assert notes == ["+a", "+b", "-b", "-a"]
    failing.clear()
    patches.install(Settings())
    notes.clear()
    failing.append("b")
    with pytest.raises(KeyboardInterrupt):
        patches.install(Settings())
    assert notes == ["+a", "+b"], "all were in before"
