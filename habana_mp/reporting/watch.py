"""The detail in which calls are watched for the report, as convert and blocks of code request it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from habana_mp.common import locks
from habana_mp.patches.installation import installation
from habana_mp.patches.torch import watched_calls
from habana_mp.policy.options import DETAILS, Detail, checked_detail
from habana_mp.reporting.counting import stopwatch


class _Watching:
    """The details that convert and blocks requested. The finest one applies, in all threads."""

    def __init__(self) -> None:
        self._of_convert: Detail = "operations"
        self._of_blocks: list[Detail] = []

    @property
    def detail(self) -> Detail:
        return max((self._of_convert, *self._of_blocks), key=DETAILS.index)

    def of_convert(self, detail: Detail) -> None:
        with locks.installation, locks.watching:
            self._of_convert = detail
            self._follow()

    def begins(self, detail: Detail) -> None:
        with locks.installation, locks.watching:
            self._of_blocks.append(detail)
            self._follow()

    def ends(self, detail: Detail) -> None:
        with locks.installation, locks.watching:
            self._of_blocks.remove(detail)
            self._follow()

    def _follow(self) -> None:
        is_watched = self.detail != "operations"
        stopwatch.run(running=is_watched)
        if is_watched:
            watched_calls.begin(lines=self.detail == "lines")
        else:
            watched_calls.stop()
        installation.watch(watched=is_watched)


watching = _Watching()


@contextmanager
def watch(detail: Detail = "lines") -> Iterator[None]:
    """Records calls with their module, or also with their line, while the block runs, in all threads.

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
        watched_calls.check()
    watching.begins(wanted)
    try:
        yield
    finally:
        watching.ends(wanted)
