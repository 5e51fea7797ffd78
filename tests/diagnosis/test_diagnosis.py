"""What a diagnosis leaves as it was, what it looks at, and what it tells."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import Diagnosis, HmpWarning, _core, hmp
from habana_mp.diagnosis.exact import may_be_random
from habana_mp.diagnosis.outcomes import Run, RunMode, Tolerances, deviations
from habana_mp.diagnosis.search import Search
from habana_mp.diagnosis.sites import Line, Site, sample


class Model(nn.Module):
    """A model with positions that must be exact, dropout, running statistics, and state of other kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.1, 1.0, 16))
        self.norm = nn.BatchNorm1d(32)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.1), nn.GELU(), nn.Linear(64, 8))
        self.average = torch.zeros(8)
        self.steps = 0

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        angles = t[:, None] * self.scale  # planted
        y = self.body(self.norm(torch.cat([angles.float().sin(), angles.float().cos()], -1)))
        with torch.no_grad(), hmp.disable_casts():
            self.average = 0.9 * self.average + 0.1 * y.detach().float().mean(0)
        self.steps += 1
        return y


LINE = Model.forward.__code__.co_firstlineno + 1
LOWER = {"preset": "recommended", "within": "everywhere", "rules": {"mul": "lower"}}


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    return 1000 * torch.rand(128), torch.randn(128, 8)


def _made() -> tuple[Model, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    model, (t, y) = Model(), _batch()
    return model, lambda: F.mse_loss(model(t).float(), y)


def _names_the_line(found: Diagnosis) -> bool:
    return bool(found.findings) and found.findings[0].line == LINE


# ---- what it leaves as it was ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*is made from a result that habana_mp lowered")
def test_everything_is_afterwards_as_before() -> None:
    model, step = _made()
    hmp.convert(**LOWER)
    step().backward()  # gradients that are there already
    gradients = {name: (one.grad, one.grad.clone()) for name, one in model.named_parameters() if one.grad is not None}
    state, average = copy.deepcopy(model.state_dict()), model.average
    values = model.average.clone()
    versions = [one._version for one in model.parameters()]
    np.random.seed(5)
    randoms = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    found = hmp.diagnose(step)
    assert _names_the_line(found)
    for name, one in model.named_parameters():
        assert one.grad is gradients[name][0]
        assert torch.equal(one.grad, gradients[name][1])
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert model.average is average
    assert torch.equal(model.average, values)
    assert model.steps == 1
    assert [one._version for one in model.parameters()] == versions
    assert torch.equal(torch.get_rng_state(), randoms[0])
    assert random.getstate() == randoms[1]
    assert (np.random.get_state()[1] == randoms[2]).all()


def test_after_an_error_in_the_step_everything_is_as_before() -> None:
    model, step = _made()
    calls = []

    def failing() -> torch.Tensor:
        loss = step()
        calls.append(loss)
        if len(calls) == 2:
            raise KeyError("no such thing")
        return loss

    hmp.convert(**LOWER)
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError, match="no such thing"):
        hmp.diagnose(failing)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(one.grad is None for one in model.parameters())
    assert F.linear(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.bfloat16


def test_an_optimizer_ends_the_step_and_changes_nothing() -> None:
    model, forward = _made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = forward()
        loss.backward()
        with hmp.disable_casts():
            optimizer.step()
        raise AssertionError("nothing follows")

    hmp.convert(**LOWER)
    weights = [one.detach().clone() for one in model.parameters()]
    assert _names_the_line(hmp.diagnose(step))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))


def test_a_gradient_scaler_is_afterwards_as_before() -> None:
    def update(*, diagnosed: bool) -> torch.Tensor:
        model, forward = _made()
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            return loss

        if diagnosed:
            found = hmp.diagnose(step)
            assert found.rows
            assert found.loss == pytest.approx(found.loss_in_float32, rel=0.2)  # not the scaled one
        step()
        return model.body[0].weight.detach().clone()

    hmp.convert(**LOWER, dtype="fp16")
    assert torch.equal(update(diagnosed=True), update(diagnosed=False))


