"""The detail in which calls are watched for the report, as convert and blocks of code request it."""

from __future__ import annotations

from habana_mp.common import locks
from habana_mp.common.blocks import ProcessBlock
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.tapped_calls import require_tap
from habana_mp.patches.torch import watched_calls
from habana_mp.policy.options import DETAILS, Detail, checked_detail
from habana_mp.reporting.counting import stopwatch
from habana_mp.scopes.scope import Scope


class _Watching:
    """The details that convert and blocks requested. The finest one applies, in all threads."""

    def __init__(self) -> None:
        self._of_convert: Detail = "operations"
        #: The open blocks.
        self._blocks: set[_Block] = set()

    @property
    def detail(self) -> Detail:
        details = (one.detail for one in self._blocks if one.detail is not None)
        return max((self._of_convert, *details), key=DETAILS.index)

    def of_convert(self, detail: Detail) -> None:
        with locks.installation:
            self._of_convert = detail
            self.settle()

    def settle(self, *begun: _Block) -> None:
        """Watches as convert and the open blocks request."""
        with locks.installation:
            self._blocks = {one for one in (*self._blocks, *begun) if one.entrances}
            is_watched = self.detail != "operations" and all(one.detail is not None for one in self._blocks)
            stopwatch.run(running=is_watched)
            if is_watched:
                watched_calls.begin(lines=self.detail == "lines")
            else:
                watched_calls.stop()
            installation.set_observer("watch", self, is_on=is_watched)


class _Block(ProcessBlock):
    """A block that requests a detail. None: nothing is watched in it."""

    def __init__(self, detail: Detail | None = None) -> None:
        self.detail = detail

    def settle(self) -> None:
        self._is_used = True
        watching.settle(self)


watching = _Watching()
#: A block in which nothing is watched.
unwatched = _Block()


class Watch(_Block, Scope):
    """The result of :func:`watch`."""

    _name = "watch"
    _advice = (
        "hmp.watch(...) alone does nothing: write `with hmp.watch(...):` around a block, or "
        '`hmp.convert(report="lines")` for the whole script'
    )


def watch(detail: Detail = "lines") -> Watch:
    """Records calls with their module, or also with their line, while a block or a function runs, in all threads.

    ::

        with hmp.watch("lines"):
            loss = model(inputs).sum()
        hmp.report().to_html("report.html")

    Args:
        detail: ``"modules"`` or ``"lines"``; ``"operations"`` records nothing beyond the usual counts.

    Raises:
        ValueError: an unknown detail.
        RuntimeError: this torch does not show where modules run.
    """
    wanted = checked_detail("detail", detail)
    if wanted != "operations":
        require_tap()
    return Watch(wanted)
