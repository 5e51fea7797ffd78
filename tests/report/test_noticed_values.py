"""What the watch notices of values, and what a report counts beside the calls that lists decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import Report, Row, _core, hmp
from habana_mp.reporting.remedies import Finding
from helpers.lists import Converter
from helpers.models import Calls
from helpers.watching import marked_line

BF16 = torch.bfloat16
pytestmark = pytest.mark.usefixtures("counted")


@pytest.fixture
def watched(converted: Converter) -> Iterator[Converter]:
    with hmp.watch("lines"):
        yield converted
        hmp.restore()


def rows_of(operation: str) -> list[Row]:
    return [row for row in hmp.report(show=False) if row.operation == operation]


def noticed(operation: str) -> dict[str, float]:
    """What was noticed at the one line that calls it, or at the first of some."""
    return dict(min(rows_of(operation), key=lambda row: row.line or 0).noticed)


# ---- whole numbers --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    values=st.lists(st.integers(0, 5000).map(float) | st.floats(-5000, 5000, width=32), min_size=1, max_size=6),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    shape=st.sampled_from(["plain", "expanded", "transposed"]),
)
def test_whole_numbers_are_noticed_where_the_precision_does_not_hold_them(
    values: list[float], dtype: torch.dtype, shape: str
) -> None:
    tensor = torch.tensor(values)
    given_tensor = {
        "plain": tensor,
        "expanded": tensor[:, None].expand(-1, 3),
        "transposed": torch.stack([tensor, tensor]).t(),
    }[shape]
    hmp.convert(dtype=dtype, report="lines")
    hmp.reset_report()
    try:
        given_tensor * 1.0
        found = noticed("mul").get("largest count", 0)
    finally:
        hmp.restore()
    are_counts = all(value >= 0 and value.is_integer() for value in values)
    is_rounded = bool((tensor.to(dtype).float() != tensor).any())
    assert found == (max(values) if are_counts and is_rounded else 0)


def test_a_mask_counts_nothing(watched: Converter) -> None:
    watched(bf16=["mul"])
    for mask in (torch.tensor([0.0, -10000.0]), torch.tensor([0.0, torch.finfo(torch.float32).max])):
        mask * 1.0
    assert noticed("mul") == {}


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("eq", lambda x: x == 1.0),
        ("lt", lambda x: torch.lt(x, 2.0)),
        ("long", lambda x: x.long()),
        ("int", lambda x: x.int()),
        ("searchsorted", lambda x: torch.searchsorted(torch.ones(3, dtype=BF16), x)),
    ],
)
def test_counts_in_lower_precision_are_noticed_where_they_are_compared(
    operation: str, call: Callable[[torch.Tensor], Any], watched: Converter
) -> None:
    watched(bf16=["mm"])
    call(torch.tensor([1.0, 300.0], dtype=BF16))
    assert noticed(operation) == {"largest count": 300.0}


# ---- other values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("operation", "fp32"), [("sin", []), ("cos", []), ("tan", []), ("cos", ["cos"])])
def test_angles_in_lower_precision_are_noticed_whatever_the_list_says(
    operation: str, fp32: list[str], watched: Converter
) -> None:
    watched(bf16=["mm"], fp32=fp32)
    getattr(torch, operation)(torch.tensor([1.0, -300.0, float("inf")], dtype=BF16))
    assert noticed(operation) == {"largest angle": 300.0}
    getattr(torch, operation)(torch.tensor([500.0]))
    assert noticed(operation) == {"largest angle": 300.0}


def test_float64_and_statistics_are_noticed(watched: Converter) -> None:
    watched(bf16=["mul", "batch_norm"])
    torch.ones(3) * torch.ones(3, dtype=torch.float64)
    torch.ones(3) * torch.ones(3, dtype=torch.complex64)
    assert noticed("mul") == {"with float64": 1}
    nn.functional.batch_norm(
        torch.ones(2, 3, dtype=BF16), torch.zeros(3, dtype=BF16), torch.ones(3, dtype=BF16), training=True
    )
    assert noticed("batch_norm") == {"in lower statistics": 1}


@pytest.mark.parametrize("begin", ["method", "function", "list", "keyword"])
def test_a_loss_in_lower_precision_is_noticed(begin: str, watched: Converter) -> None:
    watched(bf16=["matmul"])
    weight = torch.ones(2, 2, requires_grad=True)
    assert (weight @ weight).dtype is BF16
    loss = (weight @ weight).mean()
    if begin == "method":
        loss.backward()
    elif begin == "function":
        torch.autograd.backward(loss)
    elif begin == "list":
        torch.autograd.backward([loss])
    else:
        torch.autograd.backward(tensors=loss)
    assert noticed("mean") == {"losses": 1}


def test_a_result_that_a_module_carries_on_is_noticed(watched: Converter) -> None:
    watched(bf16=["matmul"])
    module = nn.Module()
    module.average = torch.zeros(2, 2, dtype=BF16)
    with torch.no_grad():
        for _ in range(3):
            module.average = torch.ones(2, 2) @ torch.ones(2, 2)
        assert noticed("matmul") == {"carried": 3}
        module.average = torch.ones(3, 2) @ torch.ones(2, 2)  # of another size, as a cache that grows
    assert sum(row.noticed.get("carried", 0) for row in rows_of("matmul")) == 3


@pytest.mark.filterwarnings("ignore::habana_mp.HmpWarning")
def test_an_average_that_is_computed_in_lower_precision_is_noticed_although_it_stays_float32(
    watched: Converter,
) -> None:
    watched(bf16=["mul"])
    module = nn.Module()
    module.register_buffer("centre", torch.ones(4))
    module.mean = torch.ones(4)
    module.weight = nn.Parameter(torch.ones(4))
    with torch.no_grad():
        module.centre = module.centre * 0.999
        module.mean = module.mean * 0.999
        module.weight.data = module.weight.data * 0.999
    assert {module.centre.dtype, module.mean.dtype, module.weight.dtype} == {torch.float32}
    assert [row.noticed["carried"] for row in rows_of("mul")] == [1] * 3


# ---- what is counted ------------------------------------------------------------------------------------------------


def test_an_operation_in_no_list_has_a_row_where_it_runs_lower_and_somebody_watches(converted: Converter) -> None:
    converted(bf16=["mm"])
    plain, lower = torch.ones(2, 2), torch.ones(2, 2, dtype=BF16)
    expected = lower.softmax(-1)
    assert rows_of("softmax") == []
    with hmp.watch("lines"):
        assert torch.equal(lower.softmax(-1), expected)
        plain.softmax(-1)
        with hmp.disable_casts():
            lower.softmax(-1)
    lower.softmax(-1)
    (row,) = rows_of("softmax")
    assert (row.precision, row.reason, row.calls, row.rule) == ("bf16", "unlisted", 1, "rule 4")


def test_a_listed_operation_in_a_listed_function_has_a_row_that_tells_of_the_suspended_lists(
    converted: Converter,
) -> None:
    attention, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.ones(1, 3, 8)
    converted(bf16=["multi_head_attention_forward"], fp32=["softmax"])
    with hmp.watch("lines"):
        attention(x, x, x)
    (row,) = rows_of("softmax")
    assert (row.precision, row.reason) == ("bf16", "suspended")


def test_operations_in_no_list_are_as_they_were_when_nobody_watches_any_more(converted: Converter) -> None:
    converted(bf16=["mm"])
    before = _core.installed_count()
    with hmp.watch("lines"):
        assert _core.installed_count() > before
        with hmp.autocast("cpu"):
            pass
    in_region = _core.installed_count()
    with hmp.watch("modules"):
        hmp.convert()
        assert _core.installed_count() > in_region
    assert _core.installed_count() >= in_region
    with hmp.watch("lines"):
        hmp.restore()
        assert _core.installed_count() == 0
    assert _core.installed_count() == 0


def test_lists_that_leave_an_operation_out_do_not_make_it_go_from_a_comparison() -> None:
    def report_under(preset: str) -> Report:
        hmp.convert(preset=preset, report="lines")
        hmp.reset_report()
        (torch.ones(2, 2) @ torch.ones(2, 2)).softmax(-1)
        return hmp.report(show=False)

    compared = hmp.compare(report_under("hmp-default"), report_under("torch-cpu"))
    assert "softmax" in str(compared)
    assert not any("softmax" in line and "gone" in line for line in str(compared).splitlines())


@pytest.mark.parametrize(("listed", "watch"), [("mm", False), ("mm", True), ("mul", True)])
def test_a_call_that_raises_counts(listed: str, watch: bool, converted: Converter) -> None:
    converted(bf16=[listed])

    def call() -> None:
        with pytest.raises(RuntimeError):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))

    if watch:
        with hmp.watch("lines"):
            call()
    else:
        call()
    if listed == "mm":
        (row,) = rows_of("mm")
        assert (row.calls, row.precision) == (1, "bf16")
        assert row.casts == 2


def test_the_call_at_which_checkpointing_stops_counts(watched: Converter) -> None:
    watched(bf16=["mm", "linear"])
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    out = torch.utils.checkpoint.checkpoint(layers, torch.ones(2, 4, requires_grad=True), use_reentrant=False)
    out.float().sum().backward()
    counts = {
        phase: sum(row.calls for row in rows_of("linear") if row.phase == phase) for phase in ("forward", "backward")
    }
    assert counts == {"forward": 2, "backward": 2}


def test_casts_never_take_longer_than_their_calls(watched: Converter) -> None:
    watched(bf16=["mm", "linear", "cat", "mul"])
    layer = nn.Linear(64, 64)
    for _ in range(5):
        x = layer(torch.ones(8, 64))
        (torch.cat([x, torch.ones(8, 64)]) * 0.5).float().sum().backward()
    for row in hmp.report(show=False):
        assert row.cast_seconds is not None
        assert row.seconds is not None
        assert row.cast_seconds <= row.seconds


def test_refreshes_of_cached_casts_have_a_size(converted: Converter) -> None:
    converted(bf16=["linear"])
    layer = nn.Linear(256, 256)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(3):
        layer(torch.ones(4, 256)).float().sum().backward()
        optimizer.step()
    weights = hmp.report(show=False).weights
    assert weights.refreshes > 0
    assert weights.refreshed_bytes >= weights.refreshes * 2 * 256
    assert f"refreshed {weights.refreshes} times (" in str(weights)


# ---- differences, averages and weights ------------------------------------------------------------------------------


def findings_in(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Finding, ...]:
    hmp.convert(preset="recommended", report="lines", **options)
    hmp.reset_report()
    for _ in range(3):
        Calls(function)(*args)
    return hmp.report(show=False).findings


def kinds_in(function: Callable[..., Any], *args: Any, **options: Any) -> set[str]:
    return {one.kind for one in findings_in(function, *args, **options)}


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1)


POINTS = 8 + torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
NEAR = POINTS + 0.1 * torch.randn(64, 16, generator=torch.Generator().manual_seed(1))

DISTANCES: dict[str, Callable[..., Any]] = {
    "k-means": lambda x, y: squares(x)[:, None] + squares(y) - 2 * x @ y.t(),
    "the product last": lambda x, y: squares(x)[:, None] + squares(y) - 2 * (x @ y.t()),
    "the product first": lambda x, y: -2 * (x @ y.t()) + squares(x)[:, None] + squares(y),
    "the product between": lambda x, y: -(squares(x)[:, None] - 2 * x @ y.t() + squares(y)),
    "in bfloat16": lambda x, y: squares(x.bfloat16())[:, None] + squares(y.bfloat16()) - 2 * x @ y.t(),
    "between cosines": lambda x, y: 1 - F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t(),
    "an einsum": lambda x, y: squares(x)[:, None] + squares(y) - 2 * torch.einsum("id,jd->ij", x, y),
}


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_by_a_lowered_product_is_found(name: str) -> None:
    assert "rounded difference" in kinds_in(DISTANCES[name], POINTS, NEAR)
    # Far from the origin the error is as large as the distance, and has both signs.
    assert "rounded difference" in kinds_in(DISTANCES[name], POINTS + 20, NEAR + 20)
    # Far from each other, little is rounded: the products are no larger than the distances.
    assert "rounded difference" not in kinds_in(DISTANCES[name], POINTS - 8, NEAR.flip(0) + 92)


OTHERS: dict[str, Callable[..., Any]] = {
    "a softmax of one product": lambda x, y, s: s - s.amax(-1, keepdim=True),
    "a logarithm of a softmax": lambda x, y, s: s - s.logsumexp(-1, keepdim=True),
    "a centred product": lambda x, y, s: s - s.mean(-1, keepdim=True),
    "a residual": lambda x, y, s: x + (x - 8) @ (y[:16] - 8),
    "an error": lambda x, y, s: (x - 8) @ (y[:16] - 8) - torch.randn(64, 16),
    "a straight-through estimator": lambda x, y, s: s + (s.round() - s).detach(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_no_other_difference_is_taken_for_a_distance(name: str) -> None:
    torch.manual_seed(0)
    assert "rounded difference" not in kinds_in(lambda x, y: OTHERS[name](x, y, x @ y.t()), POINTS, NEAR)


RIDGES: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "a sum": lambda x, ridge: x @ x.t() + ridge * torch.eye(64),
    "the diagonal first": lambda x, ridge: torch.add(torch.diag(torch.full((64,), ridge)), torch.mm(x, x.t())),
    "a batch": lambda x, ridge: torch.stack([x, x]) @ torch.stack([x, x]).mT + ridge * torch.eye(64),
}


@pytest.mark.parametrize("name", RIDGES)
def test_a_ridge_that_the_rounding_of_the_product_exceeds_is_found(name: str) -> None:
    (text,) = (one.text for one in findings_in(RIDGES[name], POINTS - 8, 1e-4))
    assert "adds to " in text
    assert " in bf16 a diagonal that its rounding exceeds" in text
    assert findings_in(RIDGES[name], POINTS - 8, 10.0) == ()


def test_a_difference_is_judged_by_its_worst_calls() -> None:
    def scatter(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ni,nj->ij", x, x) / len(x) - torch.outer(x.mean(0), x.mean(0))

    def kinds(shifted: int) -> set[str]:
        hmp.convert(preset="recommended", report="lines")
        hmp.reset_report()
        torch.manual_seed(0)
        loss = Calls(lambda a, b: (scatter(a) - scatter(b)).square().mean())
        for number in range(60):
            shift = 12.0 if number < shifted else 0.0
            loss(torch.randn(300, 16) + shift, 2 * torch.randn(300, 16) + shift)
        return {one.kind for one in hmp.report(show=False).findings}

    assert "rounded difference" in kinds(2)
    assert "rounded difference" not in kinds(0)


def covariance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.t() @ y / len(x) - torch.outer(x.mean(0), y.mean(0))


@pytest.mark.parametrize(
    ("function", "x", "y"),
    [(DISTANCES["the product last"], POINTS, NEAR), (covariance, POINTS.bfloat16(), POINTS.bfloat16())],
    ids=["what a list lowers after the product", "means in the precision that they are given"],
)
def test_the_advice_on_a_difference_names_what_else_is_lower(
    function: Callable[..., Any], x: torch.Tensor, y: torch.Tensor
) -> None:
    exact = function(x.double(), y.double()).diagonal()

    def wrong_by(**options: Any) -> float:
        hmp.convert(report="lines", **options)
        hmp.reset_report()
        found = Calls(function)(x, y).diagonal().double()
        return float((found - exact).norm() / exact.norm())

    assert wrong_by() > 0.1
    (rule,) = (one.rule for one in hmp.report(show=False).findings if one.kind == "rounded difference")
    assert wrong_by(rules=dict(rule)) < 0.05


def test_a_ridge_that_few_calls_lose_is_found() -> None:
    hmp.convert(preset="recommended", report="lines")
    hmp.reset_report()
    kernel = Calls(lambda x: x @ x.t() + 0.5 * torch.eye(64))
    for number in range(30):
        kernel((20.0 if number == 7 else 1.0) * (POINTS - 8))
    assert "rounded difference" in {one.kind for one in hmp.report(show=False).findings}


# ---- differences of a model's results -------------------------------------------------------------------------------


class Sites(nn.Module):
    """Scores of a sequence. A change of one place changes few of the terms that the head adds up."""

    def __init__(self, *, pooled: bool = False, as_dict: bool = False) -> None:
        super().__init__()
        self.body = nn.Conv1d(4, 48, 7)
        self.head = nn.Linear(48 if pooled else 48 * 294, 3)
        self.head.bias.data += 0.0 if pooled else 50.0
        self.pooled, self.as_dict = pooled, as_dict

    def forward(self, x: torch.Tensor) -> Any:
        found = F.gelu(self.body(x))
        scores = self.head(found.mean(-1) if self.pooled else found.flatten(1))
        return {"scores": scores} if self.as_dict else scores


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence, and forty that differ from it in one place."""
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(1, 4, 300, generator=generator)
    many = one.repeat(40, 1, 1)
    for place in range(40):
        many[place, :, 7 * place + 9] = torch.randn(4, generator=generator)
    return one, many


