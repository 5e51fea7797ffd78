"""The report of all ranks."""

from __future__ import annotations

import io

import torch
from torch import distributed as dist

from habana_mp import Report, hmp
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
