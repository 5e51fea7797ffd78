"""``convert(guard=)``: the operation that makes a value that is not finite is named."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import HmpWarning, hmp
from helpers.lists import Converter
from helpers.processes import RUN, python
from helpers.watching import marked_line

#: So many steps, of which 1 % of the calls are checked: enough in every case here.
STEPS = 250
SHARES = pytest.mark.parametrize("guard", [1.0, True])


class Layer(nn.Module):
    """Returns what a function makes of a product."""

    def __init__(self, last: Callable[[torch.Tensor], torch.Tensor] = torch.tanh) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.proj(x))  # receives


class Net(nn.Module):
    """Three layers, of which the second one ends in a given function."""

    def __init__(self, last: Callable[[torch.Tensor], torch.Tensor], around: Any = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer(last), Layer()])
        self.around = around or (lambda layer, x: layer(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.around(layer, x)
        return x


def root_of_negative(x: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(x - 100)  # forward


def root_of_zero(x: torch.Tensor) -> torch.Tensor:
    return x + torch.sqrt(x * 0)  # backward


class RootOfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(gradients[0].abs() - 100)  # in a backward


def inputs() -> torch.Tensor:
    return torch.linspace(-1, 1, 32).reshape(4, 8)


def train(model: nn.Module, x: torch.Tensor | None = None, steps: int = STEPS) -> None:
    """Trains without changing a weight, so that each step is like the first one."""
    x = inputs() if x is None else x
    for _ in range(steps):
        model(x).float().square().mean().backward()


def named(run: Callable[[], object], **options: Any) -> str:
    """Runs with a guard. Returns its one warning."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HmpWarning)
        hmp.convert(**options)
        run()
        hmp.restore()
    texts = [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]
    assert len(texts) == 1, texts
    return texts[0]


def silent(run: Callable[[], object], **options: Any) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", HmpWarning)
        hmp.convert(**options)
        run()
        hmp.restore()


def assert_names(text: str, operation: str, module: str | None, mark: str) -> None:
    assert f"`{operation}`" in text.partition(" made ")[0], text
    assert re.search(rf"test_guard\.py:{marked_line(__file__, mark)}\b", text), text
    assert module is None or f"in {module}, at" in text, text


# ---- planted faults -------------------------------------------------------------------------------------------------


@SHARES
def test_a_forward_is_named(guard: Any) -> None:
    text = named(lambda: train(Net(root_of_negative)), guard=guard)
    assert_names(text, "sqrt", "Net.layers.1", "forward")
    assert "made a NaN in bfloat16 of finite inputs" in text


# Of a share of the calls the guard reads gradients before a step of an optimizer.
@pytest.mark.parametrize(("is_stepped", "guard"), [(False, 1.0), (True, 1.0), (True, True)])
def test_the_forward_of_a_backward_is_named(guard: Any, is_stepped: bool) -> None:
    model = Net(root_of_zero)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(STEPS):
            train(model, steps=1)
            if is_stepped:
                optimizer.step()
                for weight in model.parameters():
                    weight.data.nan_to_num_(posinf=0, neginf=0)

    text = named(run, guard=guard)
    assert_names(text, "sqrt", "Net.layers.1", "backward")
    assert "the backward of `sqrt` made" in text


@pytest.mark.parametrize(("use_reentrant", "guard"), [(False, 1.0), (True, True)])
def test_a_checkpoint_is_named(guard: Any, use_reentrant: bool) -> None:
    model = Net(root_of_negative, lambda layer, x: checkpoint(layer, x, use_reentrant=use_reentrant))
    assert_names(named(lambda: train(model, inputs().requires_grad_()), guard=guard), "sqrt", "Net.layers.1", "forward")


@pytest.mark.usefixtures("compiled_anew")
@SHARES
def test_compiled_code_is_named(guard: Any) -> None:
    model = Net(root_of_negative)
    compiled = torch.compile(model, backend="aot_eager")
    text = named(lambda: train(compiled), guard=guard)
    assert_names(text, "sqrt", None, "forward")
    assert "compiled code, which was run as it is written" in text


@SHARES
def test_an_overflow_that_a_scaler_handles_is_not_named(guard: Any) -> None:
    model = Net(torch.tanh)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=5)

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(inputs()).float().square().mean()
            scaler.scale(loss.half()).backward()
            scaler.step(optimizer)
            scaler.update()

    silent(run, guard=guard, dtype="fp16")
    assert scaler.get_scale() < 2.0**30


def test_a_kept_module_is_named() -> None:
    model = Net(root_of_negative)
    hmp.keep(model.layers[1])
    text = named(lambda: train(model), guard=1.0)
    assert_names(text, "sqrt", "Net.layers.1", "forward")
    assert "in float32" in text


