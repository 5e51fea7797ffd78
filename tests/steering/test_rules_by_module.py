"""Rules by module hold however a module is called: every way of calling, by every way of steering."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from habana_mp import HmpWarning, hmp
from helpers.lists import Converter, write_list
from helpers.models import Calls
from helpers.processes import in_threads
from helpers.steered import (
    BF16,
    BY_PATH,
    FP32,
    LOWERED,
    STEERED,
    Holder,
    Part,
    inputs,
    network,
    options_for,
    precisions,
    steer,
)

every_way = pytest.mark.parametrize("how", STEERED)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: one.detach().clone() for name, one in model.named_parameters()}


def _compiled_in_parts(model: Any) -> Any:
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    model.right.inner = model.left.inner
    return model


def _compiled_in_place(model: nn.Module) -> Any:
    model.compile(backend="eager", fullgraph=True)
    return model


def _in_thread(model: nn.Module) -> Any:
    def run(x: torch.Tensor) -> Any:
        found: list[Any] = []
        in_threads(lambda _: found.append(model(x)), 1)
        return found[0]

    return run


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "as it is": lambda model: model,
    "copied": copy.deepcopy,
    "copied within": lambda model: copy.deepcopy(nn.Sequential(model))[0],
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "functional_call": lambda model: lambda x: torch.func.functional_call(model, _weights(model), (x,)),
    "traced": lambda model: torch.jit.trace(model, inputs(), check_trace=False),
    "exported": lambda model: torch.export.export(model, (inputs(),)).module(),
    "exported strictly": lambda model: torch.export.export(model, (inputs(),), strict=True).module(),
    "compiled": lambda model: torch.compile(model, fullgraph=True, backend="eager"),
    "compiled by inductor": lambda model: torch.compile(model, fullgraph=True),
    "compiled in parts": _compiled_in_parts,
    "compiled in place": _compiled_in_place,
    "compiled in a function": lambda model: torch.compile(lambda x: model(x), fullgraph=True, backend="eager"),
    "in a thread": _in_thread,
    "in DataParallel": nn.DataParallel,
}


#: Each way of calling with one way of steering, and each way of steering with one that compiles.
CALLED_AND_STEERED = [
    *((way, list(STEERED)[number % len(STEERED)]) for number, way in enumerate(WAYS)),
    *(("compiled", how) for how in STEERED),
]


@pytest.mark.parametrize(("way", "how"), dict.fromkeys(CALLED_AND_STEERED))
def test_a_rule_holds_in_its_module_and_in_no_other(converted: Converter, how: str, way: str) -> None:
    model = network()
    steer(converted, how, model, "layers.1")
    called = WAYS[way](model)
    for _ in range(2):
        assert precisions(called(inputs())) == [LOWERED, STEERED[how], LOWERED, LOWERED]


@pytest.mark.parametrize("way", [one for one in WAYS if one not in ("compiled in parts", "compiled by inductor")])
def test_a_shared_module_follows_the_rules_of_the_path_of_its_call(converted: Converter, way: str) -> None:
    model = network()
    steer(converted, "every", model, "right.inner")
    called = WAYS[way](model)
    assert precisions(called(inputs())) == [LOWERED, LOWERED, LOWERED, STEERED["every"]]


@every_way
def test_a_module_that_is_called_alone_before_it_becomes_a_part_of_a_larger_one(converted: Converter, how: str) -> None:
    part, model = Part(), network()
    steer(converted, how, model, "layers.1")
    assert precisions([part(inputs())]) == [LOWERED]
    if how not in BY_PATH:
        options_for(how, nn.Sequential(part), "0")
    model.layers[1] = part
    assert precisions([part(inputs())]) == [STEERED[how]]


@every_way
@pytest.mark.parametrize(("use_reentrant", "of"), [(True, "part"), (False, "block")])
def test_a_recomputation_follows_the_rules_of_its_forward(
    converted: Converter, how: str, use_reentrant: bool, of: str
) -> None:
    model = network()
    steer(converted, how, model, "right.inner" if how in BY_PATH else "layers.1")
    part = model.right.inner if how in BY_PATH else model.layers[1]
    part.seen = []

    def run(holder: nn.Module) -> Any:
        x = inputs().requires_grad_()
        if of == "part":
            return checkpoint(holder, x, use_reentrant=use_reentrant)
        return checkpoint(lambda y: holder(y), x, use_reentrant=use_reentrant)

    holder = model.right if how in BY_PATH else model.layers[1]
    whole = Calls(lambda: run(holder), **dict(model.named_children()))
    with set_checkpoint_early_stop(False):
        product, probabilities = whole()
    assert part.seen == [STEERED[how]]
    (product.float().sum() + probabilities.float().square().sum()).backward()
    assert part.seen == [STEERED[how]] * 2
    assert getattr(part.proj.weight.grad, "dtype", None) is FP32


def test_the_backward_of_a_module_has_the_precision_of_its_forward(converted: Converter) -> None:
    model = network()
    steer(converted, "every", model, "layers.1")
    x = inputs().requires_grad_()
    exact = torch.autograd.grad(model.layers[1](x)[0].sum(), model.layers[1].proj.weight)[0]
    hmp.restore()
    assert torch.equal(exact, torch.autograd.grad(model.layers[1](x)[0].sum(), model.layers[1].proj.weight)[0])


def test_an_exception_in_a_module_leaves_the_rules_outside_as_they_were(converted: Converter) -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        assert torch.softmax(x, -1).dtype is FP32
        raise KeyError("inside")

    def catches(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(KeyError):
            inner(x)
        return torch.softmax(x, -1)

    inner = Calls(raises)
    converted(bf16=["softmax"], rules={"* @ inner": "fp32"})
    assert Calls(catches, inner=inner)(inputs()).dtype is BF16
    assert torch.softmax(inputs(), -1).dtype is BF16


def test_other_rules_compile_again(converted: Converter) -> None:
    model = network()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for how, path in (("every", "layers.1"), ("operation", "layers.0"), ("every", "right")):
        steer(converted, how, model, path)
        place = ["layers.0", "layers.1", "left", "right"].index(path)
        expected = [LOWERED] * 4
        expected[place] = STEERED[how]
        assert precisions(compiled(inputs())) == expected
    hmp.restore()
    assert precisions(compiled(inputs())) == [(FP32, FP32)] * 4


def test_equal_modules_that_are_compiled_alike_follow_their_own_rules(converted: Converter) -> None:
    model = nn.ModuleList([Holder(Part()), Holder(Part())])
    for block in model:
        block.compile(backend="eager", fullgraph=True)
    whole = Calls(lambda x: [block(x) for block in model], blocks=model)
    converted(bf16=["linear", "softmax"], rules={"* @ blocks.1.inner": "fp32"})
    assert precisions(whole(inputs())) == [LOWERED, STEERED["every"]]
    converted(bf16=["linear", "softmax"], rules={"* @ blocks.0.inner": "fp32"})
    assert precisions(whole(inputs())) == [STEERED["every"], LOWERED]
    converted(bf16=["linear", "softmax"], rules={})
    hmp.keep(model[1].inner)
    assert precisions(whole(inputs())) == [LOWERED, STEERED["keep"]]


def test_a_region_has_rules_of_its_own(converted: Converter, tmp_path: Any) -> None:
    model = network()
    lower = write_list(tmp_path / "lower.txt", ["linear", "softmax"])
    converted(bf16=["linear"], rules={"* @ layers.0": "fp32"})
    with hmp.autocast("cpu", bf16_file_path=lower, rules={"* @ layers.1": "fp32"}):
        assert precisions(model(inputs())) == [LOWERED, STEERED["every"], LOWERED, LOWERED]
    assert precisions(model(inputs())) == [(FP32, FP32), (BF16, FP32), (BF16, FP32), (BF16, FP32)]


def test_regions_that_differ_in_rules_alone_are_two() -> None:
    model = network()
    for _ in range(2):
        with hmp.autocast("cpu", rules={"linear @ layers.1": "fp32"}):
            assert model(inputs())[1][0].dtype is FP32
            with hmp.autocast("cpu"):
                assert model(inputs())[1][0].dtype is BF16
            with hmp.autocast("cpu", rules={"linear @ layers.0": "fp32"}):
                assert [part[0].dtype for part in model(inputs())] == [FP32, BF16, BF16, BF16]


def test_a_new_region_in_a_module_leaves_the_rules_around_it(tmp_path: Any) -> None:
    lower = write_list(tmp_path / "lower.txt", ["tanh"])

    def enters(x: torch.Tensor) -> Any:
        before = part(x)
        with hmp.autocast("cpu", bf16_file_path=lower, rules={"linear @ inner.part": "fp16"}):
            inside = part(x)
        hmp.keep(Part())
        return before, inside, (part(x)[0], torch.softmax(x, -1))

    part = Part()
    inner = Calls(enters, part=part)
    whole = Calls(lambda x: (*inner(x), (x @ x.T, torch.softmax(x, -1))), inner=inner)
    hmp.convert(
        preset="recommended",
        results="as computed",
        rules={"softmax": "lower", "* @ inner": "fp32", "matmul @ Calls": "fp16"},
    )
    found = precisions(whole(inputs()))
    assert found == [(FP32, FP32), (torch.float16, FP32), (FP32, FP32), (torch.float16, BF16)]


@pytest.mark.parametrize("how", ["operation", "every", "keep"])
def test_within_modules_rules_hold_where_the_lists_do(how: str) -> None:
    model = network()
    if how == "keep":
        hmp.keep(model.layers[1])
    rules = {"operation": {"linear @ layers.1": "fp32"}, "every": {"* @ layers.1": "fp32"}, "keep": None}[how]
    hmp.convert(preset="recommended", results="as computed", within="modules", rules=rules)
    assert [one[0].dtype for one in model(inputs())] == [BF16, FP32, BF16, BF16]
    hmp.convert(preset="recommended", results="as computed", within=model.left, rules={"linear @ layers.1": "bf16"})
    assert [one[0].dtype for one in model(inputs())] == [FP32, FP32, BF16, FP32]


def test_under_o2_rules_hold_and_under_o0_nothing_is_cast() -> None:
    model = network()
    hmp.convert("O2", rules={"linear @ layers.1": "fp32", "softmax @ layers.0": "bf16"})
    assert precisions(model(inputs())) == [(BF16, BF16), (FP32, FP32), (BF16, FP32), (BF16, FP32)]
    with pytest.warns(hmp.HmpWarning, match="the rules are ignored"):
        hmp.convert("O0", rules={"* @ layers": "bf16"})
    assert precisions(model(inputs())) == [(FP32, FP32)] * 4


def test_a_rule_lowers_in_one_module_only(converted: Converter) -> None:
    converted(rules={"linear @ layers.0": "lower", "* @ right": "fp16"})
    both = (torch.float16, torch.float16)
    assert precisions(network()(inputs())) == [(BF16, FP32), (FP32, FP32), (FP32, FP32), both]


def test_disabled_casts_and_the_rules_of_state_go_before_rules_of_modules(converted: Converter) -> None:
    model = network()
    converted(bf16=["linear", "softmax"], rules={"* @ layers.1": "bf16"})
    with hmp.disable_casts():
        assert precisions(model(inputs())) == [(FP32, FP32)] * 4
    with torch.autocast("cpu", enabled=False):
        assert precisions(model(inputs())) == [(FP32, FP32)] * 4


class Sliced(nn.Module):
    """Takes a slice of its layers in each forward, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        return x


@pytest.mark.filterwarnings("ignore:.*has no effect")  # the pattern matches only later
def test_a_slice_that_becomes_part_of_a_model_gives_its_layers_a_place_there(converted: Converter) -> None:
    model, x = Sliced(), torch.randn(2, 8)
    converted(bf16=["linear"], rules={"linear @ kept.**": "fp32"})
    assert model.layers[0](x).dtype is BF16
    taken = model.layers[:2]
    assert model.layers[0](x).dtype is BF16
    other = nn.Module()
    other.kept = taken
    with pytest.warns(HmpWarning, match="Module.kept.0 and Sliced.layers.0 are one module"):
        assert taken[0](x).dtype is FP32
    assert model(x).dtype is BF16