COMPARED: dict[str, Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a batch": lambda model, one, many: model(many) - model(one),
    "one by one": lambda model, one, many: torch.cat([model(each[None]) - model(one) for each in many[:20]]),
    "with numbers": lambda model, one, many: torch.stack([model(each[None])[0, 1] - model(one)[0, 1] for each in many]),
    "halves of a batch": lambda model, one, many: (out := model(torch.cat([many, one.expand_as(many)])))[:40]
    - out[40:],
    "joined": lambda model, one, many: torch.sub(torch.cat([model(each) for each in many.split(10)]), model(one)),
    "a finite difference": lambda model, one, many: (model(one + 1e-3 * many) - model(one - 1e-3 * many)) / 2e-3,
}


def results_subtracted(model: nn.Module, name: str, **options: Any) -> tuple[torch.Tensor, tuple[Finding, ...]]:
    hmp.convert(preset="recommended", **{"report": "lines", **options})
    hmp.reset_report()
    with torch.no_grad():
        found = COMPARED[name](model, *sequences())
    return found, tuple(one for one in hmp.report(show=False).findings if one.kind == "rounded difference")


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("name", COMPARED)
def test_of_two_nearly_equal_results_the_line_that_should_keep_its_sum_is_named(name: str, pooled: bool) -> None:
    torch.manual_seed(0)
    model = Sites(pooled=pooled)
    with torch.no_grad():
        exact = COMPARED[name](model.double(), *(one.double() for one in sequences()))
    model.float()
    before, (found,) = results_subtracted(model, name)
    expected = {"linear @ head": "lower -> fp32"} if not pooled else {"linear @ head": "fp32", "mean @ Sites": "fp32"}
    assert dict(found.rule) == expected
    assert "what else is rounded before remains" in found.text
    after, left = results_subtracted(model, name, rules=dict(found.rule))
    assert left == ()
    if name != "a finite difference":  # it changes every place
        wrong, mended = (float((one - exact).norm() / exact.norm()) for one in (before, after))
        assert mended < wrong / 2


