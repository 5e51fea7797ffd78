"""What the tests of the optimizers share."""

from __future__ import annotations

from typing import Any

import pytest

from habana_mp import _stepping


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights our kernels stepped, one number a group."""
    numbers: list[int] = []
    write = _stepping.count_writes

    def count(plan: Any, columns: Any, lowers: Any) -> None:
        numbers.append(len(columns[0]) - len(plan.left_out))
        write(plan, columns, lowers)

    monkeypatch.setattr(_stepping, "count_writes", count)
    return numbers
