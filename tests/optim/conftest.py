"""What the tests of the optimizers share."""

from __future__ import annotations

from typing import Any

import pytest

from habana_mp.patches.torch import kernel_steps


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many weights our kernels stepped, one number a group."""
    numbers: list[int] = []
    write = kernel_steps.count_writes

    def count(plan: Any, columns: Any, lowers: Any) -> None:
        numbers.append(len(columns[0]) - len(plan.left_out))
        write(plan, columns, lowers)

    monkeypatch.setattr(kernel_steps, "count_writes", count)
    return numbers