def test_weights_that_the_step_itself_changes_are_afterwards_as_before() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(16, 8)
    table, items = nn.Embedding(10, 8, max_norm=0.5), [1, 2]
    model.seen = items

    def step() -> torch.Tensor:
        loss = model(x + table(torch.arange(16) % 10)).float().square().mean()
        loss.backward()
        with torch.no_grad():
            for one in model.parameters():
                one.sub_(0.1 * one.grad)
        model.seen.append(3)
        return loss

    hmp.convert(preset="recommended", within="everywhere")
    kept = [one.detach().clone() for one in (*model.parameters(), *table.parameters())]
    hmp.diagnose(step)
    for one, other in zip((*model.parameters(), *table.parameters()), kept, strict=True):
        assert torch.equal(one, other)
    assert model.seen is items
    assert items == [1, 2]


def test_weights_outside_of_called_modules_are_compared_and_left_without_gradients() -> None:
    torch.manual_seed(0)

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.body = nn.Parameter(torch.rand(16)), nn.Linear(16, 8)

        def training_step(self, t: torch.Tensor) -> torch.Tensor:
            angles = (t[:, None] * 0.37) + self.start
            return self.body(angles.sin()).float().square().mean()

    model, t, scale = Trained(), 1000 * torch.rand(64), torch.ones(16, requires_grad=True)
    hmp.convert(**LOWER)
    found = hmp.diagnose(lambda: model.training_step(t) + scale.square().mean())
    assert found.findings[0].operation == "__mul__"
    assert {"the gradient of Trained.start", "the gradient of Trained.body.weight"} <= found.excess.keys()
    assert any(what.startswith("the gradient of a tensor of shape (16,)") for what in found.excess)
    assert all(one.grad is None for one in (*model.parameters(), scale))


