"""Within modules, arithmetic on float32 alone stays in float32, and what is stored over a float32 tensor of a module
stays float32 everywhere (rule 11)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import HmpWarning, hmp, ops
from helpers.lists import Converter

BF16, FP32 = torch.bfloat16, torch.float32

#: Where averages are as in plain torch: lists that lower no arithmetic, and others within modules.
EXACT: dict[str, Callable[[], None]] = {
    "within": lambda: hmp.convert(within="modules"),
    "O2": lambda: hmp.convert(opt_level="O2"),
    **{name: (lambda name=name: hmp.convert(preset=name)) for name in ("recommended", "torch-cpu", "torch-cuda")},
}


class Calls(nn.Module):
    """Calls a function with what it is called with."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Any) -> Any:
        return self.function(*given)


WEIGHT, OTHER_WEIGHT, SCALE = (
    nn.Parameter(torch.full((3,), 0.7)),
    nn.Parameter(torch.ones(3)),
    nn.Parameter(torch.ones(())),
)
X, MASK, NUMBER = torch.full((3,), 0.7), torch.tensor([True, False, True]), torch.tensor(0.3)

#: By what they show, calls and the precision of their results.
ARITHMETIC: dict[str, tuple[Callable[[], torch.Tensor], torch.dtype]] = {
    "an activation and a number": (lambda: X * 0.3, FP32),
    "an activation and a tensor without dimensions": (lambda: X * NUMBER, FP32),
    "two activations": (lambda: X * X, FP32),
    "one activation": (lambda: X.exp(), FP32),
    "a Parameter and a number": (lambda: WEIGHT * 0.3, FP32),
    "a Parameter and a tensor without dimensions": (lambda: WEIGHT * NUMBER, FP32),
    "two Parameters": (lambda: WEIGHT * OTHER_WEIGHT, FP32),
    "a Parameter's data and an activation": (lambda: WEIGHT.data * X, FP32),
    "a Parameter and a mask": (lambda: WEIGHT.masked_fill(MASK, 0.0), FP32),
    "a Parameter and an activation": (lambda: WEIGHT * X, BF16),
    "an activation and a Parameter": (lambda: X + WEIGHT, BF16),
    "a Parameter without dimensions and an activation": (lambda: SCALE * X, BF16),
    "a Parameter's data and a lower tensor": (lambda: WEIGHT.data * X.bfloat16(), BF16),
    "a lower tensor and a number": (lambda: X.bfloat16() * 0.3, BF16),
    "joined tensors": (lambda: torch.cat([X, X]), BF16),
    "a product": (lambda: X.view(1, 3) @ X.view(3, 1), BF16),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_arithmetic_is_lowered_with_a_lower_tensor_or_where_a_parameter_meets_an_activation(
    converted: Converter, named: bool, compiled: bool
) -> None:
    model = Calls(lambda: [call() for call, _ in ARITHMETIC.values()])
    lists = ["mul", "add", "exp", "matmul", "masked_fill", "cat"]
    converted(bf16=lists, within=model if named else "modules")
    called = torch.compile(model, backend="eager") if compiled else model
    with torch.no_grad():
        made = dict(zip(ARITHMETIC, called(), strict=True))
    assert {name: one.dtype for name, one in made.items()} == {name: dtype for name, (_, dtype) in ARITHMETIC.items()}


def test_everywhere_the_lists_lower_arithmetic_without_exception() -> None:
    hmp.convert()
    with torch.no_grad():
        for made in (X * 0.3, WEIGHT * 0.3, WEIGHT.data * 0.3, WEIGHT * OTHER_WEIGHT):
            assert made.dtype is BF16
    with hmp.autocast("cpu", preset="hmp-default"):
        assert (WEIGHT.detach() * 0.3).dtype is BF16


def test_the_report_and_the_log_say_why(tmp_path: Path) -> None:
    hmp.convert(within="modules", isVerbose="why", log=tmp_path / "log.txt")
    Calls(lambda: X * 0.3)()
    row = next(one for one in hmp.report(show=False).rows if one.reason == "arithmetic")
    assert (row.operation, row.precision, row.rule, row.casts) == ("mul", "fp32", "rule 11", 0)
    hmp.restore()  # writes what waits
    (line,) = (one for one in (tmp_path / "log.txt").read_text().splitlines() if "float32 alone" in one)
    assert "mul" in line


class Centre(nn.Module):
    """The centre of DINO's loss, and the same as a plain attribute. The steps are written in several ways."""

    centre: torch.Tensor

    def __init__(self, average: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("centre", torch.full((1, 4), 0.3))
        self.mean = torch.full((1, 4), 0.3)
        self.average = average

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            batch = x.mean(dim=0, keepdim=True)
            self.centre = self.average(self.centre, batch)
            self.mean = self.average(self.mean, batch)
        return x


AVERAGES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": lambda state, batch: state * 0.999 + batch * 0.001,
    "functions": lambda state, batch: torch.add(torch.mul(state, 0.999), batch, alpha=0.001),
    "tensor as number": lambda state, batch: state * torch.tensor(0.999) + batch * torch.tensor(0.001),
    "joined": lambda state, batch: torch.cat([state[:, :2] * 0.999, state[:, 2:] * 0.999], 1) + batch * 0.001,
    "lerp": lambda state, batch: torch.lerp(state, batch, 0.001),
}


def averages_after(
    steps: int, average: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], convert: Callable[[], None] | None
) -> list[torch.Tensor]:
    model = Centre(average)
    if convert is not None:
        convert()
    for _ in range(steps):
        model(torch.full((4, 4), 0.7))
    hmp.restore()
    return [model.centre, model.mean]


@pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES)
@pytest.mark.parametrize("convert", EXACT.values(), ids=EXACT)
def test_an_average_that_is_stored_anew_moves_as_in_plain_torch(
    convert: Callable[[], None], average: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    for made, expected in zip(averages_after(50, average, convert), averages_after(50, average, None), strict=True):
        assert torch.equal(made, expected)


def test_everywhere_an_average_stays_float32_and_each_line_is_warned_about() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = averages_after(3, AVERAGES["sum"], hmp.convert)
    assert [one.dtype for one in made] == [FP32, FP32]
    warned = [str(one.message).split(" is ")[0] for one in caught if issubclass(one.category, HmpWarning)]
    assert warned == ["the buffer `centre` of Centre", "the attribute `mean` of Centre"]


class Counted(nn.Module):
    """Computes a decay from counters, as ema_pytorch does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(1500))
        self.register_buffer("seen", torch.arange(1500, 1508))

    @torch.no_grad()
    def forward(self) -> list[torch.Tensor]:
        counts: Any = (self.step, self.seen, (self.step - 1).clamp(min=0))
        return [(1 - (1 + count / 1.0) ** -1.0).clamp(max=0.999) for count in counts]


def test_arithmetic_on_whole_numbers_is_not_lowered_within_modules(converted: Converter) -> None:
    model = Counted()
    exact = model()
    converted(bf16=["rsub", "div", "true_divide", "pow", "add", "mul", "sub", "clamp"], within="modules")
    assert all(torch.equal(one, other) for one, other in zip(model(), exact, strict=True))


@pytest.mark.parametrize("make", ["orthogonal", "weight_norm", "spectral_norm", "own"])
@pytest.mark.parametrize("convert", [hmp.convert, EXACT["within"], EXACT["torch-cpu"]])
def test_a_parametrization_computes_weights_as_plain_torch_does(convert: Callable[[], None], make: str) -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.t()) @ x * 0.3

    torch.manual_seed(0)
    layer = nn.Linear(6, 6)
    if make == "own":
        nn.utils.parametrize.register_parametrization(layer, "weight", Own())
    else:
        getattr(nn.utils.parametrizations, make)(layer)
    layer.eval()
    expected = layer.weight.detach()
    convert()
    seen: list[torch.Tensor] = []
    layer.register_forward_hook(lambda module, *_: seen.append(module.weight))
    layer(torch.ones(2, 6)).float().sum().backward()
    with torch.no_grad():
        seen.append(layer.weight)
    for one in seen:
        assert one.dtype is FP32
        assert torch.equal(one.detach(), expected)


def module_with(kind: str) -> Any:
    """A module with a tensor of this kind as `state`."""
    module: Any = nn.Module()
    values = torch.full((3, 3), 0.7)
    if kind == "parameter":
        module.state = nn.Parameter(values)
    elif kind == "buffer":
        module.register_buffer("state", values)
    elif kind == "buffer by class":
        module.state = nn.Buffer(values)
    else:
        module.state = values
    return module


KINDS = ["parameter", "buffer", "buffer by class", "attribute"]


def changed(module: Any, kind: str, value: torch.Tensor) -> torch.Tensor:
    """Store a value over the module's tensor."""
    if kind == "parameter":
        module.state.data = value
    else:
        module.state = value
    return module.state  # type: ignore[no-any-return]  # torch does not type it


LOWER: dict[str, Callable[[], torch.Tensor]] = {
    "lowered": lambda: torch.ones(3, 3) * 0.7,
    "joined": lambda: torch.cat([torch.ones(1, 3) * 0.7, torch.ones(2, 3) * 0.7]),
    "padded": lambda: F.pad(torch.ones(3, 2) * 0.7, (0, 1)),
    "cloned": lambda: (torch.ones(3, 3) * 0.7).clone(),
    "equal to the former": lambda: torch.cat([torch.full((3, 3), 0.7) * 1.0]),
}


@pytest.mark.parametrize("value", LOWER.values(), ids=LOWER)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_over_a_float32_tensor_of_a_module_stays_float32(
    kind: str, value: Callable[[], torch.Tensor]
) -> None:
    module = module_with(kind)
    hmp.convert()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = value()
        assert stored.dtype is BF16
        made = changed(module, kind, stored)
    assert made.dtype is FP32
    assert torch.equal(made.detach(), stored.float())
    assert [one.filename for one in caught if issubclass(one.category, HmpWarning)] == [__file__]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(("kind", "convert"), [*zip(KINDS, ["to", "bfloat16", "half", "type"], strict=True)])
def test_a_conversion_that_is_stored_is_as_it_was_made(kind: str, convert: str, recorded: bool) -> None:
    module = module_with(kind)
    hmp.convert()
    arguments = [torch.bfloat16] if convert in ("to", "type") else []
    with warnings.catch_warnings(), torch.set_grad_enabled(recorded):
        warnings.simplefilter("error")
        value = module.state if recorded and kind != "parameter" else module.state.data
        made = changed(module, kind, getattr(value, convert)(*arguments))
    assert made.dtype in (BF16, torch.float16)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_call_of_a_module_converts_to_the_dtype_of_an_activation_stays_float32(kind: str) -> None:
    module = module_with(kind)

    def follow(x: torch.Tensor) -> None:
        activation = x @ x.t()
        assert activation.dtype is BF16
        changed(module, kind, module.state.detach().to(activation.dtype))

    expected = module.state.detach().clone()
    hmp.convert(preset="recommended")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Calls(follow)(torch.ones(3, 8))
    assert module.state.dtype is FP32
    assert torch.equal(module.state.detach(), expected)  # 0.7 is no number of bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_another_tensor_that_a_call_of_a_module_converts_is_warned_about(kind: str) -> None:
    module = module_with(kind)

    hmp.convert()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Calls(lambda x: changed(module, kind, torch.full((3, 3), 0.3).to((x @ x.t()).dtype)))(torch.ones(3, 8))
    assert module.state.dtype is FP32
    assert torch.equal(module.state.detach(), torch.full((3, 3), 0.3).bfloat16().float())
    assert [one.filename for one in caught if issubclass(one.category, HmpWarning)] == [__file__]


def test_activations_that_a_module_keeps_stay_as_they_are() -> None:
    hmp.convert()
    module: Any = nn.Module()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            module.seen = torch.ones(3, 8) @ torch.ones(8, 3)
            module.part = module.seen[:2]
            module.part = module.part
            module.cache = torch.cat([module.seen, module.part])
    assert {module.seen.dtype, module.part.dtype, module.cache.dtype} == {BF16}


def test_a_whole_model_is_converted_as_its_user_wants_also_within_a_call() -> None:
    inner = nn.Linear(3, 3)
    hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).bfloat16()
        other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).half()
        Calls(lambda x: inner.to(torch.bfloat16)(x.bfloat16()))(torch.ones(3, 3))
    assert {one.dtype for one in (*model.parameters(), *model.buffers())} == {BF16, torch.int64}
    assert {one.dtype for one in other.parameters()} == {torch.float16}
    assert inner.weight.dtype is BF16


#: Operators that torch calls pointwise and that compute no floating values of floating ones, or no forward.
NO_ARITHMETIC = {
    *("eq", "ne", "lt", "le", "gt", "ge", "isfinite", "isinf", "isnan", "isneginf", "isposinf", "signbit"),
    *("gcd", "lcm"),
    *("logical_and", "logical_not", "logical_or", "logical_xor", "bitwise_and", "bitwise_not", "bitwise_or"),
    *("bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "clone", "frexp", "max", "min", "_conj_physical"),
}


def test_each_operation_that_torch_calls_pointwise_counts_as_arithmetic() -> None:
    tagged = set()
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and not schema.name.endswith(("_", "_backward")):
            found = torch._C._get_operation_overload(schema.name, schema.overload_name)
            if found is not None and torch.Tag.pointwise in found[2]:
                tagged.add(schema.name.removeprefix("aten::"))
    assert len(tagged) > 150
    missing = {name for name in tagged - NO_ARITHMETIC if not ops.is_elementwise(name)}
    assert missing == set()
