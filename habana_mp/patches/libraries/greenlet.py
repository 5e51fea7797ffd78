"""Greenlets: each has its own regions and its own module in the report, as each thread has.

Greenlets take turns in one thread. Once the module greenlet is imported (gevent imports it), the core is called after
each switch, and exchanges the state of the two greenlets.
"""

from __future__ import annotations

from typing import Any

from habana_mp import _core
from habana_mp.common.ledger import Assumption, holds
from habana_mp.patches.tools.when_imported import WhenImported

_SWITCHES = Assumption(
    "greenlet.switches",
    assumed="greenlet calls the function given to `settrace` after each switch, with a word and (from, to)",
    check="a function sees a greenlet begin and end",
    otherwise="regions that are open, and `convert(within=...)`, hold for the other greenlets of the thread too, and "
    "the report may name a module that runs in another one",
)


class Greenlets(WhenImported):
    """Keeps the state of a thread separately for each greenlet."""

    name = "greenlet"

    def do(self, module: Any) -> None:
        if holds(_SWITCHES, lambda: _switches_are_told(module)):
            _core.follow_greenlets(module.settrace, module.gettrace)

    def undo(self, module: Any) -> None:
        _core.leave_greenlets()


def _switches_are_told(module: Any) -> bool:
    seen: list[Any] = []
    before = module.gettrace()
    module.settrace(lambda event, switch: seen.append((event, *switch)))
    try:
        one = module.greenlet(lambda: None)
        one.switch()
    finally:
        module.settrace(before)
    here = module.getcurrent()
    return seen == [("switch", here, one), ("switch", one, here)]


PATCHES = (Greenlets,)
