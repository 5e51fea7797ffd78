"""The rules in a module depend on the objects that run, not on what ran before, on other models, or on their order."""

from __future__ import annotations

import gc
import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from habana_mp import HmpWarning, _core, hmp
from helpers.models import Calls

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.ones(4, 8)


class Net(nn.Module):
    """Runs a layer of its own, and modules that it holds in a list that torch does not know."""

    def __init__(self, *others: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.others = list(others)

    def forward(self, x: torch.Tensor) -> list[torch.dtype]:
        return [self.layer(x).dtype, *itertools.chain(*(other(x) for other in self.others))]


class Teacher(Net):
    pass


class Student(Net):
    pass


class Shares(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: torch.Tensor) -> list[torch.dtype]:
        return self.encoder(x)  # type: ignore[no-any-return]  # torch does not type it


class First(Shares):
    pass


class Second(Shares):
    pass


def test_modules_outside_of_the_tree_have_rules_of_their_own() -> None:
    hmp.convert(rules={"linear @ Teacher": "fp32"})
    for order in ((Teacher, Net), (Net, Teacher)):
        student = Student(*(kind() for kind in order))
        expected = [FP32 if kind is Teacher else BF16 for kind in order]
        assert student(X) == student(X) == [BF16, *expected]
        assert [*itertools.chain(*(other(X) for other in student.others))] == expected


def test_two_teachers_of_one_class_are_kept_apart() -> None:
    hmp.convert()
    teachers = [Teacher(), hmp.keep(Teacher()), Teacher()]
    assert Student(*teachers)(X) == [BF16, BF16, FP32, BF16]


def test_a_new_model_does_not_have_the_rules_of_a_dropped_one() -> None:
    hmp.convert(rules={"linear @ Net.layer": "fp32"})
    assert Net()(X) == [FP32]
    gc.collect()

    other, outer = type("Net", (Calls,), {}), nn.Linear(8, 8)
    assert other(lambda x: outer(x), outer=outer)(X).dtype is BF16


def _models(encoder: nn.Module) -> dict[str, Callable[[], list[torch.dtype]]]:
    first, second = First(encoder), Second(encoder)
    return {"first": lambda: first(X), "second": lambda: second(X), "alone": lambda: list(encoder(X))}


ORDERS = list(itertools.permutations(("first", "second", "alone")))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_part_that_two_models_share_has_the_rules_of_the_one_that_runs(order: tuple[str, ...]) -> None:
    hmp.convert(rules={"linear @ First.encoder": "fp32"})
    models = _models(Net())
    expected = [[BF16] if name == "second" else [FP32] for name in order]
    with pytest.warns(HmpWarning, match=r"First.encoder and Second.encoder are one module") as warned:
        assert [models[name]() for name in (*order, *order)] == expected * 2
    assert len(warned) == 1


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_part_of_a_kept_model_and_of_another_one(order: tuple[str, ...]) -> None:
    hmp.convert()
    models = _models(encoder := Net())
    hmp.keep(First)
    try:
        expected = [[BF16] if name == "second" else [FP32] for name in order]
        with pytest.warns(HmpWarning, match="Net runs in float32: it was called alone") as warned:
            assert [models[name]() for name in (*order, *order)] == expected * 2
        assert len(warned) == 1
        hmp.keep(encoder, "bf16")
        assert [models[name]() for name in order] == [[BF16]] * 3
    finally:
        hmp.keep(First, precision=None)


def test_each_class_of_parts_that_models_keep_in_different_precisions_is_warned_of() -> None:
    class Another(Net):
        pass

    hmp.convert()
    holders = [(First(part), Second(part), part) for part in (Net(), Another())]
    for first, second, part in holders:
        hmp.keep(first)
        hmp.keep(second, "bf16")
        with pytest.warns(HmpWarning, match=f"{type(part).__name__} runs in float32"):
            part(X)


def test_models_whose_lines_agree_raise_no_warning() -> None:
    hmp.convert(rules={"linear @ *.encoder": "fp32"})
    models = _models(Net())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hmp.convert(rules={"linear @ encoder": "fp32"})
        assert [model() for model in models.values()] == [[FP32]] * 3


def test_a_module_that_calls_itself_is_known_once() -> None:
    def recursive(x: torch.Tensor, depth: int) -> list[torch.dtype]:
        return [layer(x).dtype] + (model(x, depth - 1) if depth else [])

    hmp.convert(rules={"linear @ layer": "fp32"})
    layer = nn.Linear(8, 8)
    model = Calls(recursive, layer=layer)
    model(X, 1)
    known = _core.watch_sizes()["modules"]
    assert model(X, 30) == [FP32] * 31
    assert _core.watch_sizes()["modules"] == known


def test_modules_that_a_forward_makes_are_forgotten() -> None:
    hmp.convert(rules={"linear @ layer": "fp32"})
    layer = nn.Linear(8, 8)
    model = Calls(lambda x: nn.Sequential(nn.ReLU(), layer)(x).dtype, layer=layer)
    assert {model(X) for _ in range(1000)} == {FP32}
    assert _core.watch_sizes()["modules"] < 1000


# ---- models that change ----------------------------------------------------------------------------------------------


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb, self.dec = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> list[torch.dtype]:
        return [self.emb(x).dtype, self.dec(x).dtype]


def _tie(model: Decoder) -> None:
    model.dec = model.emb


def _untie(model: Decoder) -> None:
    model.dec = nn.Linear(8, 8)


@pytest.mark.parametrize("ran_before", [False, True])
def test_a_second_name_counts_from_when_it_is_given_until_it_is_taken(ran_before: bool) -> None:
    hmp.convert(preset="recommended", rules={"* @ dec": "fp32"})
    model = Decoder()
    for change, expected in ((_tie, [FP32, FP32]), (_untie, [BF16, FP32]), (_tie, [FP32, FP32])):
        if ran_before:
            model(X)
        change(model)
        assert model(X) == expected


@pytest.mark.parametrize("ran_before", [False, True])
@pytest.mark.parametrize("how", ["dropped", "replaced"])
def test_a_part_whose_model_lets_it_go_is_a_model_of_its_own(how: str, ran_before: bool) -> None:
    hmp.convert(preset="recommended", results="as computed")
    model = hmp.keep(nn.Sequential(nn.Linear(8, 8)))
    part = model[0]
    if ran_before:
        assert part(X).dtype is FP32
    if how == "dropped":
        del model
        gc.collect()
    else:
        model[0] = nn.Linear(8, 8)
    assert part(X).dtype is BF16


def test_a_module_that_is_being_made_disturbs_no_forward() -> None:
    class Wrapper(nn.Module):
        def __init__(self, net: nn.Module) -> None:
            self.dtype = net(X).dtype  # before torch has made it a module
            super().__init__()
            self.net = net

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hmp.convert(preset="recommended", results="as computed", rules={"* @ head": "fp32"})
        assert Wrapper(nn.Sequential(nn.Linear(8, 8))).dtype is BF16


def test_a_warning_is_given_once_however_many_modules_are_kept() -> None:
    hmp.convert(preset="recommended", rules={"* @ nowhere": "fp32"})
    modules = [nn.Linear(8, 8) for _ in range(3)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for one in modules:
            hmp.keep(one)
            one(X)
    assert [one.category for one in warned] == [HmpWarning]
