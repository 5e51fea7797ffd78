"""The report of all ranks, and the rank in the warnings of the guard."""

from __future__ import annotations

import copy
import io
import math
from contextlib import nullcontext

import pytest
import torch
from torch import distributed as dist
from torch import nn

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


@on_two_ranks
def test_the_report_of_all_ranks_names_what_the_guards_named_once_with_its_ranks() -> None:
    hmp.reset_report()
    hmp.convert(guard=1.0, dtype=torch.float16)
    value = 1e5 * (1 + dist.get_rank())
    with pytest.warns(HmpWarning, match=rf"`__mul__` made an infinity .* has the value {1 + dist.get_rank()}e"):
        torch.tensor([value]) * torch.tensor([1.0])
    whole = hmp.report(show=False, ranks=True)
    ((text, ranks),) = whole.guarded.items()
    assert text.startswith("`__mul__` made an infinity in float16 of finite inputs, at ")
    assert ranks == (0, 1)
    assert f"The guard: {text} (ranks 0, 1)" in whole.words
    assert Report.from_dict(whole.to_dict()) == whole
    assert Report.from_dict(whole.to_dict()).guarded == whole.guarded

    hmp.convert(guard=1.0)
    if dist.get_rank() == 1:
        with pytest.warns(HmpWarning, match="`sqrt` made a NaN"):
            torch.sqrt(torch.tensor([-1.0]))
    whole = hmp.report(show=False, ranks=True)
    assert [(text.split()[0], ranks) for text, ranks in whole.guarded.items()] == [("`sqrt`", (1,))]
    assert len(hmp.report(show=False).guarded) == dist.get_rank()
    hmp.reset_report()
    assert not hmp.report(show=False).guarded


class Angles(nn.Module):
    """Its angles are too large for bfloat16 on one rank, or on both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 8)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        angles = steps[:, None] * 0.9 ** torch.arange(32)
        result: torch.Tensor = self.body(torch.cat([angles.sin(), angles.cos()], -1))
        return result


@on_two_ranks
def test_the_diagnosis_of_all_ranks_names_an_operation_once_with_its_ranks() -> None:
    hmp.convert()  # HMP's own lists, which lower `mul`
    torch.manual_seed(0)
    model, target = nn.parallel.DistributedDataParallel(Angles()), torch.randn(1000, 8)

    def step(largest: float) -> torch.Tensor:
        with model.no_sync():
            result = model(torch.linspace(0, largest, 1000))
            loss = nn.functional.mse_loss(result.float(), target)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        return loss

    for largest, on in ((1000.0, (0, 1)), (1000.0 * dist.get_rank(), (1,))):
        found = hmp.diagnose(lambda largest=largest: step(largest), ranks=True)  # type: ignore[misc]  # untyped
        finding = found.findings[0]
        assert (finding.operation, finding.ranks) == ("__mul__", on)
        assert finding.text.endswith(" (ranks 0, 1)" if len(on) == 2 else " (rank 1)")
        assert str(found).count("`__mul__` at") == 1
        both: list[hmp.Diagnosis] = [found, found]
        dist.all_gather_object(both, found)
        assert both[0].findings == both[1].findings
    assert hmp.diagnose(lambda: step(1.0), ranks=True).healthy


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_under_no_sync", [False, True])
@on_two_ranks
def test_a_replay_does_not_communicate(is_under_no_sync: bool) -> None:
    hmp.convert()
    torch.manual_seed(0)
    model, target = (
        nn.parallel.DistributedDataParallel(nn.Sequential(Angles(), nn.BatchNorm1d(8))),
        torch.randn(1000, 8),
    )
    largest, runs = 1.0 + 999 * dist.get_rank(), 0

    def train() -> torch.Tensor:
        nonlocal runs
        runs += 1
        loss = nn.functional.mse_loss(model(torch.linspace(0, largest, 1000)).float(), target)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's has no types
        return loss

    def step() -> torch.Tensor:
        with model.no_sync() if is_under_no_sync else nullcontext():
            return train()

    train()  # the next forward that communicates makes new buckets
    model.zero_grad()
    runs, state = 0, copy.deepcopy(model.state_dict())
    if dist.get_rank() == 0:  # alone
        hmp.diagnose(step)
        runs = 0
    assert [one.operation for one in hmp.diagnose(step, ranks=True).findings] == ["__mul__"]
    of_ranks = [0, 0]
    dist.all_gather_object(of_ranks, runs)
    assert of_ranks[0] < of_ranks[1]
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    train()
    for one in model.parameters():
        assert one.grad is not None
        gradients = [torch.empty_like(one.grad) for _ in of_ranks]
        dist.all_gather(gradients, one.grad)
        assert torch.equal(*gradients)


def test_without_ranks_a_diagnosis_of_all_ranks_is_that_of_this_process() -> None:
    hmp.convert()
    model = Angles()
    found = hmp.diagnose(lambda: model(torch.linspace(0, 1000, 1000)).float().square().sum(), ranks=True)
    assert found.loss is not None
    assert all(not one.ranks for one in found.findings)
