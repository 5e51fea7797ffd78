"""The diagnosis as one HTML page, which loads no other file and runs no script."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from habana_mp.diagnosis.findings import OperationRow
from habana_mp.reporting.page import in_html, page
from habana_mp.reporting.remedies import Finding


def html_page(headline: str, findings: Iterable[Finding], rows: Iterable[OperationRow]) -> str:
    items = "".join(map(_item, findings))
    parts = {
        "headline": in_html(headline),
        "findings": items,
        "hide_findings": "" if items else " hidden",
        "rows": "".join(map(_row, rows)),
    }
    return page("Diagnosis: operations in lower precision", Path(__file__).parent / "page.html", parts)


def _item(finding: Finding) -> str:
    rule = f"<pre><code>{in_html(f'rules={finding.rule!r}')}</code></pre>" if finding.rule else ""
    return f'<li><span class="kind">{finding.kind}</span>{in_html(finding.text)}{rule}</li>'


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
    cells = [f"<td>{in_html(one)}</td>" for one in texts] + [f'<td class="number">{one}</td>' for one in numbers]
    return f"<tr>{''.join(cells)}</tr>"