def test_results_in_containers_are_followed() -> None:
    torch.manual_seed(0)
    model, (one, many) = Sites(as_dict=True), sequences()
    hmp.convert(preset="recommended", report="lines")
    hmp.reset_report()
    with torch.no_grad():
        model(many)["scores"] - model(one)["scores"]
    (found,) = hmp.report(show=False).findings
    assert dict(found.rule) == {"linear @ head": "lower -> fp32"}


@pytest.mark.parametrize("detail", ["operations", "modules"])
def test_other_reports_look_at_no_difference(detail: Any) -> None:
    torch.manual_seed(0)
    assert results_subtracted(Sites(), "a batch", report=detail)[1] == ()


HEALTHY: dict[str, Callable[[torch.Tensor], Any]] = {
    "an error": lambda out: (out - torch.randn_like(out)).square().mean(),
    "labels": lambda out: (F.one_hot(torch.zeros(40).long(), 3) - out).abs().mean(),
    "labels that are met": lambda out: (1 - (1 + 1e-3 * out).bfloat16().float()).sum(),
    "a residual": lambda out: out + 0.1 * torch.randn_like(out),
    "centred": lambda out: (out - out.mean(0)) / out.std(0),
    "less the largest": lambda out: (out - out.amax(-1, keepdim=True)).exp(),
    "other results": lambda out: out[1:] - out[:-1],
    "scaled": lambda out: out / 1024,
}


