"""Arithmetic on tensors of modules alone is not lowered where autograd does not track it, and what is stored over a
float32 tensor of a module stays float32 (rule 11)."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import HmpWarning, _core, hmp, ops
from helpers.lists import Converter

BF16, FP32 = torch.bfloat16, torch.float32

CONVERSIONS: dict[str, Callable[[], None]] = {
    "default": hmp.convert,
    "within": lambda: hmp.convert(within="modules"),
    "O2": lambda: hmp.convert(opt_level="O2"),
    **{name: (lambda name=name: hmp.convert(preset=name)) for name in ("torch-cpu", "torch-cuda", "hpu-autocast")},
}


class Momentum(nn.Module):
    """A momentum encoder, as in MoCo, ALBEF and BLIP."""

    def __init__(self, momentum: float) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)
        self.key = copy.deepcopy(self.query)
        self.momentum = momentum

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for query, key in zip(self.query.parameters(), self.key.parameters(), strict=True):
                key.data = key.data * self.momentum + query.data * (1.0 - self.momentum)
        return self.key(x)


def average_after(steps: int, momentum: float, convert: Callable[[], None] | None) -> torch.Tensor:
    torch.manual_seed(0)
    if convert is not None:
        convert()
    model = Momentum(momentum)
    with torch.no_grad():
        for one in model.query.parameters():
            one.add_(0.25)
    for _ in range(steps):
        model(torch.ones(2, 6))
    hmp.restore()
    return model.key.weight.detach()


@pytest.mark.parametrize("momentum", [0.99, 0.999, 0.9999])
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_momentum_encoder_moves_as_in_plain_torch(convert: Callable[[], None], momentum: float) -> None:
    assert torch.equal(average_after(50, momentum, convert), average_after(50, momentum, None))


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
    "number first": lambda state, batch: 0.999 * state + 0.001 * batch,
    "functions": lambda state, batch: torch.add(torch.mul(state, 0.999), batch, alpha=0.001),
    "difference": lambda state, batch: state - 0.001 * (state - batch),
    "tensor as number": lambda state, batch: state * torch.tensor(0.999) + batch * torch.tensor(0.001),
    "padded": lambda state, batch: F.pad(state * 0.999, (1, 0))[:, 1:] + batch * 0.001,
    "concatenated": lambda state, batch: torch.cat([state[:, :2] * 0.999, state[:, 2:] * 0.999], 1) + batch * 0.001,
    "in steps": lambda state, batch: (state * 0.9) * 0.999 / 0.9 + batch * 0.001,
    "lerp": lambda state, batch: torch.lerp(state, batch, 0.001),
}


@pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES)
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_an_average_that_is_stored_anew_moves_and_stays_float32(
    convert: Callable[[], None], average: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    def run(convert: Callable[[], None] | None) -> list[torch.Tensor]:
        model = Centre(average)
        if convert is not None:
            convert()
        for _ in range(200):
            model(torch.full((4, 4), 0.7))
        hmp.restore()
        return [model.centre, model.mean, model.state_dict()["centre"]]

    for made, expected in zip(run(convert), run(None), strict=True):
        assert made.dtype is FP32
        # What a batch adds is an activation's product, which the lists may round.
        torch.testing.assert_close(made - 0.3, expected - 0.3, rtol=0.02, atol=0)


def module_with(kind: str) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """A module, and what gives its tensor."""
    module: Any = nn.Module()
    values = torch.full((3, 3), 0.7)
    if kind == "parameter":
        module.state = nn.Parameter(values)
    elif kind == "frozen":
        module.state = nn.Parameter(values, requires_grad=False)
    elif kind == "buffer":
        module.register_buffer("state", values)
    elif kind == "buffer by class":
        module.state = nn.Buffer(values)
    else:
        module.state = values
    return module, lambda: module.state


KINDS = ["parameter", "frozen", "buffer", "buffer by class", "attribute"]
#: By name, what was done to the module before.
HISTORIES: dict[str, Callable[[nn.Module], Any]] = {
    "as made": lambda module: module,
    "copied": copy.deepcopy,
    "pickled": lambda module: pickle.loads(pickle.dumps(module)),
    "moved": lambda module: module.to(torch.float64).to(torch.float32),
    "loaded": lambda module: (module.load_state_dict(module.state_dict(), assign=True), module)[1],
}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_a_module_is_known_however_it_got_there(kind: str, history: str, before: bool) -> None:
    if before:
        module = HISTORIES[history](module_with(kind)[0])
        hmp.convert()
    else:
        hmp.convert()
        module = HISTORIES[history](module_with(kind)[0])
    with torch.no_grad():
        with hmp.disable_casts():
            expected = module.state * 0.3
        for alias in (module.state, module.state.data, module.state.detach(), module.state[1:], module.state.t()):
            assert (alias * 0.3).dtype is FP32
        assert torch.equal(module.state * 0.3, expected)
        assert (module.state * torch.ones(3, 3)).dtype is BF16  # an activation's
    assert (torch.full((3, 3), 0.7) * 0.3).dtype is BF16


def test_a_weight_that_autograd_tracks_is_lowered_as_its_list_says() -> None:
    module = nn.Linear(3, 3)
    hmp.convert()
    assert (module.weight * 0.3).dtype is BF16
    assert (module.weight.detach() * 0.3).dtype is FP32
    assert torch.mm(module.weight.detach(), module.weight.detach()).dtype is BF16  # no arithmetic


def test_a_tensor_that_a_module_had_is_forgotten_with_its_memory() -> None:
    hmp.convert()
    module: Any = nn.Module()
    for _ in range(200):
        module.state = torch.full((3, 3), 0.7)
        del module.state
        gc.collect(0)
        assert (torch.full((3, 3), 0.7) * 0.3).dtype is BF16


def test_results_of_arithmetic_on_state_count_as_state(converted: Converter) -> None:
    converted(bf16=["add", "mul", "exp"])
    module = nn.Linear(3, 3)
    with torch.no_grad():
        assert (0.9 * module.weight.data + 0.1 * module.weight.data.exp()).dtype is FP32
        assert (torch.ones(3, 3) + 0.1 * module.weight.data).dtype is BF16


def test_operations_on_state_that_give_no_tensor_give_what_they_give() -> None:
    hmp.convert()
    module, state = module_with("buffer")
    with torch.no_grad():
        assert torch.equal(state(), state())
        assert torch.allclose(state(), state() + 1e-9)
        assert torch.isclose(state(), state()).all()
        assert torch.frexp(state())[1].dtype is torch.int32
    assert module is not None


def test_the_report_and_the_log_say_why(tmp_path: Path) -> None:
    hmp.convert(isVerbose="why", log=tmp_path / "log.txt")
    module = nn.Linear(3, 3)
    with torch.no_grad():
        half = module.weight.data * 0.3
    row = next(one for one in hmp.report(show=False).rows if one.operation == "mul" and one.reason == "state")
    assert (row.precision, row.reason, row.rule, row.casts) == ("unchanged", "state", "rule 11", 0)
    hmp.restore()  # writes what waits
    (line,) = (one for one in (tmp_path / "log.txt").read_text().splitlines() if "own tensors" in one)
    assert "mul" in line
    assert "arithmetic on a module's own tensors" in line
    assert half.dtype is FP32


@pytest.mark.parametrize("make", ["orthogonal", "weight_norm", "spectral_norm", "own"])
@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
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


def changed(module: nn.Module, kind: str, value: torch.Tensor) -> torch.Tensor:
    """Store a value over the module's tensor."""
    if kind in ("parameter", "frozen"):
        state: Any = module.state
        state.data = value
    else:
        module.state = value
    made: Any = module.state
    return made


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
    module, _ = module_with(kind)
    hmp.convert()
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stored = value()
        assert stored.dtype is BF16
        made = changed(module, kind, stored)
    assert made.dtype is FP32
    assert torch.equal(made.detach(), stored.float())
    assert [one.filename for one in caught if issubclass(one.category, HmpWarning)] == [__file__]


