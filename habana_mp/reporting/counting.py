"""The report of this process, from the counts of the core."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common.paths import is_installed
from habana_mp.common.version import __version__
from habana_mp.patches.installation import installation
from habana_mp.patches.tools.notes import no_notes
from habana_mp.patches.torch import stepped_weights
from habana_mp.patches.torch.autocast_regions import disabled_for_no_device
from habana_mp.patches.torch.begun_backwards import lower_loss, unscaled
from habana_mp.patches.torch.device_times import device_times
from habana_mp.patches.torch.dynamo import graphs_compiled
from habana_mp.patches.torch.weight_cache import why_none_is_cached
from habana_mp.policy.lists import line_numbered
from habana_mp.policy.options import Detail
from habana_mp.reporting import guard_texts
from habana_mp.reporting.merging import joined
from habana_mp.reporting.records import (
    REASONS,
    CachedWeights,
    Edge,
    ModuleRow,
    Row,
    plain_name,
    shares_of_range,
    short_path,
    short_place,
)
from habana_mp.reporting.report import Report
from habana_mp.scopes.disable import CastsOff


class Stopwatch:
    """Measures for how long calls were watched in total."""

    def __init__(self) -> None:
        self._before = 0.0
        self._began: float | None = None

    def run(self, *, running: bool) -> None:
        self._before = self.seconds
        self._began = time.perf_counter() if running else None

    def reset(self) -> None:
        self.run(running=self._began is not None)
        self._before = 0.0

    @property
    def seconds(self) -> float:
        return self._before + (0.0 if self._began is None else time.perf_counter() - self._began)


stopwatch = Stopwatch()

#: What the core counts of calls, and of cached casts.
_OF_CALLS = ("calls", "casts", "bytes", "needed")
_OF_WEIGHTS = ("hits", "refreshes", "refreshed_bytes", "refused", "products")

_Counters = Counter[tuple[Any, ...]]

#: The graphs that Dynamo had compiled, and the blocks without casts that users had begun, when the counts were reset.
_before = {"graphs": 0, "blocks": 0}

#: The counts of blocks that the report leaves out.
_left_out: _Counters = Counter()


@contextmanager
def left_out() -> Iterator[None]:
    """A block whose calls, in all threads, the report does not count."""
    before = _counters()
    try:
        with no_notes:
            yield
    finally:
        _left_out.update(_counters() - before)


def _counters() -> _Counters:
    """Returns the counters of the core, which only grow, without what the report leaves out. Their names are those of
    what is counted, with the operation, precision, reason and line of calls."""
    found: _Counters = Counter()
    for name, _, precision, reason, line, *amounts in _core.counts():
        for what, amount in zip(_OF_CALLS, amounts, strict=True):
            found[what, name, precision, reason, line] += amount
    cached = _core.weights_statistics()
    found.update({("weights", what): cached[what] for what in _OF_WEIGHTS})
    found.update({("reasons", why): times for why, times in cached["reasons"].items()})
    found["results", "tensors"], found["results", "bytes"] = _core.model_results()
    found.subtract(_left_out)
    return found


def _rule_of(reason: str, line: int) -> tuple[str | None, bool]:
    """Returns the rule behind a reason, and whether it is the user's own line. The lists are rule 1: it returns the
    place of the line."""
    rule = REASONS[reason].rule
    return line_numbered(line) if rule == "rule 1" else (rule, False)


def current() -> Report:
    """Returns a report of the core's counts, with one row for each operation, precision, reason, and place."""
    records, modules = _core.watched_calls(), _core.watched_modules()
    counters, now = _counters(), _core.weights_statistics()
    on_devices = device_times.read()
    watched = [_row_of(record, on_devices.get(number)) for number, record in enumerate(records)]
    for one in records:
        call = one["operation"], one["precision"], one["reason"], one["listed"]
        counters.subtract({(what, *call): one[what] for what in _OF_CALLS})
    flows = [
        Edge(source, number, calls, casts)
        for number, record in enumerate(records)
        for source, calls, casts in record["from"]
    ]
    rows, edges = joined([((*watched, *_unwatched(counters)), flows)], _rank)
    return Report(
        rows=rows,
        weights=CachedWeights(
            **{what: counters["weights", what] for what in _OF_WEIGHTS},
            weights=now["weights"],
            bytes=now["bytes"],
            reasons={why: counters["reasons", why] for why in now["reasons"] if counters["reasons", why]},
        ),
        detail=_detail(rows, is_watched=bool(records or (stopwatch.seconds and not rows))),
        modules=tuple(ModuleRow(path, kind, calls, whole / 1e9) for path, kind, calls, whole in modules if calls),
        edges=edges,
        configuration=installation.described,
        seconds=stopwatch.seconds if records else None,
        environment=_environment(rows),
        ranges=shares_of_range(_core.guarded_largest()),
        guarded=dict(guard_texts.named),
        results=(counters["results", "tensors"], counters["results", "bytes"]),
        is_live=True,
    )


