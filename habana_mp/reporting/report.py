"""A report: its data, its first lines, and the forms in which it is shown and written."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from habana_mp.reporting import pictures
from habana_mp.reporting.findings import findings_of, first_lines
from habana_mp.reporting.page import FORMAT, VERSION, html_page
from habana_mp.reporting.records import CachedWeights, Edge, ModuleRow, Records, Row, line_of_range
from habana_mp.reporting.remedies import Finding

_Path = str | os.PathLike[str]


@dataclass(frozen=True, repr=False)
class Report(Records):
    """The rows of a report, the busiest first. ``print`` shows the first lines in words, then a table."""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, the most unusual kinds first, and the most expensive finding of each kind first."""
        return findings_of(self)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The first lines: what ran in lower precision, what did not and why, and where casts cost most."""
        return first_lines(self, self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data; :meth:`from_dict` reads it."""
        by_precision: dict[str, dict[str, Any]] = {}
        for precision in dict.fromkeys(row.precision for row in self.rows):
            part = replace(self, rows=tuple(row for row in self.rows if row.precision == precision))
            by_precision[precision] = {"calls": part.total("calls"), "seconds": part.total("seconds")}
        return {
            "format": FORMAT,
            "version": VERSION,
            "detail": self.detail,
            "environment": dict(self.environment),
            "configuration": None if self.configuration is None else dict(self.configuration),
            "seconds": self.seconds,
            "ranks": self.ranks,
            "ranges": dict(self.ranges),
            "results": list(self.results),
            "guarded": {text: list(ranks) for text, ranks in self.guarded.items()},
            "words": list(self.words),
            "totals": {
                **{name: self.total(name) for name in ("calls", "casts", "bytes", "hits", "seconds", "cast_seconds")},
                "by_precision": by_precision,
            },
            "rows": self.as_dicts(),
            "modules": [
                {"path": one.path, "class": one.kind, "calls": one.calls, "seconds": one.seconds}
                for one in self.modules
            ],
            "edges": [
                {"from": one.source, "to": one.target, "calls": one.calls, "casts": one.casts} for one in self.edges
            ],
            "findings": [one.to_dict("kind", "rows", "text", "saves", "rule") for one in self.findings],
            "weights": asdict(self.weights),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Report:
        """Returns the report from a result of :meth:`to_dict`.

        Raises:
            ValueError: it is not a report, or one of another version of the format.
        """
        if not isinstance(content, Mapping) or content.get("format") != FORMAT:
            raise ValueError(f'it is no report: a report has "format": "{FORMAT}"')
        if content.get("version") != VERSION:
            raise ValueError(
                f"it is a report of version {content.get('version')} of the format; this package reads {VERSION}"
            )
        names = {one.name for one in fields(Row)}
        try:
            rows = [{name: value for name, value in row.items() if name in names} for row in content["rows"]]
            modules = [(one["path"], one["class"], one["calls"], one["seconds"]) for one in content["modules"]]
            edges = [(one["from"], one["to"], one["calls"], one["casts"]) for one in content["edges"]]
            tensors, size = content.get("results", (0, 0))
            return cls(
                rows=tuple(Row(**row) for row in rows),
                weights=CachedWeights(**content["weights"]),
                modules=tuple(ModuleRow(*one) for one in modules),
                edges=tuple(Edge(*one) for one in edges),
                ranges={str(name): float(share) for name, share in content.get("ranges", {}).items()},
                results=(int(tensors), int(size)),
                guarded={str(text): tuple(map(int, ranks)) for text, ranks in content.get("guarded", {}).items()},
                **{name: content[name] for name in ("detail", "configuration", "environment", "seconds", "ranks")},
            )
        except KeyError as error:
            raise ValueError(f"it is no whole report: it has no {error}") from None
        except (AttributeError, TypeError) as error:
            raise ValueError(f"it is no whole report: {error}") from None

    @classmethod
    def from_json(cls, path: _Path) -> Report:
        """Returns the report from a file that :meth:`to_json` wrote.

        Raises:
            ValueError: it is not a report, or one of another version of the format; the message names the file.
            OSError: the file cannot be read.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text("utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(f"{os.fspath(path)}: it is no JSON: {error}") from None
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    def to_json(self, path: _Path) -> None:
        """Writes the report as JSON."""
        _write(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False))

    def to_html(self, path: _Path) -> None:
        """Writes the report as a page for a browser, in one file that loads no other."""
        _write(path, html_page(self.to_dict()))

    def to_dot(self, path: _Path) -> None:
        """Writes the operations, and the results that went from one to another, for Graphviz."""
        _write(path, pictures.dot(self))

    def to_chrome_trace(self, path: _Path, *, beside: _Path | None = None) -> None:
        """Writes the last calls as a trace in time, for Perfetto or chrome://tracing.

        Args:
            path: The file to write.
            beside: A trace of ``torch.profiler`` (``export_chrome_trace``) whose events are included in the file.
        """
        if not self.is_live:
            raise ValueError("a report that was read or merged has no calls in time; write the trace where it was made")
        _write(path, json.dumps(pictures.chrome_trace(beside)))

    def to_dataframe(self) -> Any:
        """Returns the rows as a ``pandas.DataFrame``; pandas must be installed."""
        try:
            import pandas  # type: ignore[import-untyped]  # it has no types
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"to_dataframe() needs pandas, which is not installed (pip install pandas): {error}", name=error.name
            ) from error
        return pandas.DataFrame(self.as_dicts())

    def __str__(self) -> str:
        return self._text()

    def _text(self, columns: int | None = None, *, coloured: bool = False) -> str:
        """Returns the report as text, for a terminal of this width."""
        table = pictures.table(self, columns, coloured=coloured) if self.rows else []
        found = tuple(finding.text for finding in self.findings) if coloured else ()
        below = [str(self.weights)] if self.weights != CachedWeights() else []
        if self.results[0]:
            tensors, size = self.results
            below.append(f"results that left a model as float32: {tensors:,} ({size / 1e6:.3f} MB)")
        if self.ranges:
            below.append(line_of_range(self.ranges))
        if any(row.rule and row.rule.startswith("rule ") for row in self.rows):
            below.append("docs/rules.md explains the reasons")

        def wrapped(line: str) -> str:
            return line if columns is None else textwrap.fill(line, columns, break_long_words=False)

        words = [f"\x1b[35m{wrapped(line)}\x1b[0m" if line.startswith(found) else wrapped(line) for line in self.words]
        return "\n".join((*words, *([""] if words and table else []), *table, *map(wrapped, below)))

    def __repr__(self) -> str:
        return f"<Report of {self.total('calls'):,} calls by {self.detail}; print() shows it>"

    def _repr_html_(self) -> str:
        """Returns the HTML for a notebook."""
        return pictures.html(self, self.words)

    def _ipython_display_(self) -> None:
        """Shows the report as IPython's answer to a cell, unless :meth:`show` has shown it in this cell."""
        if vars(self).get("_shown_in") != sys.modules["IPython"].get_ipython().execution_count:
            self.show()

    def show(self, file: TextIO | None = None) -> None:
        """Prints the report, or shows it in a notebook."""
        ipython = sys.modules.get("IPython")
        shell = None if ipython is None or file is not None else ipython.get_ipython()
        # This shell is that of notebooks, and of other front ends of Jupyter that show HTML.
        if ipython is not None and type(shell).__name__ == "ZMQInteractiveShell":
            ipython.display.display({"text/html": self._repr_html_(), "text/plain": str(self)}, raw=True)
        else:
            stream = sys.stdout if file is None else file
            is_terminal = hasattr(stream, "isatty") and stream.isatty()
            columns = shutil.get_terminal_size().columns if is_terminal else None
            print(self._text(columns, coloured=is_terminal and not os.environ.get("NO_COLOR")), file=stream)
        vars(self)["_shown_in"] = getattr(shell, "execution_count", None)


def _write(path: _Path, text: str) -> None:
    # A file name that is not text contains surrogates.
    Path(path).write_bytes(text.encode("utf-8", "backslashreplace"))