class Bank(nn.Module):
    """A memory of features that is written from outside, and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(4, 8))
        self.mean, self.position, self.seen = torch.zeros(8), 0, [0]
        self.moments = (torch.zeros(1), [torch.zeros(1)])


@pytest.mark.filterwarnings("ignore:.*is made from a result that habana_mp lowered")
def test_what_a_step_changes_in_modules_that_it_does_not_call_is_as_before() -> None:
    model, step = _made()
    teacher, second, bank = copy.deepcopy(model), copy.deepcopy(model), Bank()
    average = [torch.zeros(2)]
    (second.body[0].weight * 2).sum().backward()

    def changes() -> torch.Tensor:
        bank.position += 1
        bank.seen.append(bank.position)
        second.zero_grad(set_to_none=False)
        loss = step()
        with torch.no_grad():
            for own, other in zip(teacher.parameters(), model.parameters(), strict=True):
                own.mul_(0.5).add_(other, alpha=0.5)
            for own, other in zip(second.parameters(), model.parameters(), strict=True):
                own.data = own.data * 0.5 + other.data
            bank.queue[bank.position % 4] = loss
            bank.queue.copy_(bank.queue.flip(0))
            torch._foreach_add_([bank.mean], 1.0)
            bank.mean = bank.mean + 1
            bank.moments[0].add_(1)
            bank.moments[1][0].add_(1)
            average[0].add_(1)
        return loss + bank.queue.sum() + second.body[0].weight.sum()

    def state() -> list[Any]:
        tensors = [*teacher.parameters(), *second.parameters(), bank.queue, bank.mean, *average]
        tensors += [bank.moments[0], *bank.moments[1]]
        return [*(one.detach().clone() for one in tensors), *map(id, tensors), bank.position, list(bank.seen)]

    before = state()
    gradient = second.body[0].weight.grad
    assert gradient is not None
    hmp.convert(**LOWER)
    assert _names_the_line(hmp.diagnose(changes))
    assert all(
        torch.equal(now, then) if isinstance(now, torch.Tensor) else now == then
        for now, then in zip(state(), before, strict=True)
    )
    assert second.body[0].weight.grad is gradient
    assert (gradient == 2).all()


def test_another_thread_trains_meanwhile_as_without_a_diagnosis() -> None:
    def train(model: nn.Module) -> set[Any]:
        seen: set[Any] = set()
        optimizer, x = torch.optim.Adam(model.parameters()), torch.linspace(-1, 1, 64).reshape(8, 8)
        optimizer.zero_grad()
        for number in range(300):
            result = model(x)
            seen.add(result.dtype)
            result.float().square().mean().backward()
            if number % 2:  # gradients are summed over two batches
                optimizer.step()
                optimizer.zero_grad()
        return seen

    torch.manual_seed(0)
    other = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    alone = copy.deepcopy(other)
    _, step = _made()
    hmp.convert(**LOWER)
    alone_saw = train(alone)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, other)
        runs = 0
        while not training.done():
            assert _names_the_line(hmp.diagnose(step))
            runs += 1
    assert runs >= 1
    assert training.result() == alone_saw
    for one, expected in zip(other.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, expected)


def test_threads_that_a_step_starts_belong_to_it() -> None:
    _, step = _made()

    def in_a_thread() -> torch.Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(step).result()

    hmp.convert(**LOWER)
    assert _names_the_line(hmp.diagnose(in_a_thread))


def test_with_several_steps_the_model_trains_as_without_a_diagnosis() -> None:
    def trained(*, diagnosed: bool) -> list[torch.Tensor]:
        model, forward = _made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward()
            loss.backward()
            optimizer.step()
            return loss

        torch.manual_seed(1)
        if diagnosed:
            found = hmp.diagnose(step, steps=3, every=2)
            assert _names_the_line(found)
            assert found.findings[0].step in (0, 2)
        else:
            for _ in range(3):
                step()
        return [one.detach().clone() for one in model.parameters()]

    hmp.convert(**LOWER)
    for one, other in zip(trained(diagnosed=True), trained(diagnosed=False), strict=True):
        assert torch.equal(one, other)


# ---- what it looks at ------------------------------------------------------------------------------------------------


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return t[:, None] * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        return None, None


@pytest.mark.parametrize("how", ["checkpoint", "compiled", "functional", "no_grad"])
def test_the_line_is_found_however_it_is_called(how: str) -> None:
    model, _ = _made()
    t, y = _batch()
    called: Any = {
        "checkpoint": lambda: checkpoint(model, t, use_reentrant=False),
        "compiled": lambda: compiled(t),
        "functional": lambda: torch.func.functional_call(model, dict(model.named_parameters()), (t,)),
        "no_grad": lambda: model(t),
    }[how]
    compiled = torch.compile(model, backend="eager") if how == "compiled" else None
    hmp.convert(**LOWER)
    with torch.set_grad_enabled(how != "no_grad"):
        found = hmp.diagnose(lambda: F.mse_loss(called().float(), y))
    if how == "no_grad":  # a loss alone changes little: it is an average over many
        found = hmp.diagnose(lambda: (F.mse_loss(called().float(), y), called()))
    assert _names_the_line(found), found


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gradients_have_the_names_of_their_weights(is_compiled: bool) -> None:
    model, _ = _made()
    called, (t, y) = torch.compile(model, backend="eager") if is_compiled else model, _batch()
    hmp.convert(**LOWER)
    found = hmp.diagnose(lambda: F.mse_loss(called(t).float(), y))
    # Another model of an earlier test may have this name; then it has a number.
    assert any(re.fullmatch(r"the gradient of Model(#\d+)?\.body\.0\.weight", one) for one in found.excess)


def test_a_line_in_an_autograd_function_is_found() -> None:
    torch.manual_seed(0)
    body, scale, (t, y) = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 8)), torch.rand(16), _batch()
    hmp.convert(**LOWER)
    found = hmp.diagnose(lambda: F.mse_loss(body(Rounded.apply(t, scale).float().sin()).float(), y))
    assert found.findings[0].operation == "__mul__"
    assert found.findings[0].line == Rounded.forward.__code__.co_firstlineno + 2


def test_an_operation_with_its_own_keywords_is_looked_at() -> None:
    torch.manual_seed(0)
    body, x, y = nn.Linear(8, 1), 1e-8 * torch.randn(64, 8), torch.ones(64, 1)

    def step() -> torch.Tensor:
        return F.mse_loss(body(x / (torch.norm(x, dim=-1, keepdim=True).float() + 1e-12)).float(), y)

    hmp.convert(preset="recommended", within="everywhere", dtype="fp16", rules={"norm": "lower"})
    (finding,) = hmp.diagnose(step).findings
    assert finding.operation == "linalg_vector_norm"
    assert finding.kind == "underflow"


class Remembering(nn.Module):
    """A model that makes values in its first forward, and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(32, 4)
        self.tables: dict[str, Any] = {"inner": {}}
        self.averages = [torch.zeros(4)]
        self.seen: Counter[str] = Counter()
        self.pair = (0, 1)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "angles"):
            self.angles = t[:, None] * torch.linspace(0.1, 1.0, 16)  # planted
        inner = self.tables["inner"]
        if "waves" not in inner:
            inner["waves"] = torch.cat([self.angles.float().sin(), self.angles.float().cos()], -1)
        self.seen["calls"] += 1
        self.pair = (self.pair[1], sum(self.pair))
        y = self.head(inner["waves"])
        with torch.no_grad():
            self.averages[0] += y.float().mean(0)
        return y