@pytest.mark.parametrize("name", HEALTHY)
def test_no_other_use_of_results_is_taken_for_a_difference_of_equal_ones(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 3)
    hmp.convert(preset="recommended", report="lines")
    hmp.reset_report()
    for _ in range(5):
        HEALTHY[name](model(3 * torch.randn(40, 64)))
    assert hmp.report(show=False).findings == ()


# ---- solutions of linear systems ------------------------------------------------------------------------------------


class LeastSquares(nn.Module):
    """Fits features to targets in its forward."""

    def __init__(self, solve: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.features, self.solve = nn.Linear(12, 12, bias=False), solve

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        found = self.features(x)
        system = found.mT @ found + 1e-2 * torch.eye(12, dtype=found.dtype)
        return self.solve(system, found.mT @ y.to(found.dtype))


SOLVES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "solve": torch.linalg.solve,
    "inv": lambda system, right: torch.linalg.inv(system) @ right,
    "lu_factor and lu_solve": lambda system, right: torch.linalg.lu_solve(*torch.linalg.lu_factor(system), right),
    "cholesky_solve": lambda system, right: torch.cholesky_solve(right, torch.linalg.cholesky_ex(system)[0]),
    "lstsq": lambda system, right: torch.linalg.lstsq(system, right).solution,
}


