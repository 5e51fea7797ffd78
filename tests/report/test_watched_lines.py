"""Which line a call belongs to, and that the rows of all lines sum up to what is counted."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import Report, Row, _core, hmp
from helpers.processes import in_threads
from helpers.watching import assert_rows_sum_up, marked_line

X = torch.linspace(-1, 1, 32).reshape(4, 8)

pytestmark = pytest.mark.usefixtures("counted")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)  # the sequence
        return F.layer_norm(self.out(x), (8,))  # the norm


@pytest.fixture(autouse=True)
def lines() -> Iterator[None]:
    hmp.convert(report="lines")
    return


def rows(operation: str) -> list[Row]:
    return [row for row in hmp.report(show=False) if row.operation == operation]


def line_of(operation: str) -> int | None:
    (row,) = rows(operation)
    assert row.file == __file__
    return row.line


def test_the_line_is_that_of_the_code_that_calls_a_module_of_torch() -> None:
    Model()(X)
    assert line_of("softmax") == marked_line(__file__, "the sequence")
    assert line_of("layer_norm") == marked_line(__file__, "the norm")
    assert {row.line for row in rows("linear")} == {
        marked_line(__file__, "the sequence"),
        marked_line(__file__, "the norm"),
    }
    assert {row.function for row in rows("linear")} == {"forward"}


def test_two_lines_of_one_operation_are_two_rows_and_one_line_is_one() -> None:
    for _ in range(3):
        torch.mm(X, X.t()) @ torch.mm(X, X.t())  # both
    torch.mm(X, X.t())  # the other
    calls = {row.line: row.calls for row in rows("mm")}
    assert calls == {marked_line(__file__, "both"): 6, marked_line(__file__, "the other"): 1}


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(checkpoint(model, X, use_reentrant=False), torch.arange(4))
        loss.backward()
        with hmp.disable_casts():
            optimizer.step()
        with torch.autocast("cpu", enabled=False):
            loss.exp(), model.out(X)


def test_the_rows_sum_up_over_a_training_with_checkpoints_threads_and_exceptions() -> None:
    hmp.reset_report()
    in_threads(lambda _: train(Model()), 4)
    for _ in range(5):
        with pytest.raises(RuntimeError):
            torch.mm(X, X)
    x = X.clone()
    x[0] = torch.ones(8, dtype=torch.bfloat16)
    x += X.bfloat16()
    report = hmp.report(show=False)
    assert_rows_sum_up(report)
    assert {row.phase for row in report} == {"forward", "backward"}
    assert {"list", "in_place", "disabled", "autocast_off"} <= {row.reason for row in report}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_the_rows_sum_up_over_compiled_code(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.compile(Model(), backend=backend)
    hmp.reset_report()
    model(X).sum().backward()
    report = hmp.report(show=False)
    assert_rows_sum_up(report)
    traced = [row for row in report if row.phase == "traced" and row.operation == "linear" and row.file is not None]
    assert {row.line for row in traced} == {marked_line(__file__, "the sequence"), marked_line(__file__, "the norm")}


def test_operations_inside_of_a_function_with_a_rule_of_its_own_are_not_counted_twice() -> None:
    @hmp.op_wrap(to="bf16")
    def wrapped(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, x.t()) + 1

    hmp.reset_report()
    wrapped(X)  # here
    report = hmp.report(show=False)
    assert_rows_sum_up(report)
    (row,) = [row for row in report if row.reason == "op_wrap"]
    assert row.line == marked_line(__file__, "here")


def test_what_went_from_one_row_into_another_is_told_with_its_casts() -> None:
    for _ in range(4):
        torch.mm(X, X.t()).softmax(-1).mm(X)
    report = hmp.report(show=False)
    names = {i: (row.operation, row.precision) for i, row in enumerate(report)}
    found = {(names[edge.source], names[edge.target]): (edge.calls, edge.casts) for edge in report.edges}
    assert found == {
        (("mm", "bf16"), ("softmax", "fp32")): (4, 4),
        (("softmax", "fp32"), ("mm", "bf16")): (4, 4),
    }


def test_a_weight_whose_cast_is_not_cached_is_told_of() -> None:
    model = nn.Linear(128, 128)
    array = model.weight.detach().numpy()
    for _ in range(3):
        model(torch.ones(2, 128))  # not cached
    assert array is not None
    found = [row for row in rows("linear") if row.refused]
    assert {row.line for row in found} == {marked_line(__file__, "not cached")}
    assert sum(sum(row.refused.values()) for row in found) == hmp.report(show=False).weights.refused > 0


def test_a_report_that_is_made_while_others_count_is_whole() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.mm(X, X.t())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        made = [hmp.report(show=False) for _ in range(20)]
    finally:
        stop.set()
        thread.join()
    assert all(isinstance(one, Report) for one in made)
    calls = [one.total("calls") for one in made]
    assert calls == sorted(calls)


def test_without_a_wish_nothing_is_recorded_and_the_report_has_no_places() -> None:
    hmp.convert()
    hmp.reset_report()
    Model()(X)
    assert _core.watched_calls() == []
    assert {(row.file, row.module, row.seconds) for row in hmp.report(show=False)} == {(None, None, None)}


def test_a_block_is_watched_and_what_runs_before_it_is_counted_without_a_place() -> None:
    hmp.convert()
    hmp.reset_report()
    torch.mm(X, X.t())
    with hmp.watch("modules"), hmp.watch():
        torch.mm(X, X.t())  # watched
    torch.mm(X, X.t())
    assert sorted((row.line or 0, row.calls) for row in rows("mm")) == [(0, 2), (marked_line(__file__, "watched"), 1)]
    assert hmp.report(show=False).total("calls") == 3


@pytest.mark.parametrize("wrong", ["line", "", None, 3])
def test_an_unknown_detail_is_refused_and_nothing_changes(wrong: Any) -> None:
    message = r"`report` must be one of 'operations', 'modules', 'lines'; got "
    with pytest.raises(ValueError, match=message):
        hmp.convert("O0", report=wrong)
    with pytest.raises(ValueError, match=message.replace("report", "detail")), hmp.watch(wrong):
        pass
    assert torch.mm(X, X.t()).dtype is torch.bfloat16


def test_a_finalizer_that_resets_the_report_while_it_is_read() -> None:
    class Resets:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            hmp.reset_report()

    exec(compile("torch.exp(X)\n" * 300, "many_lines.py", "exec"))
    before = gc.get_threshold()
    gc.collect()
    Resets()
    try:
        gc.set_threshold(1)
        assert len(_core.watched_calls()) in (0, 300)
    finally:
        gc.set_threshold(*before)