@pytest.mark.parametrize("convert", ["to", "bfloat16", "half", "type"])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_conversion_that_is_stored_is_as_it_was_made(kind: str, convert: str, recorded: bool) -> None:
    module, state = module_with(kind)
    hmp.convert()
    arguments = [torch.bfloat16] if convert in ("to", "type") else []
    with warnings.catch_warnings(), torch.set_grad_enabled(recorded):
        warnings.simplefilter("error")
        value = state() if recorded and kind != "parameter" else state().data
        made = changed(module, kind, getattr(value, convert)(*arguments))
    assert made.dtype in (BF16, torch.float16)


@pytest.mark.parametrize("preset", ["hmp-default", "recommended", "torch-cpu", "hpu-autocast"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_call_of_a_module_converts_to_the_dtype_of_an_activation_stays_float32(kind: str, preset: str) -> None:
    module, state = module_with(kind)

    class Follows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            activation = x @ x.t()
            assert activation.dtype is BF16
            changed(module, kind, state().detach().to(activation.dtype))
            return activation

    expected = state().detach().clone()
    hmp.convert(preset=preset)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Follows()(torch.ones(3, 8))
    made: Any = module.state
    assert made.dtype is FP32
    assert torch.equal(made.detach(), expected)  # 0.7 is no number of bfloat16


@pytest.mark.parametrize("kind", KINDS)
def test_another_tensor_that_a_call_of_a_module_converts_is_warned_about(kind: str) -> None:
    module, _ = module_with(kind)

    class Follows(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            changed(module, kind, torch.full((3, 3), 0.3).to((x @ x.t()).dtype))
            return x

    hmp.convert()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Follows()(torch.ones(3, 8))
    made: Any = module.state
    assert made.dtype is FP32
    assert torch.equal(made.detach(), torch.full((3, 3), 0.3).bfloat16().float())
    assert [one.filename for one in caught if issubclass(one.category, HmpWarning)] == [__file__]


class Covariance(nn.Module):
    """An average of products that begins as a tensor like the first of them, as in TiCo."""

    def __init__(self, update: str) -> None:
        super().__init__()
        self.average: Any = None
        self.update = update

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = (x.t() @ x).detach() / len(x)
        if self.average is None:
            self.average = product.new_zeros(product.shape)
        if self.update == "sum":
            average = 0.9 * self.average + 0.1 * product
        elif self.update == "lerp":
            average = self.average.lerp(product, 0.1)
        else:
            average = self.average + 0.1 * (product - self.average)
        self.average = average.detach()
        return (x @ average).float().sum()


@pytest.mark.parametrize("update", ["sum", "lerp", "difference"])
@pytest.mark.parametrize("preset", ["hmp-default", "recommended", "torch-cpu", "torch-cuda", "hpu-autocast"])
def test_an_average_that_begins_in_lower_precision_is_kept_in_float32(preset: str, update: str) -> None:
    def trained() -> torch.Tensor:
        torch.manual_seed(0)
        model = Covariance(update)
        for _ in range(200):
            model(torch.randn(16, 8, requires_grad=True)).backward()
        made: torch.Tensor = model.average
        return made

    expected = trained()
    hmp.convert(preset=preset)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = trained()
    assert made.dtype is FP32
    assert not made.requires_grad
    assert ((made - expected).norm() / expected.norm()).item() < 0.01
    warned = sum(issubclass(one.category, HmpWarning) for one in caught)
    assert warned == (0 if preset in ("hmp-default", "hpu-autocast") else 1)  # these divide in float32


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


def test_a_model_that_is_converted_as_a_whole_within_a_call_is_as_it_was_made() -> None:
    inner = nn.Linear(3, 3)

    class Converts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inner.to(torch.bfloat16)
            return inner(x.bfloat16())

    hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Converts()(torch.ones(3, 3))
    assert inner.weight.dtype is BF16


def test_a_whole_model_is_converted_as_its_user_wants() -> None:
    hmp.convert()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).bfloat16()
        other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).half()
    assert {one.dtype for one in (*model.parameters(), *model.buffers())} == {BF16, torch.int64}
    assert {one.dtype for one in other.parameters()} == {torch.float16}


def test_restore_leaves_no_reference_to_tensors_of_modules() -> None:
    hmp.convert()
    _, state = module_with("buffer")
    assert weakref.getweakrefcount(state()) == 1
    hmp.restore()
    assert weakref.getweakrefcount(state()) == 0
    assert not _core.module_tensors_are_followed()


def test_lists_that_lower_no_arithmetic_follow_no_tensors() -> None:
    hmp.convert(preset="torch-cpu")
    assert not _core.module_tensors_are_followed()
    hmp.convert()
    assert _core.module_tensors_are_followed()
    with hmp.autocast("cpu", preset="torch-cpu"):
        assert _core.module_tensors_are_followed()


def test_a_region_that_lowers_arithmetic_leaves_state_exact() -> None:
    module, state = module_with("buffer")
    with hmp.autocast("cpu", preset="hmp-default"), torch.no_grad():
        assert (state() * 0.3).dtype is FP32
        assert (torch.ones(3, 3) * 0.3).dtype is BF16
    assert module is not None


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["mul", "add", "sub", "div"]), st.floats(0.5, 1.5)), min_size=1, max_size=6
    ),
    kind=st.sampled_from(KINDS),
)
def test_any_arithmetic_on_state_and_numbers_is_that_of_plain_torch(steps: list[tuple[str, float]], kind: str) -> None:
    module, state = module_with(kind)

    def compute() -> torch.Tensor:
        value = state().detach()
        for name, number in steps:
            value = getattr(torch, name)(value, number)
        return value + 0.1 * state().detach()

    with torch.no_grad():
        expected = compute()
        hmp.convert()
        made = compute()
        hmp.restore()
    assert made.dtype is FP32
    assert torch.equal(made, expected)
    assert module is not None