def fitted(name: str, **options: Any) -> tuple[float, Report]:
    """The error of a fit, and the report."""
    torch.manual_seed(0)
    mixed = torch.randn(12, 12) + 1
    model, x, y = nn.Sequential(), torch.randn(6, 30, 12) @ mixed, torch.randn(6, 30, 2)
    model.solver = LeastSquares(SOLVES[name])
    outer = Calls(lambda x, y: model.solver(x, y), model=model)
    with torch.no_grad():
        exact = outer.double()(x.double(), y.double())
        hmp.convert(preset="recommended", report="lines", **options)
        hmp.reset_report()
        found = outer.float()(x, y)
        report = hmp.report(show=False)
        hmp.restore()
    return float((found - exact).norm() / exact.norm()), report


@pytest.mark.parametrize("name", SOLVES)
def test_a_solution_of_rounded_values_advises_the_module(name: str) -> None:
    before, report = fitted(name)
    found = [one for one in report.findings if one.kind == "solution of rounded values"]
    assert {tuple(one.rule.items()) for one in found} == {(("* @ model.solver", "fp32"),)}
    assert all("%" not in one.text.partition(" of all time")[2] for one in found)
    after, report = fitted(name, rules=dict(found[0].rule))
    assert after < before / 10
    assert not [one for one in report.findings if one.kind == "solution of rounded values"]


