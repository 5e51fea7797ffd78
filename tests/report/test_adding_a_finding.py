"""A kind of finding is one entry: that of CONTRIBUTING.md appears in the first lines of a report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from habana_mp import Row
from habana_mp.reporting import findings
from habana_mp.reporting.report import Report

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_finding_of_the_page_names_the_operation_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"^```python\n(_Kind\(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (kind,) = eval(code, dict(vars(findings)))
    rare = Row("exp", "bf16", calls=1_000, casts=0, bytes=0, reason="list")
    often = Row("mul", "bf16", calls=2_000_000, casts=0, bytes=0, reason="list")

    def found() -> list[str]:
        return [line for line in Report((often, rare)).words if "Use larger batches" in line]

    assert not found()
    monkeypatch.setattr(findings, "_KINDS", (*findings._KINDS, kind))
    (line,) = found()
    assert line.startswith("mul is called often (2,000,000 calls).")
