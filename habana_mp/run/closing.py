"""The end of a run: its report as a file, and as one line."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
from collections import Counter
from typing import Any

from habana_mp.reporting import counting, merging
from habana_mp.reporting.ranks import Children, Ranks
from habana_mp.reporting.records import PRECISIONS
from habana_mp.reporting.report import Report
from habana_mp.run.script import say

#: The file formats of a report, by the ending of the file's name.
ENDINGS = (".html", ".json")

#: The seconds that a run waits at its end for each rank that its script started.
_PATIENCE_WITH_RANKS = 10.0


class Ending:
    """Reports what ran when the script has ended."""

    def __init__(
        self, path: str | None, children: Children, started: list[subprocess.Popen[Any]], *, by_script: bool
    ) -> None:
        """``started``: the ranks that the script starts. ``by_script``: it converts by itself, if it wants to."""
        self._path, self._by_script = path, by_script
        self._ranks, self._children, self._started = Ranks(), children, started
        self._of_children: list[Report] = []
        self._process = os.getpid()
        self._found_nothing = False

    def lowered(self) -> bool:
        """True if anything ran in a lower precision. The first of several ranks decides for all: others return True."""
        if os.getpid() != self._process or self._ranks.rank or ran_lower(counting.current()):
            return True
        self._found_nothing = not ran_lower(self._whole())
        return not self._found_nothing

    def at_exit(self) -> None:
        """Writes the report and its first lines. All ranks but the first only leave their reports for it."""
        if os.getpid() != self._process:
            return  # a fork that ends like a script
        if self._ranks.rank:
            self._ranks.leave(self._of_this_rank())
            return
        report = self._whole()
        if missing := self._ranks.missing():
            say(f"warning: the report is without rank {', '.join(map(str, missing))}, which left none in time")
        counted, wanted = max(self._ranks.count, 1 + len(self._of_children)), os.environ.get("WORLD_SIZE", "")
        if wanted.isdecimal() and counted < int(wanted):
            say(
                f"warning: the report is of {counted} of {wanted} processes (WORLD_SIZE). The others are not "
                "converted, unless they convert themselves: start the script by torchrun"
            )
        where = ""
        if self._path is not None:
            try:
                write(report, self._path)
                where = f"; the report is in {self._path}"
            except OSError as error:
                say(f"the report could not be written: {error}")
        say(f"{line(report, by_script=self._by_script)}{where}")
        if self._found_nothing:
            say(f"--require-lowered: {report.words[0][:1].lower()}{report.words[0][1:]}")
        shown = 1 if ran_lower(report) or self._found_nothing else 0  # already said by the lines above
        for text in report.words[shown:] if report.rows else ():
            say(text)

    def _of_this_rank(self) -> Report:
        for child in multiprocessing.active_children():
            if not child.daemon:
                child.join()  # as Python would do a little later
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_WITH_RANKS)
        self._of_children += self._children.take()
        return merging.merged([counting.current(), *self._of_children], ranks=1)

    def _whole(self) -> Report:
        return merging.merged([self._of_this_rank(), *self._ranks.others()], ranks=self._ranks.count)


def write(report: Any, path: str) -> None:
    """Writes the report, or a diagnosis, in the format that the ending of the path names."""
    (report.to_json if path.endswith(".json") else report.to_html)(path)


def ran_lower(report: Report) -> bool:
    """True if anything ran in a lower precision."""
    return any(row.calls for row in report if row.is_lower)


def line(report: Report, *, by_script: bool) -> str:
    """Returns one line: the calls by precision, and the time in a lower precision."""
    calls: Counter[str] = Counter()
    for row in report.main_rows:
        calls[row.precision] += row.calls
    if (report.configuration or {}).get("opt_level") == "O0":
        return 'opt_level="O0" casts nothing'
    if not calls:
        if report.configuration is not None:
            return "no covered operation was called"
        return "the script asked for no mixed precision" if by_script else "`hmp.convert` was not called"
    present = sorted(calls, key=PRECISIONS.index)
    words = f"calls: {', '.join(f'{calls[one]:,} {_in(one)}' for one in present)}"
    if not any(row.seconds for row in report.main_rows):
        return words
    return f"{words}; {sum(row.seconds or 0.0 for row in report.main_rows if row.is_lower):.3g} s in lower precision"


def _in(precision: str) -> str:
    return precision if precision == "unchanged" else f"in {precision}"