def test_the_backward_of_a_custom_function_is_named() -> None:
    model = Net(lambda x: RootOfGradient.apply(x))
    text = named(lambda: train(model), guard=1.0)
    assert_names(text, "sqrt", None, "in a backward")
    assert "in the backward" in text


def test_a_view_that_torch_asks_no_gradient_of_is_written_to() -> None:
    hmp.convert(guard=1.0)
    weight = nn.Embedding(10, 4, padding_idx=0).weight
    with torch.no_grad():
        for row in weight.unbind(0)[1:3]:
            row.fill_(2.0)
    assert weight.sum(1)[:3].tolist() == [0.0, 8.0, 8.0]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_input_that_is_not_finite_is_no_fault_of_what_reads_it(dtype: torch.dtype) -> None:
    hmp.convert(guard=1.0)
    spectrum = torch.full((4, 9), complex(1, math.nan), dtype=dtype)[:, ::2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.fft.irfft(spectrum)


def test_an_overflow_of_float16_is_named_with_the_value_that_is_too_large(converted: Converter) -> None:
    def run() -> None:
        x = torch.full((4, 8), 3e5)
        torch.mm(x, torch.eye(8))  # overflows

    converted(bf16=["mm"], dtype="fp16", guard=1.0)
    with pytest.warns(HmpWarning, match="An input has the value 3e\\+05") as caught:
        run()
    assert marked_line(__file__, "overflows") == caught[0].lineno


# ---- where there is no fault ----------------------------------------------------------------------------------------


def infinities_on_purpose() -> None:
    scores = torch.randn(2, 4, 4)
    hidden = torch.ones(4, 4).triu(1).bool()
    torch.softmax(scores.masked_fill(hidden, -math.inf), -1)
    mask = torch.full((4, 4), -math.inf).triu(1)
    torch.softmax(scores + mask, -1)
    torch.softmax(scores + torch.log(hidden.logical_not().float()), -1)
    torch.softmax(torch.where(hidden, -math.inf, scores), -1)
    lowest = torch.finfo(torch.float32).min
    additive = hidden.float() * lowest
    torch.softmax(torch.matmul(scores, scores.mT) + additive + additive, -1)
    torch.softmax(scores.half() + additive.half(), -1)
    torch.nn.functional.scaled_dot_product_attention(scores, scores, scores, attn_mask=mask)
    torch.zeros(3).fill_(math.nan)
    torch.ones(3).div(torch.zeros(3)).clamp(max=10)
    torch.empty(1000).fill_(0.5)
    torch.tensor([1.0, math.nan]).nan_to_num().sum()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_infinities_on_purpose_are_not_named(dtype: str) -> None:
    silent(infinities_on_purpose, guard=1.0, dtype=dtype)
    silent(lambda: [infinities_on_purpose() for _ in range(20)], guard=True, dtype=dtype)


OVERFLOWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "`__mul__`": lambda x: (x + 10) * 30000.0,
    "`mul_`": lambda x: (-x.abs() - 1).mul_(40000.0).mul_(30.0),
}


@pytest.mark.parametrize("guard", [1.0, 0.2])
@pytest.mark.parametrize("operation", OVERFLOWS)
def test_the_overflow_is_named_and_not_the_layer_that_makes_a_nan_of_the_infinity(operation: str, guard: Any) -> None:
    model = Net(OVERFLOWS[operation])
    text = named(lambda: train(model, steps=30), preset="recommended", dtype="fp16", guard=guard)
    assert text.startswith(f"{operation} made an infinity in float16 of finite inputs, in Net"), text
    assert ".layers.1, at " in text


@SHARES
def test_a_nan_of_infinities_that_the_code_writes_is_named(guard: Any) -> None:
    model = Net(lambda x: x.masked_fill(x < 100, -math.inf).softmax(-1))
    text = named(lambda: train(model, steps=5 if guard == 1.0 else STEPS), preset="recommended", guard=guard)
    assert text.startswith("`softmax` made a NaN in bfloat16 of inputs without a NaN, in Net"), text


def test_a_nan_of_an_infinity_that_a_cast_made_is_told_with_its_place() -> None:
    model = Net(lambda x: (x + torch.full((8,), -3e38).to(x.dtype)).softmax(-1))
    text = named(lambda: train(model, steps=5), preset="recommended", dtype="fp16", guard=1.0)
    assert "No operation that the guard sees made them of finite values. `softmax` made a NaN of an infinity" in text
    assert "or a cast such as `.to(torch.float16)`, may have made that" in text


SPOILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrt": lambda x: torch.sqrt(1 - 2 * (x @ x.t())),
    "acos": lambda x: torch.acos(100 * (x @ x.t()).float()),
    "log": lambda x: (x @ x.t()).neg_().view(-1)[None].log(),
    "pow": lambda x: (-(x @ x.t())) ** 0.5,
    "__truediv__": lambda x: (x @ x.t() * 0) / (x * 0).sum(),
}


@pytest.mark.parametrize("operation", SPOILED)
def test_the_lowered_operation_that_the_values_come_from_is_named_too(operation: str) -> None:
    model = Net(lambda x: SPOILED[operation](x.reshape(4, 8)).sum() + x)
    text = named(lambda: train(model, steps=30), preset="recommended", guard=0.2)
    assert f"`{operation}` made a NaN in" in text
    assert re.search(r"\. These values come from `__matmul__` in bfloat16, in Net(#\d+)?\.layers\.1, at ", text), text


def test_of_values_that_were_never_lowered_no_operation_is_named() -> None:
    model = Net(lambda x: torch.sqrt(inputs()) + x)
    assert "come from" not in named(lambda: train(model, steps=5), preset="recommended", guard=1.0)


@SHARES
@pytest.mark.parametrize(("values", "what"), [([math.inf, -math.inf], "an infinity"), ([math.nan, 0], "a NaN")])
def test_data_that_are_not_finite_are_named_with_what_receives_them(values: Any, what: str, guard: Any) -> None:
    data = inputs()
    data[0, 2:4] = torch.tensor(values)
    data[1] = values[0]
    text = named(lambda: train(Net(torch.tanh), data), preset="recommended", guard=guard)
    assert f"`linear` was the first to receive {what}" in text
    assert f"test_guard.py:{marked_line(__file__, 'receives')}" in text
    assert "the input was not finite from the start" in text


def test_a_step_after_the_fault_is_told_that_it_has_passed() -> None:
    model = Net(torch.tanh)
    with torch.no_grad():
        model.layers[1].proj.weight[0, 0] = math.nan
    text = named(lambda: train(model), guard=True)
    assert "A weight of shape (8, 8) has a NaN already" in text
    assert "ran before all calls were checked" in text
    assert "guard=1.0" in text


# ---- the argument ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", [0.0, 1.5, -0.1, math.nan, 1, 0, None, "warn", "True"])
def test_another_value_is_refused(guard: Any) -> None:
    with pytest.raises(ValueError, match=r"`guard` must be True .*a float above 0.*; got "):
        hmp.convert(guard=guard)
    assert not hmp.is_converted()


def test_it_raises_where_it_is_asked_to() -> None:
    hmp.convert(guard="raise")
    with pytest.raises(FloatingPointError, match="`sqrt` made a NaN"):
        train(Net(root_of_negative))


def test_the_report_has_the_largest_values_of_float16(converted: Converter) -> None:
    converted(bf16=["mm"], dtype="fp16", guard=1.0)
    torch.mm(torch.full((2, 2), 100.0), torch.full((2, 2), 100.0))
    report = hmp.report(show=False)
    assert report.ranges["mm"] == pytest.approx(20000 / 65504, rel=1e-3)
    assert "31% in `mm`" in str(report)
    assert hmp.Report.from_dict(report.to_dict()).ranges == report.ranges


def test_a_share_of_the_calls_is_checked(converted: Converter) -> None:
    converted(fp32=["exp"], guard=0.2)
    x = torch.ones(3)
    x[0] = 1000  # exp is infinite
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(100):
            torch.exp(x)
    assert len(caught) == 1


def test_a_search_in_vain_ends_the_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("habana_mp.reporting.guard._MOST_CALLS", 20)
    model = Net(torch.tanh)
    bad = torch.full((4, 8), math.nan)

    def run() -> None:
        with torch.no_grad():
            for _ in range(STEPS):
                model.layers[0](bad)
            for _ in range(STEPS):
                model(inputs())
        train(Net(root_of_negative))

    text = named(run, guard=True)
    assert "not finite from the start" in text or "ran before all calls were checked" in text


# ---- habana-mp run --------------------------------------------------------------------------------------------------


def test_run_takes_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nfor _ in range(3000):\n    torch.softmax(torch.ones(3) * float('inf') * 0, -1)\n")
    for option, status in (("--guard=1.0", 0), ("--guard 1.0", 0), ("--guard raise", 1), ("--guard", 0)):
        done = python(*RUN, *option.split(), str(script))
        assert done.returncode == status, done.stderr
        assert "made a NaN" in done.stderr or "were seen in" in done.stderr
    for option in ("--guard=2", "--guard 2"):
        done = python(*RUN, *option.split(), str(tmp_path / "script.py"))
        assert done.returncode == 2
        assert (
            'argument --guard: it must be "raise" or a share of the calls, above 0 and at most 1.0; got 2'
            in done.stderr
        )