def test_a_system_that_no_product_of_the_module_makes_is_no_finding() -> None:
    def solved(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(torch.diag_embed(x.abs() + 1), x[..., None])

    assert "solution of rounded values" not in kinds_in(solved, torch.randn(4, 8))


def test_an_average_in_a_variable_is_found_and_no_other_multiplication() -> None:
    def steps(decay: float, *, is_kept: bool) -> set[str]:
        hmp.convert(report="lines")
        hmp.reset_report()
        average = torch.zeros(8)
        for _ in range(10):
            found = decay * average + (1 - decay) * torch.ones(8)
            average = found if is_kept else torch.zeros(8)
        return {one.kind for one in hmp.report(show=False).findings}

    assert "average" in steps(0.999, is_kept=True)
    assert "average" not in steps(0.999, is_kept=False)
    assert "average" not in steps(0.5, is_kept=True)


def test_an_optimizer_of_lower_weights_is_found_once() -> None:
    wide, lower = nn.Linear(4, 4), nn.Linear(4, 4).bfloat16()
    hmp.convert(preset="recommended")
    for model in (wide, lower, lower):
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 4)).float().sum().backward()
        optimizer.step()
    (found,) = hmp.report(show=False).findings
    assert found.text.startswith(
        "Adam steps 2 of 2 weights in bf16, 2 of 2 gradients in bf16, 2 of 2 states in bf16: small updates get lost"
    )
    hmp.reset_report()
    assert not hmp.report(show=False).findings


# ---- the lines of the user's ----------------------------------------------------------------------------------------


def trained(**options: Any) -> Report:
    """A model that is trained with AdamW, whose products run in the middle of a forward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    hmp.convert(**{"preset": "recommended", **options})
    hmp.reset_report()
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 16)), torch.arange(8) % 4).backward()
        optimizer.step()
    return hmp.report(show=False)


@pytest.mark.parametrize("detail", ["operations", "modules", "lines"])
def test_the_headline_is_about_products_and_leaves_steps_of_optimizers_out(detail: Any) -> None:
    report = trained(report=detail, preset="hmp-default")
    first, *others = report.words
    steps = sum(row.calls for row in report if row.reason == "optimizer_step")
    assert steps > 1000
    assert first.startswith("All 90 products ran in bf16. bf16: 120 calls")
    assert f"not counted: {steps:,} calls in optimizers' steps" in first
    assert not [line for line in others if "optimizer" in line]


def test_a_line_with_a_pattern_has_its_file_and_number_and_is_not_advised_against(tmp_path: Path) -> None:
    (tmp_path / "fp32.txt").write_text("# own\nlinear @ 2\nsoftmax\n")
    for options, place in (
        ({"fp32_file_path": str(tmp_path / "fp32.txt")}, f"{tmp_path}/fp32.txt:2"),
        ({"rules": {"linear @ 2": "fp32"}}, "rules['linear @ 2']"),
    ):
        for detail in ("operations", "modules", "lines"):
            report = trained(report=detail, **options)
            (own,) = [row for row in report if row.precision == "fp32" and row.operation == "linear"]
            assert (own.rule, own.is_own) == (place, True)
            others = [one for one in report.findings if one.kind != "too small"]  # depends on times
            assert not [one for one in others if one.text.startswith("linear") or "linear" in str(one.rule)]


def test_a_kept_module_is_told_as_kept() -> None:
    torch.manual_seed(0)
    model = hmp.keep(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    hmp.convert(preset="recommended", report="lines")
    hmp.reset_report()
    for _ in range(3):
        model(torch.ones(2, 8))
    report = hmp.report(show=False)
    assert {row.rule for row in report} == {"hmp.keep"}
    assert not report.findings
    assert " (kept by hmp.keep" in report.words[1]
    assert {row.why for row in report} == {"kept by hmp.keep"}
    assert "kept by hmp.keep" in str(report).partition("\n\n")[2]


# ---- float16 without a scaler ---------------------------------------------------------------------------------------


class Passed(torch.autograd.Function):
    """A function of the user's own around a loss."""

    @staticmethod
    def forward(_: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def loss_of(model: nn.Module) -> torch.Tensor:
    """In float32, of a model in the precision of the lists."""
    return F.mse_loss(model(torch.ones(4, 8)).float(), torch.zeros(4, 8))


def deep() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv1d(4, 4, 1), nn.GELU(), nn.Linear(8, 8), nn.Softplus())


