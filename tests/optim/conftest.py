"""What the tests of the optimizers share."""

from __future__ import annotations

from typing import Any

import pytest

from habana_mp import optim


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights our kernels stepped, one number a group."""
    numbers: list[int] = []
    write = optim._count_writes

    def count(plan: Any, columns: Any, lowers: Any) -> None:
        numbers.append(len(columns[0]) - len(plan.left_out))
        write(plan, columns, lowers)

    monkeypatch.setattr(optim, "_count_writes", count)
    return numbers
