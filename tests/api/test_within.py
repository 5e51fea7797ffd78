"""``convert(within=...)``: operations are lowered only while the forward of a module runs, of any or of those given."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp, ops
from habana_mp.common.errors import ListError
from habana_mp.policy.presets import presets
from habana_mp.reporting.records import short_place
from helpers.cases import CASES, CLOSE, Case
from helpers.comparing import assert_same, tensors
from helpers.compiling import BACKENDS
from helpers.each import each
from helpers.lists import Converter
from helpers.models import Calls

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.linspace(-1, 1, 32).reshape(4, 8)
#: A twentieth of all: where rules apply does not depend on the operation.
SOME = [one for one in CASES if one.form != "module" and one.name not in CLOSE][::20]


class Layer(nn.Module):
    """A product of a weight, and one of functions alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) @ x.t()


def dtypes(value: Any) -> list[torch.dtype]:
    return [one.dtype for one in tensors(value)]


def step(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Arithmetic of a script's own before and after its model."""
    result = model(x * x)
    return [x @ x.t(), result, torch.softmax(result, -1), result * result, result + torch.ones(4, 4)]


STEP = [FP32, BF16, FP32, BF16, FP32]


# ---- where it casts --------------------------------------------------------------------------------------------------


def test_a_script_lowers_in_its_model_and_nothing_around_it() -> None:
    hmp.convert(within="modules")
    assert dtypes(step(Layer(), X)) == STEP
    hmp.convert(within=None)
    assert dtypes(step(Layer(), X))[0] is BF16


@each("case", SOME)
def test_outside_of_modules_an_operation_gives_what_plain_torch_gives(case: Case) -> None:
    plain = case.run()
    hmp.convert(within="modules")
    assert_same(case.run(), plain)
    assert all((row.precision, row.reason) == ("fp32", "outside") for row in hmp.report(show=False).rows)


@each("case", SOME)
def test_in_whatever_module_arithmetic_on_float32_alone_is_that_of_torch(case: Case) -> None:
    if not ops.is_elementwise(case.name):
        hmp.convert()
    expected = case.run()
    hmp.convert(within="modules")
    torch.manual_seed(3)
    assert_same(Calls(case.call)(*case.inputs), expected)


class Prepares(nn.Module):
    """Data preparation that is written as a module, positions, and what a network computes with them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0, 1, 8))
        self.scale = nn.Parameter(torch.linspace(0, 1, 8))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 0.1, x * self.frequencies, x * self.scale, x.bfloat16() * self.frequencies, (x @ x.t()) * 0.1]


def test_arithmetic_in_whatever_module_is_lowered_with_a_weight_or_a_lower_tensor() -> None:
    model = Prepares()
    plain = model(X)
    hmp.convert(within="modules", report="lines")
    hmp.reset_report()
    results = model(X)
    assert dtypes(results) == [FP32, FP32, BF16, BF16, BF16]
    assert_same(results[:2], plain[:2])
    reasons = {(row.precision, row.reason) for row in hmp.report(show=False) if row.operation == "mul"}
    assert reasons == {("fp32", "arithmetic"), ("bf16", "list")}
    hmp.convert(within=model)
    assert dtypes(model(X)) == [FP32, FP32, BF16, BF16, BF16]


def test_what_is_lower_already_meets_float32_outside_of_modules(converted: Converter) -> None:
    lower, wide = X.bfloat16(), X + 1
    converted(bf16=["mm"], fp32=["exp"], within="modules")
    assert torch.cat([lower, wide]).dtype is FP32  # rule 2
    assert (lower.clone().add_(wide)).dtype is BF16  # rule 3
    assert (lower @ wide.t()).dtype is BF16  # rule 4
    assert torch.fft.rfft(lower).dtype is torch.complex64  # rule 8
    filled = lower.masked_fill(lower > 0, torch.finfo(FP32).min)  # rule 9
    assert filled.dtype is BF16
    assert filled.min() == torch.finfo(BF16).min
    assigned = lower.clone()
    assigned[0] = wide[0]
    assert assigned.dtype is BF16


def test_what_a_module_calls_counts_and_what_calls_it_does_not() -> None:
    hmp.convert(within="modules")
    inner = Calls(torch.mm)
    seen = []

    def between(x: torch.Tensor) -> torch.Tensor:
        seen.append((x @ x.t()).dtype)
        result = inner(x, x.t())
        seen.append((x @ x.t()).dtype)
        return result

    between(X)
    Calls(between)(X)
    assert seen == [FP32, FP32, BF16, BF16]


def test_a_forward_that_is_called_past_the_module_is_a_function_as_any() -> None:
    hmp.convert(within="modules")
    layer = Layer()
    assert layer(X).dtype is BF16
    seen: list[torch.dtype] = []
    layer.linear.register_forward_hook(lambda *_: seen.append((X @ X.t()).dtype))
    layer.forward(X)
    assert seen == [BF16]  # the module within runs as such
    assert Calls(lambda x: x @ x.t()).forward(X).dtype is FP32


def test_an_exception_leaves_the_module() -> None:
    hmp.convert(within="modules")

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(str((x @ x.t()).dtype))

    with pytest.raises(KeyError, match="bfloat16"):
        Calls(fail)(X)
    assert (X @ X.t()).dtype is FP32


def test_each_thread_is_in_modules_of_its_own() -> None:
    hmp.convert(within="modules")
    inside, go_on = threading.Event(), threading.Event()
    seen: list[torch.dtype] = []

    def wait(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        assert go_on.wait(30)
        return x @ x.t()

    thread = threading.Thread(target=lambda: seen.append(Calls(wait)(X).dtype))
    thread.start()
    assert inside.wait(30)
    assert (X @ X.t()).dtype is FP32
    go_on.set()
    thread.join()
    assert seen == [BF16]


def test_disabled_casts_stay_disabled_in_a_module() -> None:
    hmp.convert(within="modules")
    with hmp.disable_casts():
        assert Layer()(X).dtype is FP32
    with torch.autocast("cpu", enabled=False):
        assert Layer()(X).dtype is FP32

    def part(x: torch.Tensor) -> list[torch.Tensor]:
        with hmp.disable_casts():
            exact = x @ x.t()
        return [exact, x @ x.t()]

    assert dtypes(Calls(part)(X)) == [FP32, BF16]


def test_a_region_speaks_wherever_it_is() -> None:
    hmp.convert(within="modules")
    with hmp.autocast("cpu", torch.float16, preset="torch-cuda"):
        assert (X @ X.t()).dtype is torch.float16
        assert Layer()(X).dtype is torch.float16
    assert (X @ X.t()).dtype is FP32
    assert not Calls(hmp.is_autocast_enabled)()


def test_the_backward_of_a_python_function_is_outside() -> None:
    seen = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            seen.append((X @ X.t()).dtype)
            return gradient * 2

    weight = torch.ones(4, 8, requires_grad=True)
    hmp.convert(within="modules")
    Calls(Doubled.apply)(weight).sum().backward()
    assert seen == [FP32]


# ---- where it is not given: as the preset says -----------------------------------------------------------------------


def test_the_recommended_lists_lower_in_modules_and_all_others_everywhere() -> None:
    assert [name for name, one in presets().items() if one.within != "everywhere"] == ["recommended"]
    for name in ("recommended", "hmp-default", "torch-cpu"):
        hmp.convert(preset=name, results="as computed")
        assert Layer()(X).dtype is BF16
        assert (X @ X.t()).dtype is (FP32 if name == "recommended" else BF16), name
    for options in ({"preset": "recommended", "within": "everywhere"}, {}):
        hmp.convert(**options)
        assert (X @ X.t()).dtype is BF16
    hmp.convert(preset="recommended", results="as computed")
    assert (X @ X.t()).dtype is FP32  # nothing is left of the call before
    with hmp.autocast("cpu", preset="recommended"):
        assert (X @ X.t()).dtype is BF16


@each(
    "within, expected",
    [("", BF16), ("modules\n", FP32), ("# where\neverywhere\n", BF16), ("modules\nmodules\n", None), ("here\n", None)],
)
def test_a_folder_of_lists_says_where_they_lower(tmp_path: Path, within: str, expected: torch.dtype | None) -> None:
    for name, text in {"bf16": "mm\nmatmul\n", "fp32": "", "within": within}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    if expected is None:
        with pytest.raises(ListError, match=r"within\.txt:1: it must be one line, `modules` or `everywhere`; got"):
            hmp.convert(preset=str(tmp_path))
        assert not hmp.is_converted()
    else:
        hmp.convert(preset=str(tmp_path))
        assert (X @ X.t()).dtype is expected
        assert Calls(torch.mm)(X, X.t()).dtype is BF16


def test_the_first_lines_count_what_ran_outside_of_modules_and_advise_nothing() -> None:
    model = Layer()
    hmp.convert(preset="recommended", results="as computed", report="lines")
    hmp.reset_report()
    for _ in range(3):
        (model(X) @ X).sum()
    first, second, *_ = hmp.report(show=False).words
    line = inspect.getsourcelines(test_the_first_lines_count_what_ran_outside_of_modules_and_advise_nothing)[1] + 5
    assert first.startswith("All 9 products ran in bf16. ")  # its input was lower
    hmp.reset_report()
    for _ in range(3):
        model(X @ X.t() @ X)
    first, second, *_ = hmp.report(show=False).words
    assert first.startswith("6 of 12 products ran in bf16, ")
    assert second == (
        f"6 products outside of modules ran in float32 (`matmul`, most at {short_place(__file__, line + 6)}): "
        "the lists lower in modules only"
    )


# ---- these modules only ----------------------------------------------------------------------------------------------


def test_one_module_is_lowered_and_another_is_not() -> None:
    mine, other = Layer(), Layer()
    hmp.convert(within=mine)
    assert mine(X).dtype is BF16
    assert other(X).dtype is FP32
    assert Calls(mine)(X).dtype is BF16
    assert Calls(lambda x: (x * x, mine(x)))(X)[0].dtype is FP32


def test_a_list_of_modules_is_lowered_and_their_parts_with_them() -> None:
    first, second, third = Layer(), Layer(), Layer()
    hmp.convert(within=[first.linear, second])
    assert dtypes([first.linear(X), second(X), second.linear(X), third.linear(X)]) == [BF16, BF16, FP32, FP32]
    hmp.convert(within=iter((third,)))
    assert third.linear(X).dtype is FP32
    assert third(X).dtype is BF16


def test_a_module_that_has_gone_leaves_its_place_to_nobody() -> None:
    kept = Layer()
    layers = [Layer() for _ in range(20)]
    hmp.convert(within=[kept, *layers])
    del layers
    gc.collect()
    assert all(Layer()(X).dtype is FP32 for _ in range(40))
    assert kept(X).dtype is BF16


def test_modules_are_not_kept_alive() -> None:
    layer = Layer()
    gone = []
    reference = weakref.ref(layer, lambda _: gone.append(True))
    hmp.convert(within=layer)
    del layer
    gc.collect()
    assert gone
    assert reference() is None


@each("wrong", ["module", "", [], (), {}, 3, [nn.ReLU(), 3], nn.ReLU])
def test_what_is_no_module_is_refused_and_nothing_changes(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r'`within` must be None, "modules", "everywhere", a module or a list'):
        hmp.convert(within=wrong)
    assert not hmp.is_converted()
    hmp.convert(within="modules")
    with pytest.raises(ValueError, match="`within`"):
        hmp.convert(within=wrong)
    assert dtypes(step(Layer(), X)) == STEP


# ---- convert and restore ---------------------------------------------------------------------------------------------


def test_convert_again_replaces_where_it_casts() -> None:
    layer = Layer()
    for within, expected in (("modules", STEP), (layer, STEP), ("everywhere", [BF16, BF16, FP32, BF16, BF16])):
        hmp.convert(within=within)
        result = step(layer, X)
        assert dtypes(result[:3]) == expected[:3]
    hmp.convert("O0", within="modules")
    assert layer(X).dtype is FP32
    hmp.convert("O2", within="modules")
    assert dtypes([layer(X), X @ X.t()]) == [BF16, FP32]
    hmp.restore()
    assert layer(X).dtype is FP32


def test_restore_within_a_module_ends_its_casts() -> None:
    def part(x: torch.Tensor) -> list[torch.Tensor]:
        before = x @ x.t()
        hmp.restore()
        return [before, x @ x.t()]

    hmp.convert(within="modules")
    assert dtypes(Calls(part)(X)) == [BF16, FP32]
    assert Layer()(X).dtype is FP32
    hmp.convert(within="modules")
    assert dtypes(step(Layer(), X)) == STEP


# ---- with the rest of torch ------------------------------------------------------------------------------------------


class Overriding(nn.Module):
    """Its call is its own."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return super().__call__(x) + 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()


def hooked() -> nn.Module:
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda *given: given[2] * 2)
    return module