#: Operators that torch calls pointwise and that compute no floating values of floating ones, or no forward.
NO_ARITHMETIC = {
    *(
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "isfinite",
        "isinf",
        "isnan",
        "isneginf",
        "isposinf",
        "signbit",
        "gcd",
        "lcm",
    ),
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


class Counted(nn.Module):
    """Computes a decay from counters, as ema_pytorch does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.tensor(1500))
        self.register_buffer("seen", torch.arange(1500, 1508))
        self.ours = torch.tensor(1500, dtype=torch.int32)

    @torch.no_grad()
    def decays(self) -> list[torch.Tensor]:
        counts = (self.step, self.seen, self.ours, (self.step - 1).clamp(min=0), self.step.view(1))
        return [(1 - (1 + count / 1.0) ** -1.0).clamp(max=0.999) for count in counts]


def test_arithmetic_on_whole_numbers_of_a_module_is_not_lowered(converted: Converter) -> None:
    model = Counted()
    exact = model.decays()
    converted(bf16=["rsub", "div", "true_divide", "pow", "add", "mul", "sub", "clamp"])
    for counted in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model)), Counted()):
        for one, other in zip(counted.decays(), exact, strict=True):
            assert one.dtype is FP32
            assert torch.equal(one, other)


def test_masks_of_a_module_do_not_keep_arithmetic_in_float32(converted: Converter) -> None:
    model = nn.Module()
    model.register_buffer("mask", torch.ones(4, dtype=torch.bool))
    model.register_buffer("bytes", torch.ones(4, dtype=torch.uint8))
    converted(bf16=["mul"])
    with torch.no_grad():
        assert [(one.float() * 2.0).dtype for one in (model.mask, model.bytes)] == [BF16, BF16]
