"""The detail in which calls are watched for the report, as convert and blocks of code request it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from habana_mp.common import locks
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
        self._of_blocks: list[Detail] = []
        self._is_paused = False

    @property
    def detail(self) -> Detail:
        return max((self._of_convert, *self._of_blocks), key=DETAILS.index)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block in which nothing is watched."""
        with self._changing():
            self._is_paused = True
        try:
            yield
        finally:
            with self._changing():
                self._is_paused = False

    def of_convert(self, detail: Detail) -> None:
        with self._changing():
            self._of_convert = detail

    def begins(self, detail: Detail) -> None:
        with self._changing():
            self._of_blocks.append(detail)

    def ends(self, detail: Detail) -> None:
        with self._changing():
            self._of_blocks.remove(detail)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with locks.installation:
            yield
            is_watched = self.detail != "operations" and not self._is_paused
            stopwatch.run(running=is_watched)
            if is_watched:
                watched_calls.begin(lines=self.detail == "lines")
            else:
                watched_calls.stop()
            installation.set_observer("watch", is_on=is_watched)


watching = _Watching()


class Watch(Scope):
    """The result of :func:`watch`."""

    _name = "watch"
    _advice = (
        "hmp.watch(...) alone does nothing: write `with hmp.watch(...):` around a block, or "
        '`hmp.convert(report="lines")` for the whole script'
    )

    def __init__(self, detail: Detail) -> None:
        self._detail = detail

    def __enter__(self) -> None:
        self._is_used = True
        watching.begins(self._detail)

    def __exit__(self, *_: object) -> None:
        watching.ends(self._detail)


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
