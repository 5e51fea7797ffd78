"""What newcomers type first: completion, results at a prompt, calls without effect, and slips in arguments."""

from __future__ import annotations

import inspect

import habana_mp
from habana_mp import hmp


def test_completion_shows_the_public_names_and_no_others() -> None:
    assert {"audit", "diagnose", "tune", "convert", "report"} <= {*dir(hmp)}
    assert dir(habana_mp) == sorted([*dir(hmp), "hmp"])
    assert not [name for name in dir(hmp) if inspect.ismodule(getattr(hmp, name)) or name.startswith("_")]
    assert all(getattr(habana_mp, name) is getattr(hmp, name) for name in dir(hmp))
