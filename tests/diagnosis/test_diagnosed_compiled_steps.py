"""The diagnosis of a step that calls compiled functions: it compares compiled code with eager code."""

from __future__ import annotations

import inspect
import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import Diagnosis, hmp
from habana_mp.diagnosis.diagnosis import _merged
from helpers.broken_assumptions import broken
from helpers.compiling import needs_compiler

pytestmark = [
    pytest.mark.usefixtures("compiled_anew"),
    pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks"),
]

EMULATION = "torch._inductor.config.emulate_precision_casts = True"


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x)))

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x)


class Rounded(Layers):
    """Eager code rounds a large sum, and compiled code does not."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 300  # planted
        return F.silu(y - 300)


class Ties(Layers):
    """Compiled code compares quotients with the largest one, which is rounded, and finds none that is equal."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        shares = x / 3.3  # planted
        is_largest = shares == shares.amax(-1, keepdim=True)
        return 8 * shares * is_largest.to(shares.dtype)


class Broken(Rounded):
    """The graph breaks before the planted line."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        torch._dynamo.graph_break()
        y = y + 300  # planted
        return y - 300


class Healthy(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.norm, self.dropout = nn.LayerNorm(64), nn.Dropout(0.2)

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        y = x.view(4, 16, 64)
        y = y + self.dropout(self.attention(y, y, y, need_weights=False)[0])
        return F.gelu(self.norm(y)).softmax(-1).view(64, 64) * 8


def line_in(model: type[nn.Module]) -> int:
    lines, first = inspect.getsourcelines(model.middle)  # type: ignore[attr-defined]  # a method of this model
    return first + next(number for number, text in enumerate(lines) if "# planted" in text)


def step_of(called: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], torch.Tensor]:
    torch.manual_seed(1)
    x, y = torch.randn(64, 16), torch.randn(64, 8)
    return lambda: F.mse_loss(called(x).float(), y)


def made(model: type[nn.Module], backend: Any = "inductor") -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    torch.manual_seed(0)
    layers = model()
    return layers, step_of(torch.compile(layers, backend=backend))


def convert(rules: dict[str, str] | None = None) -> None:
    hmp.convert(preset="recommended", within="everywhere", results="as computed", rules=rules or {})


def kinds(found: Diagnosis) -> list[str]:
    return [one.kind for one in found.findings]


@needs_compiler
@pytest.mark.parametrize("model", [Rounded, Broken])
def test_a_line_that_only_eager_code_rounds_is_found(model: type[nn.Module], tmp_path: Path) -> None:
    layers, step = made(model)
    weights = [one.detach().clone() for one in layers.parameters()]
    convert()
    found = hmp.diagnose(step)
    assert kinds(found) == ["precision", "compiled"], found
    finding = found.findings[1]
    assert (finding.operation, finding.module, finding.line) == ("__add__", model.__name__, line_in(model))
    assert Path(finding.file) == Path(__file__)
    assert finding.rule == {f"add @ {model.__name__}": "fp32"}
    assert finding.effect > 0.1
    assert "compiled code keeps its result in float32, and eager code rounds it to bfloat16" in finding.text
    assert f"set `{EMULATION}` to round as eager code does" in finding.text
    assert found.rounding_mends
    assert "In compiled code, " in found.headline
    kept = {(one.operation, one.line): one.compiled for one in found.rows}
    assert kept[finding.operation, finding.line] == "fp32"
    assert not any(one.compiled for one in found.rows if one.operation == "linear")
    found.to_json(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["compiled_excess"] == found.compiled_excess
    found.to_html(tmp_path / "found.html")
    assert "bf16, fp32 in compiled code" in (tmp_path / "found.html").read_text()
    assert all(torch.equal(one, other) for one, other in zip(layers.parameters(), weights, strict=True))
    assert all(one.grad is None for one in layers.parameters())
    assert kinds(_merged([found, found])) == kinds(found)
    assert _merged([found, found]).compiled_excess == found.compiled_excess


@needs_compiler
def test_a_line_that_harms_only_compiled_code_is_found_and_its_rule_mends_it() -> None:
    _, step = made(Ties)
    convert()
    found = hmp.diagnose(step)
    assert kinds(found) == ["compiled"], found
    (finding,) = found.findings
    assert (finding.operation, finding.line) == ("__truediv__", line_in(Ties))
    assert "if compiled code rounds this line by 0 %" in finding.text
    assert not found.healthy
    assert found.headline.startswith("Eager code is healthy: it deviates")
    convert(finding.rule)
    mended = hmp.diagnose(step)
    assert mended.healthy, mended


@needs_compiler
def test_a_value_that_is_not_finite_in_eager_code_is_told_as_that() -> None:
    class Overflowing(Layers):
        def middle(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 1e6
            return y * 1e-6

    _, step = made(Overflowing)
    hmp.convert(preset="recommended", within="everywhere", results="as computed", dtype=torch.float16)
    found = hmp.diagnose(step)
    assert " In compiled code or in eager code, the loss is not finite." in found.headline
    text = next(one.text for one in found.findings if one.kind == "compiled")
    assert "; the loss is not finite in one of them, and with this line" in text
    assert re.search(r"; from float32, compiled code deviates by \S+ %, and eager code is not finite; ", text)
    assert "e+06" not in str(found)


@needs_compiler
def test_a_healthy_compiled_model_has_no_finding() -> None:
    _, step = made(Healthy)
    convert()
    found = hmp.diagnose(step)
    assert found.healthy, found
    assert found.compiled_excess
    assert found.headline.endswith("Compiled code deviates from eager code by no more than is allowed.")


@needs_compiler
@pytest.mark.parametrize("is_planted", [True, False])
def test_a_step_may_be_partly_compiled(is_planted: bool) -> None:
    torch.manual_seed(0)
    layers = Rounded()
    compiled = torch.compile(layers.middle if is_planted else layers.last)
    step = step_of(
        lambda x: (layers.last(compiled(layers.first(x))) if is_planted else compiled(layers.middle(layers.first(x))))
    )
    convert()
    found = hmp.diagnose(step)
    assert kinds(found) == (["precision", "compiled"] if is_planted else ["precision"]), found
    assert found.compiled_excess
    assert {one.line for one in found.findings} == {line_in(Rounded)}


def test_another_backend_may_compute_otherwise_too() -> None:
    def wide(module: torch.fx.GraphModule, _: Any) -> Any:
        for node in module.graph.nodes:
            if node.target is operator.add:
                node.target = lambda one, other: one.float() + other
        module.recompile()
        return module.forward

    _, step = made(Rounded, wide)
    convert()
    found = hmp.diagnose(step)
    assert kinds(found) == ["precision", "compiled"], found
    assert found.findings[1].line == line_in(Rounded)
    assert "compiled code computes it in another way" in found.findings[1].text
    assert EMULATION not in str(found)


def test_an_eager_step_compiles_nothing_and_other_compiled_code_stays() -> None:
    compilations = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        compilations.append(module)
        return module.forward

    convert()
    other = torch.compile(torch.sin, backend=backend)
    other(torch.ones(3))
    torch.manual_seed(0)
    found = hmp.diagnose(step_of(Rounded()))
    assert kinds(found) == ["precision"]
    assert found.compiled_excess == {}
    assert "ompiled code" not in str(found)
    other(torch.ones(3))
    assert len(compilations) == 1


def test_without_what_is_private_to_torch_nothing_is_compared() -> None:
    _, step = made(Rounded, "aot_eager")
    convert()
    with broken("torch.compiled-runs"):
        found = hmp.diagnose(step)
    assert kinds(found) == ["precision"]
    assert found.compiled_excess == {}


def test_a_loss_that_is_nowhere_finite_is_not_compared() -> None:
    layers, _ = made(Layers)
    step = step_of(torch.compile(lambda x: layers(x) * float("inf"), backend="aot_eager"))
    convert()
    found = hmp.diagnose(step)
    assert found.compiled_excess == {}
    assert "fails without this package" in found.headline