def test_what_the_first_forward_makes_and_keeps_is_made_in_each_run_and_gone_afterwards() -> None:
    torch.manual_seed(0)
    model, t, y = Remembering(), 1000 * torch.rand(64), torch.randn(64, 4)
    hmp.convert(**LOWER)
    found = hmp.diagnose(lambda: F.mse_loss(model(t).float(), y))
    assert found.findings[0].line == Remembering.forward.__code__.co_firstlineno + 2
    assert not hasattr(model, "angles")
    assert model.tables == {"inner": {}}
    assert model.averages[0].tolist() == [0, 0, 0, 0]
    assert (model.seen, model.pair) == (Counter(), (0, 1))


def test_a_returned_value_of_another_shape_is_not_healthy() -> None:
    t = torch.arange(1000.0)
    hmp.convert(**LOWER)
    (finding,) = hmp.diagnose(lambda: torch.unique(t * 1.0)).findings
    assert finding.operation == "__mul__"


def test_weights_in_float32_add_nothing_to_the_noise() -> None:
    torch.manual_seed(0)
    layers, x, y = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))), torch.rand(64, 64), torch.randn(64, 64)
    for one in layers:
        nn.init.uniform_(one.weight, -0.3, 0.3)

    def step() -> torch.Tensor:
        z = x
        for one in layers:
            z = torch.sin(30.0 * one(z))
        return F.mse_loss(z.float(), y)

    hmp.convert(**{**LOWER, "rules": {"mul": "lower", "linear": "fp32"}})
    assert [one.operation for one in hmp.diagnose(step).findings] == ["__rmul__"]


def test_a_region_is_diagnosed_without_a_conversion() -> None:
    model, (t, y) = _made()[0], _batch()

    def step() -> torch.Tensor:
        with hmp.autocast("cpu", preset="recommended", rules=LOWER["rules"]):
            return F.mse_loss(model(t).float(), y)

    assert _names_the_line(hmp.diagnose(step))


def test_lines_that_mend_the_step_only_together_are_all_found_and_no_other() -> None:
    torch.manual_seed(0)
    body, raw, y = nn.Sequential(nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 8)), torch.rand(128), torch.randn(128, 8)
    scale = torch.linspace(0.1, 1.0, 16)

    def step() -> torch.Tensor:
        times = raw * 1000.0
        angles = times[:, None] * scale
        return F.mse_loss(body(angles.float().sin()).float(), y)

    hmp.convert(**LOWER)
    found = hmp.diagnose(step)
    first = step.__code__.co_firstlineno + 1
    assert {one.line for one in found.findings} == {first, first + 1}, found
    assert all("with the lines of the other findings in float32" in one.text for one in found.findings)
    rules = {key: value for one in found.findings for key, value in one.rule.items()}
    hmp.convert(preset="recommended", within="everywhere", rules={"mul": "lower", **rules})
    assert hmp.diagnose(step).healthy