def _detail(rows: Sequence[Row], *, is_watched: bool) -> Detail:
    return "lines" if any(row.file is not None for row in rows) else "modules" if is_watched else "operations"


def _row_of(record: dict[str, Any], on_device: tuple[float, float] | None) -> Row:
    rule, is_own = _rule_of(record["reason"], record["listed"])
    measured = (record["nanoseconds"] / 1e9, record["cast_nanoseconds"] / 1e9)
    seconds, cast_seconds = (None, None) if record["phase"] == "traced" else on_device or measured
    given = {one.name: record[one.name] for one in fields(Row) if one.name in record}
    given |= {"operation": plain_name(record["operation"]), "seconds": seconds, "cast_seconds": cast_seconds}
    return Row(**given, rule=rule, is_own=is_own)


def _unwatched(counters: _Counters) -> Iterator[Row]:
    """Yields rows of the calls that were counted, but not watched."""
    for call in dict.fromkeys(key[1:] for key in counters if key[0] in _OF_CALLS):
        left: dict[str, Any] = {what: counters[what, *call] for what in _OF_CALLS}
        if any(left.values()):
            operation, precision, reason, line = call
            rule, is_own = _rule_of(reason, line)
            yield Row(plain_name(operation), precision, **left, reason=reason, rule=rule, is_own=is_own)


def _rank(row: Row) -> tuple[Any, ...]:
    return (-(row.seconds or 0.0), -row.calls, row.operation, row.precision, row.reason, row.order)


def _environment(rows: tuple[Row, ...]) -> dict[str, Any]:
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return {
        "habana_mp": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "script": None if main is None else short_path(main),
        "disabled_for_no_device": {
            short_place(file, line): device
            for (file, line), device in disabled_for_no_device.items()
            if not is_installed(file)  # a library protects its own code
        },
        "no_cast_is_cached": why_none_is_cached() if rows else "",
        "lower_state": dict(stepped_weights.found),
        "lower_updates": _core.lower_updates(),
        "lower_losses": {short_place(file, line): precision for precision, file, line in lower_loss},
        "unscaled": [short_place(*place) for place in unscaled if place is not None],
        "compiled_graphs": graphs_compiled() - _before["graphs"],
        "compiled_before": _before["graphs"],
        "disabled_blocks": CastsOff.begun - _before["blocks"],
        "optimizer_steps": stepped_weights.steps.total(),
    }


def _processor() -> str:
    """Returns the name of the processor, as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def reset() -> None:
    """Resets all counts to zero."""
    _left_out.clear()
    _core.reset_counts()
    _core.reset_watch()
    device_times.reset()
    _core.forget_guarded_largest()
    guard_texts.named.clear()
    _core.weights_reset_statistics()
    stopwatch.reset()
    disabled_for_no_device.clear()
    stepped_weights.forget()
    lower_loss.clear()
    unscaled.clear()
    _before.update(graphs=graphs_compiled(), blocks=CastsOff.begun)