def places_without_a_scaler() -> list[str]:
    found = [one.text for one in hmp.report(show=False).findings if one.kind == "float16 without a scaler"]
    return [re.findall(r"The backward at (\S+) begins", text)[0] for text in found]


def step_unscaled(model: nn.Module) -> None:
    loss_of(model).backward()


def step_of_own_function(model: nn.Module) -> None:
    loss: Any = Passed.apply(loss_of(model))  # type: ignore[no-untyped-call]  # torch's annotation
    (loss / 2 + 1).backward()


def step_with_scaler_off(model: nn.Module) -> None:
    torch.amp.GradScaler("cpu", enabled=False).scale(loss_of(model)).backward()


@pytest.mark.parametrize("step", [step_unscaled, step_of_own_function, step_with_scaler_off])
@pytest.mark.parametrize("region", [False, True])
def test_a_backward_in_float16_without_a_scale_is_found_once(step: Callable[[nn.Module], None], region: bool) -> None:
    if not region:
        hmp.convert(preset="recommended", dtype="fp16")
    hmp.reset_report()
    model = deep()
    for _ in range(3):
        with hmp.autocast("cpu", dtype=torch.float16) if region else nullcontext():
            step(model)
    (place,) = places_without_a_scaler()
    assert place.partition(":")[0].endswith(Path(__file__).name)


def scaled_by_scaler(model: nn.Module) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        ((scaler.scale(loss_of(model)) + scaler.scale(loss_of(model))) / 2).backward()
        scaler.step(optimizer)
        scaler.update()


def scaled_by_hand(model: nn.Module) -> None:
    (1024 * loss_of(model)).backward()
    (loss_of(model) * torch.tensor(8.0)).backward()


def scaled_by_its_gradient(model: nn.Module) -> None:
    loss_of(model).backward(torch.tensor(1024.0))


def trained_in_float32_beside_inference(model: nn.Module) -> None:
    with torch.no_grad():
        model(torch.ones(4, 8))
    with hmp.disable_casts():
        loss_of(model).backward()


def only_inference(model: nn.Module) -> None:
    with torch.inference_mode():
        loss_of(model)


@pytest.mark.parametrize(
    "run",
    [scaled_by_scaler, scaled_by_hand, scaled_by_its_gradient, trained_in_float32_beside_inference, only_inference],
)
def test_scaled_losses_inference_and_float32_need_no_scaler(run: Callable[[nn.Module], None]) -> None:
    hmp.convert(preset="recommended", dtype="fp16")
    hmp.reset_report()
    run(deep())
    assert not places_without_a_scaler()


def test_bfloat16_needs_no_scaler() -> None:
    hmp.convert(preset="recommended")
    hmp.reset_report()
    loss_of(deep()).backward()
    assert not places_without_a_scaler()


# ---- with each detail -----------------------------------------------------------------------------------------------


def test_weights_that_code_of_ones_own_updates_in_lower_precision_are_found(converted: Converter) -> None:
    converted(bf16=["linear", "mul"])
    layer = nn.Linear(256, 256)

    def step(update: Callable[[nn.Parameter, torch.Tensor], Any]) -> list[str]:
        hmp.reset_report()
        layer(torch.ones(4, 256)).float().sum().backward()
        with torch.no_grad():
            for one in [*layer.parameters()] * 2:
                update(one, one.grad * 0.1)  # type: ignore[operator]  # the backward has set it
        return [one.text for one in hmp.report(show=False).findings if one.kind == "lower weights"]

    (text,) = step(lambda weight, change: weight.sub_(change))
    assert text.startswith(
        "Values in lower precision were written into weights in float32 (4 calls): if that is the step"
    )
    assert step(lambda weight, change: weight.data.sub_(change)) != []
    assert step(lambda weight, change: weight.sub_(change.float())) == []
    with hmp.disable_casts():
        assert step(lambda weight, change: weight.sub_(change)) == []


