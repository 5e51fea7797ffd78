"""The report of all ranks, and the rank in the warnings of the guard."""

from __future__ import annotations

import io
import math

import pytest
import torch
from torch import distributed as dist

from habana_mp import HmpWarning, Report, hmp
from helpers.ranks import on_two_ranks


@on_two_ranks
def test_each_rank_returns_the_report_of_all_and_rank_0_prints_it() -> None:
    hmp.reset_report()
    hmp.convert(report="lines")
    for _ in range(1 + dist.get_rank()):
        torch.ones(2, 2) @ torch.ones(2, 2)
    printed = io.StringIO()
    whole, own = hmp.report(file=printed, ranks=True), hmp.report(show=False)
    assert [(row.operation, row.calls) for row in whole] == [("matmul", 3)]
    assert whole.ranks == 2
    assert bool(printed.getvalue()) is (dist.get_rank() == 0)
    assert (own.total("calls"), own.ranks) == (1 + dist.get_rank(), 1)
    reports: list[Report] = [own, own]
    dist.all_gather_object(reports, whole)
    assert reports == [whole, whole]


@on_two_ranks
def test_the_guard_names_the_rank_and_the_device() -> None:
    """Also where it finds nothing: the operation had run before."""
    hmp.convert(guard=1.0)
    if dist.get_rank() == 1:
        with pytest.warns(HmpWarning, match=r"`sqrt` made a NaN .*\. This is rank 1, on cpu$"):
            torch.sqrt(torch.tensor([-1.0]))
    hmp.convert(guard=True)
    torch.tensor(math.nan, requires_grad=True).backward()
    with pytest.warns(HmpWarning, match=rf"ran before .*\. This is rank {dist.get_rank()}"):
        hmp.restore()