MODULES: dict[str, Callable[[], nn.Module]] = {
    "torch's": lambda: nn.Linear(8, 8),
    "with a hook": hooked,
    "parametrized": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)),
    "a graph": lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8))),
    "with a call of its own": Overriding,
}


@pytest.mark.usefixtures("compiled_anew", "one_thread")
@pytest.mark.parametrize("backend", BACKENDS)
class TestCompiled:
    def test_a_function_that_calls_modules_casts_in_them(self, backend: str) -> None:
        hmp.convert(within="modules")
        layer = Layer()
        expected = step(layer, X)
        compiled = torch.compile(step, backend=backend, fullgraph=True)(layer, X)
        assert dtypes(compiled) == STEP
        for one, other in zip(compiled, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2, atol=1e-2)

    @pytest.mark.parametrize("kind", MODULES)
    def test_modules_of_every_kind_are_seen_in_a_function(self, backend: str, kind: str) -> None:
        module = MODULES[kind]()
        hmp.convert(within="modules")
        compiled = torch.compile(lambda x: [module(x), x @ x.t()], backend=backend)
        assert dtypes(compiled(X)) == [BF16, FP32]

    def test_only_the_modules_given_are_cast_in(self, backend: str) -> None:
        mine, other = Layer(), Layer()
        early = torch.compile(mine, backend=backend)
        hmp.convert(within=mine)
        both = torch.compile(lambda x: [mine(x), other(x)], backend=backend, fullgraph=True)
        assert dtypes(both(X)) == [BF16, FP32]
        assert early(X).dtype is BF16
        assert torch.compile(other, backend=backend)(X).dtype is FP32


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "plain"])
def test_an_exported_module_is_lowered_as_it_is_called(strict: bool) -> None:
    layer = Layer()
    hmp.convert(within="modules")
    expected = layer(X)
    exported = torch.export.export(layer, (X,), strict=strict).module()
    hmp.restore()
    assert_same(exported(X), expected)


@pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "plain"])
@pytest.mark.parametrize("outside", [True, False], ids=["of the model", "in the model"])
def test_a_block_that_is_run_again_casts_as_in_the_first_run(reentrant: bool, outside: bool) -> None:
    def gradients(run: Callable[[torch.Tensor], torch.Tensor], layer: Layer) -> list[torch.Tensor]:
        x = X.clone().requires_grad_()
        layer.zero_grad()
        run(x).float().square().sum().backward()
        return [x.grad, *[one.grad for one in layer.parameters()]]

    layer = Layer()
    hmp.convert(within="modules")
    expected = gradients(layer, layer)

    def again(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(layer if outside else layer.forward, x, use_reentrant=reentrant)

    assert_same(gradients(again if outside else Calls(again), layer), expected)


def test_functional_calls_and_transforms_are_within() -> None:
    from torch.func import functional_call, grad, vmap

    hmp.convert(within="modules")
    layer = Layer()
    weights = dict(layer.named_parameters())
    assert functional_call(layer, weights, (X,)).dtype is BF16
    assert vmap(Calls(lambda x: x @ x))(X).dtype is BF16
    assert vmap(lambda x: x @ x)(X).dtype is FP32
    assert layer(X).dtype is BF16
    gradient = grad(lambda given: functional_call(layer, given, (X,)).float().sum())(weights)
    layer(X).float().sum().backward()
    assert_same(gradient, {name: one.grad for name, one in layer.named_parameters()})