@pytest.mark.parametrize("detail", ["operations", "modules", "lines"])
def test_a_momentum_of_ones_own_in_lower_precision_is_found_with_each_detail(detail: Any) -> None:
    """The step sets `.data`, and the momentum is in a dict."""

    def train() -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))
        speeds = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
        hmp.reset_report()
        for _ in range(3):
            model(torch.randn(4, 8)).float().square().mean().backward()
            with torch.no_grad():
                for name, one in model.named_parameters():
                    assert one.grad is not None
                    speeds[name] = 0.8 * speeds[name] + 0.2 * one.grad
                    one.data = one.data - 0.05 * speeds[name]
                    one.grad = None
        found.append({one.dtype for one in speeds.values()})
        return [one.text for one in hmp.report(show=False).findings if one.kind == "lower weights"]

    found: list[set[torch.dtype]] = []
    hmp.convert(report=detail)
    (text,) = train()
    assert "(12 calls)" in text
    assert "hmp.disable_casts()" in text
    hmp.convert(preset="recommended", report=detail)  # lowers in modules alone
    assert train() == []
    assert found == [{torch.bfloat16}, {torch.float32}]


def test_weights_that_get_other_data_are_no_step(converted: Converter) -> None:
    converted(bf16=["linear", "mul"])
    layer, other = nn.Linear(16, 16), nn.Linear(16, 16)
    hmp.reset_report()
    for _ in range(3):
        with torch.no_grad():
            x = layer(torch.ones(16, 16)) + torch.ones(16, 16)
        layer.weight.data = other.weight.data.clone()
        layer.weight.data = torch.full((16, 16), 0.5)
        del x
    assert [one for one in hmp.report(show=False).findings if one.kind == "lower weights"] == []


def test_a_loss_in_lower_precision_is_found_once() -> None:
    for detail in ("operations", "lines"):
        hmp.convert(report=detail)
        hmp.reset_report()
        model = nn.Linear(4, 4)
        model(torch.ones(2, 4)).sum().float().backward()
        assert not [one for one in hmp.report(show=False).findings if one.kind == "loss in lower precision"]
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()  # the loss
        (one,) = [one for one in hmp.report(show=False).findings if one.kind == "loss in lower precision"]
        assert f"test_noticed_values.py:{marked_line(__file__, 'the loss')}" in one.text


LOSSES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], set[str]]] = {
    "a mean": (lambda scores: (scores - 5.0).pow(2).mean(), {"sub", "pow", "mean"}),
    "a product": (lambda scores: (error := (scores - 5.0).flatten()) @ error, {"sub", "matmul"}),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_advice_on_a_loss_names_all_that_computes_it_after_the_products(name: str) -> None:
    call, operations = LOSSES[name]
    x = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(1, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, last = self.weights
            return call(F.linear(F.relu(F.linear(x, first)), last))

    torch.manual_seed(0)
    model = Model()
    with torch.no_grad():
        first, last = (one.bfloat16() for one in model.weights)
        exact = float(call(F.linear(F.relu(F.linear(x.bfloat16(), first)), last).double()))

    def wrong_by(**options: Any) -> float:
        hmp.convert(report="lines", **options)
        hmp.reset_report()
        loss = model(x)
        loss.backward()
        return abs(float(loss.detach()) / exact - 1)

    wrong = wrong_by()
    (rule,) = (one.rule for one in hmp.report(show=False).findings if one.kind == "loss in lower precision")
    assert {line.partition(" @ ")[0] for line in rule} == operations
    assert wrong_by(rules=dict(rule)) < min(wrong / 10, 1e-5)


def test_a_report_of_compiled_code_says_that_its_tracing_was_counted() -> None:
    hmp.convert()
    layer, said = nn.Linear(8, 8), "Compiled code is counted while it is traced, not when it runs"
    torch.compile(layer, backend="eager")(torch.ones(2, 8))
    assert hmp.report(show=False).words[0] == f"The product ran in bf16. {said}"
    hmp.reset_report()
    first = hmp.report(show=False).words[0]
    assert first.startswith("Nothing ran in lower precision: no call")
    assert first.endswith(f". {said}")
