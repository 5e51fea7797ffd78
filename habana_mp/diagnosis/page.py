"""The diagnosis as one HTML page, which loads no other file and runs no script."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

from habana_mp.diagnosis.findings import OperationRow
from habana_mp.reporting.page import filled, printable, source_of
from habana_mp.reporting.remedies import Finding

_HERE = Path(__file__).parent


def html_page(headline: str, findings: Iterable[Finding], rows: Iterable[OperationRow]) -> str:
    style = (_HERE / "page.css").read_text("utf-8")
    items = "".join(map(_item, findings))
    parts = {
        "title": "Diagnosis: operations in lower precision",
        "headline": _text(headline),
        "style": style,
        "style_source": source_of(style),
        "findings": items,
        "hide_findings": "" if items else " hidden",
        "rows": "".join(map(_row, rows)),
    }
    return filled((_HERE / "page.html").read_text("utf-8"), parts)


def _text(text: str) -> str:
    return html.escape(printable(text))


def _item(finding: Finding) -> str:
    rule = f"<pre><code>{_text(f'rules={finding.rule!r}')}</code></pre>" if finding.rule else ""
    return f'<li><span class="kind">{finding.kind}</span>{_text(finding.text)}{rule}</li>'


def _row(row: OperationRow) -> str:
    precision = f"{row.precision}, {row.compiled} in compiled code" if row.compiled else row.precision
    texts = (row.operation, row.module, row.place, precision)
    inputs = "" if row.input_range is None else "{:.3g} to {:.3g}".format(*row.input_range)
    numbers = (
        str(row.calls),
        f"{row.local_error:.2g}",
        f"{row.inherited_error:.2g}",
        "" if row.effect is None else f"{row.effect:.2g}",
        f"{row.gradient_error:.2g}" if row.gradient_error else "",
        inputs,
    )
    cells = [f"<td>{_text(one)}</td>" for one in texts] + [f'<td class="number">{one}</td>' for one in numbers]
    return f"<tr>{''.join(cells)}</tr>"