@pytest.mark.parametrize("detail", ["operations", "lines"])
@pytest.mark.usefixtures("counted")
def test_the_report_leaves_the_runs_out(detail: str) -> None:
    _, step = _made()
    hmp.convert(**LOWER, report=detail)
    step()

    def counts() -> dict[str, Any]:
        report = hmp.report(show=False).to_dict()
        if not _core.kernels_multiplies_bfloat16():  # then small weights are cached, and those that a run restores anew
            report["weights"].update(weights=0, bytes=0)
        return {**report, "seconds": 0}

    before = counts()
    assert before["rows"]
    assert hmp.diagnose(step).findings
    assert counts() == before
    hmp.reset_report()
    assert not hmp.report(show=False).rows
    step()
    assert hmp.report(show=False).total("calls") == before["totals"]["calls"]


def test_the_guard_does_not_check_the_runs() -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)

    def step() -> torch.Tensor:
        return layer(x).float().mean() + torch.log(torch.tensor(-1.0))

    hmp.convert(**LOWER, guard=1.0)
    assert not hmp.diagnose(step).healthy
    with pytest.warns(HmpWarning, match="`log` made a NaN"):
        step()


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_errors_of_a_call_are_apart_from_those_it_inherits() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    weight = nn.Parameter(torch.randn(64, 64) / 8)

    def step() -> torch.Tensor:
        y = F.linear(x, weight)
        for _ in range(3):
            y = F.linear(y, weight)
        return y.float().square().mean()

    hmp.convert(preset="recommended", within="everywhere")
    rows = hmp.diagnose(step).rows
    first = next(row for row in rows if row.calls == 1)
    others = next(row for row in rows if row.calls == 3)
    assert first.inherited_error == 0
    assert 5e-4 < first.local_error < 5e-3
    assert others.inherited_error > 1.2 * others.local_error


def test_float16_tells_the_range_that_is_left() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.full((4, 8), 2.0**10)
    hmp.convert(preset="recommended", within="everywhere", dtype="fp16")
    rows = hmp.diagnose(lambda: layer(x).float().mean()).rows
    (row,) = [one for one in rows if one.operation == "linear"]
    assert row.precision == "fp16"
    assert row.range_left is not None
    assert row.range_left[1] == pytest.approx(6, abs=0.1)  # 65504 is nearly 2^16


@pytest.mark.parametrize("count", [0, 1, 129, 255, 383, 100_000])
def test_samples_are_spread_over_the_whole_tensor(count: int) -> None:
    chosen = sample(torch.arange(count))
    assert min(count, 128) / 3 <= chosen.numel() <= 128
    assert not count or count - int(chosen[-1]) <= -(-count // chosen.numel())


@pytest.mark.parametrize("largest", [1e25, torch.finfo(torch.bfloat16).min])
def test_large_values_and_masks_do_not_hide_an_error(largest: float) -> None:
    site, exact = Site(Line("add", "train.py", 1), ""), torch.tensor([1.003, largest])
    site.compare(exact.bfloat16(), exact, [exact], 1)
    assert 1e-3 < site.local_error < 4e-3


def test_operations_with_random_numbers_are_known_by_their_names() -> None:
    drawn = set()
    for name in torch._C._dispatch_get_all_op_names():
        operator, _, overload = name.removeprefix("aten::").partition(".")
        found = getattr(getattr(torch.ops.aten, operator, None), overload or "default", None)
        if name.startswith("aten::") and torch.Tag.nondeterministic_seeded in found.tags:
            drawn.add(operator)
    assert {one for one in drawn if not may_be_random(one)} <= {
        "_fused_sdp_choice",
        "_nested_tensor_softmax_with_shape",
    }
    assert not any(map(may_be_random, ("lgamma", "digamma", "polygamma", "igamma", "poisson_nll_loss", "normalize")))


# ---- what it tells ---------------------------------------------------------------------------------------------------


def test_text_json_and_page_have_the_place_the_range_the_harm_and_the_rule(tmp_path: Path) -> None:
    _, step = _made()
    hmp.convert(**LOWER)
    found = hmp.diagnose(step)
    text = str(found)
    assert text.startswith("One operation is harmful in lower precision. The loss is ")
    place = rf"tests/diagnosis/{Path(__file__).name}:{LINE} in Model(#\d+)?: of inputs from "
    assert re.search(rf"^1\. `__mul__` at {place}", text, re.MULTILINE)
    assert "with this line in float32 by" in text
    assert 'write `mul @ Model` into the float32 list, or give `rules={"mul @ Model": "fp32"}`' in text
    assert found.findings[0].rule == {"mul @ Model": "fp32"}
    assert found.findings[0].kind == "decision"
    found.to_json(tmp_path / "found.json")
    data = json.loads((tmp_path / "found.json").read_text())
    assert (data["format"], data["version"], data["healthy"]) == ("habana-mp diagnosis", 1, False)
    assert (data["findings"][0]["line"], data["findings"][0]["rule"]) == (LINE, {"mul @ Model": "fp32"})
    assert len(data["rows"]) == len(found.rows)
    assert {"operation", "local_error", "inherited_error", "effect", "input_range"} <= data["rows"][0].keys()
    found.to_html(tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert page.count("<tr><td>") == len(found.rows)
    assert not re.search(r"(src|href)=\"(?!data:)|<script", page)


@pytest.mark.parametrize(
    ("step", "options", "error", "words"),
    [
        (3, {}, TypeError, "`step` must be a function that runs a step and returns its loss, as `hmp.diagnose("),
        (lambda: None, {"steps": 0}, ValueError, "`steps` must be a whole number of at least 1; got 0"),
        (lambda: None, {"every": 1.5}, ValueError, "`every` must be a whole number of at least 1; got 1.5"),
    ],
)
def test_wrong_arguments_are_named(step: Any, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        hmp.diagnose(step, **options)


def test_a_loss_that_is_not_finite_is_told_as_that() -> None:
    layer, x = nn.Linear(8, 8), torch.ones(4, 8)
    hmp.convert(**LOWER)
    found = hmp.diagnose(lambda: layer(x).float().mean() + torch.log(torch.tensor(-1.0)))
    assert "No single operation was found to be harmful, but the loss is not finite. The loss is nan" in found.headline
    assert found.excess["the loss"] == math.inf
    assert found.to_dict()["excess"]["the loss"] is None
    assert math.isfinite(deviations(Run(loss=1.0), Run(loss=1e-9))["the loss"])


def test_a_finding_states_only_runs_that_were_made() -> None:
    sites = [Site(Line("add", "train.py", number), "", error=1.0, effect=60.0 - number) for number in range(60)]
    harmful, made = {one.where for one in sites[3::7]}, []

    class Runs:
        def run(self, mode: RunMode) -> Run:
            made.append(mode.lines)
            return Run(loss=1.0 + 0.1 * len(harmful - mode.lines))

    search = Search(Runs(), Run(loss=1.0), Tolerances(), {"the loss": 0.1 * len(harmful)})
    found = search.findings(sites, 0, lambda _: None)
    assert len(found) > len(harmful)  # too many lines for so few runs
    for one in found:
        others = {site.where for site in sites if site.where.line in {other.line for other in found} - {one.line}}
        words = "; the loss is wrong by 90 %, and with this line and those of the other findings in float32 by 0 %"
        assert ("with the lines of the other findings in float32" if others in made else words) in one.text


@pytest.mark.parametrize("region", [False, True])
def test_without_convert_a_step_may_run_its_backward_itself(region: bool) -> None:
    model, x = nn.Linear(8, 8), torch.randn(4, 8)

    def step() -> torch.Tensor:
        with hmp.autocast("cpu", preset="recommended") if region else nullcontext():
            loss = model(x).float().square().mean()
        loss.backward()
        return loss

    assert hmp.diagnose(step).healthy
    assert not hmp.is_converted()


def test_a_step_that_can_tell_nothing_is_no_healthy_one() -> None:
    hmp.convert(preset="recommended", within="everywhere")
    found = hmp.diagnose(lambda: float(F.linear(torch.ones(2, 2), torch.ones(2, 2)).sum()))
    assert not found.healthy
    assert str(found).startswith("Nothing could be compared: ")


def test_a_step_that_takes_another_batch_each_time_is_refused() -> None:
    model = nn.Linear(8, 8)
    batches = iter(torch.randn(10, 4, 8))
    hmp.convert(preset="recommended", within="everywhere")
    why = "gives other values when it runs again in float32, so nothing can be told from its runs: take the batch"
    with pytest.raises(ValueError, match=f"{why} outside of it"):
        hmp.diagnose(lambda: model(next(batches)).float().mean())
