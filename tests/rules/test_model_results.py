"""Results of models under `results="fp32"`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from helpers.each import each


class Pair(NamedTuple):
    first: Tensor
    second: Tensor | None


@dataclass
class Output:
    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    cache: object = None


class Cache:
    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Model(nn.Module):
    """Returns what `make` makes of the product."""

    def __init__(self, make: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.make = make

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Any:
        return self.make(self.linear(x))


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in tensors(part)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return tensors([value.logits, value.hidden]) if isinstance(value, Output) else []


CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "a tensor": lambda x: x,
    "a tuple": lambda x: (x, x + 1, 3, None),
    "a list of lists": lambda x: [[x], [x, [x * 2]]],
    "a named tuple": lambda x: Pair(x, None),
    "a dict": lambda x: {"logits": x, "all": (x, x)},
    "a dataclass": lambda x: Output(x, (x, x + 1)),
    "a structure of torch": lambda x: x.max(1),
}


@pytest.mark.parametrize("within", ["modules", "everywhere"])
@each("name", CONTAINERS)
def test_tensors_in_containers_become_float32_each_once(within: Any, name: str) -> None:
    model, x = Model(CONTAINERS[name]), torch.randn(3, 8)
    hmp.convert(preset="recommended", within=within, results="as computed")
    computed = model(x)
    hmp.convert(preset="recommended", within=within, results="fp32")
    for result in (model(x), torch.compile(model, backend="eager")(x)):
        assert type(result) is type(computed)
        floating = [one for one in tensors(result) if one.is_floating_point()]
        assert floating
        assert {one.dtype for one in floating} == {torch.float32}
        expected = [one for one in tensors(computed) if one.is_floating_point()]
        assert [one.tolist() for one in floating] == [one.tolist() for one in expected]
        same = [[one is other for other in floating] for one in floating]
        assert same == [[one is other for other in expected] for one in expected]
        assert all(one.requires_grad for one in floating)


def test_what_the_model_holds_is_not_written_to() -> None:
    model = Model()
    kept: dict[str, Any] = {}

    def make(x: Tensor) -> Any:
        kept.update(logits=x, cache=Cache(x))
        return kept

    model.make = make
    seen = []
    model.register_forward_hook(lambda module, args, result: seen.append(result["logits"].dtype))
    hmp.convert(preset="recommended")
    result = model(torch.randn(3, 8))
    assert result["logits"].dtype is torch.float32
    assert kept["logits"].dtype is torch.bfloat16
    assert result["cache"] is kept["cache"]
    assert kept["cache"].keys.dtype is torch.bfloat16
    assert seen == [torch.bfloat16]


class Refusing(list[Any]):
    def __init__(self, one: Any, other: Any) -> None:
        super().__init__([one, other])

    def __setitem__(self, *_: Any) -> None:
        raise TypeError("it refuses")


def test_no_container_makes_a_call_fail() -> None:
    def circle(x: Tensor) -> Any:
        made: dict[str, Any] = {"x": x}
        made["again"] = [made]
        return made

    hmp.convert(preset="recommended")
    found = Model(circle)(torch.randn(3, 8))
    assert found["x"].dtype is torch.float32
    assert found["again"][0]["x"] is not None
    refused = Model(lambda x: Refusing(x, 3))(torch.randn(3, 8), found)
    assert type(refused) is Refusing
    assert refused[0].dtype is torch.bfloat16
    twice = Model(lambda x: (shared := [x], shared))(torch.randn(3, 8))
    assert twice[0] is twice[1]


def test_what_the_model_writes_into_its_arguments_does_not_count() -> None:
    class Filling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 4)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            batch["out"] = self.linear(batch["x"])
            return batch["out"]

    hmp.convert(preset="recommended")
    assert Filling()({"x": torch.randn(3, 8)}).dtype is torch.float32
    assert torch.compile(Filling(), backend="eager")({"x": torch.randn(3, 8)}).dtype is torch.float32


@each("name", CONTAINERS)
def test_a_model_may_restore(name: str) -> None:
    def make(x: Tensor) -> Any:
        hmp.restore()
        return CONTAINERS[name](x)

    hmp.convert(preset="recommended")
    result = Model(make)(torch.randn(3, 8))
    assert {one.dtype for one in tensors(result) if one.is_floating_point()} == {torch.float32}


def test_a_model_in_lower_precision_stays_what_it_is() -> None:
    x = torch.randn(3, 8)
    hmp.convert(preset="recommended")
    lower = Model().bfloat16()
    assert lower(x.bfloat16()).dtype is torch.bfloat16
    assert lower(x).dtype is torch.bfloat16  # its Parameters are in bfloat16
    assert Model()(x.bfloat16()).dtype is torch.bfloat16
    assert Model()(x, {"state": [x.bfloat16()]}).dtype is torch.bfloat16
    assert Model()(x, state=(x,)).dtype is torch.float32
    half = nn.Sequential(Model(), nn.Linear(4, 4).bfloat16())
    assert half(x).dtype is torch.bfloat16
    assert half[0](x).dtype is torch.float32


def test_only_the_outermost_module_converts() -> None:
    dtypes = []

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.inner(x)
            dtypes.append(made.dtype)
            return made

    model, x = Outer(), torch.randn(3, 8)
    hmp.convert(preset="recommended")
    assert model(x).dtype is torch.float32
    with pytest.raises(TypeError):
        model(x, x)
    assert model(x).dtype is torch.float32
    assert dtypes == [torch.bfloat16] * 2
    hmp.convert(preset="recommended", within=model.inner)
    assert model(x).dtype is torch.float32
    assert dtypes.pop() is torch.float32
    hmp.convert(preset="recommended", rules={"linear @ inner": "lower"}, report="lines")
    assert model(x).dtype is torch.float32
    assert dtypes.pop() is torch.bfloat16
    with hmp.autocast("cpu"):
        assert model(x).dtype is torch.bfloat16


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("within", ["modules", "everywhere"])
def test_a_checkpoint_converts_what_its_first_run_converted(within: Any, reentrant: bool) -> None:
    block, seen = Model(), []
    block.register_forward_hook(lambda module, args, result: seen.append(result.dtype))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: Tensor) -> Tensor:
            made: Any = checkpoint(self.block, x, use_reentrant=reentrant)
            assert made.dtype is torch.bfloat16
            return made  # type: ignore[no-any-return]  # a tensor

    hmp.convert(preset="recommended", within=within, results="fp32")
    for call in (Outer(), lambda x: checkpoint(block, x, use_reentrant=reentrant)):
        x = torch.randn(3, 8, requires_grad=True)
        made: Any = call(x)  # type: ignore[operator]  # a model or a function
        assert made.dtype is torch.float32
        made.square().sum().backward()
        plain = x.detach().clone().requires_grad_()
        block(plain).square().sum().backward()
        assert torch.equal(x.grad, plain.grad)  # type: ignore[arg-type]  # it has one


def test_numpy_works_after_restore_and_the_report_counts() -> None:
    model = Model(lambda x: (x, x))
    hmp.convert(preset="recommended")
    hmp.reset_report()
    with torch.no_grad():
        result = model(torch.randn(3, 8))[0]
    report = hmp.report(show=False)
    hmp.restore()
    assert result.numpy().dtype == "float32"
    assert report.results == (1, 48)
    assert "results that left a model as float32: 1 (0.000 MB)" in str(report)
    assert type(report).from_dict(report.to_dict()).results == (1, 48)
    hmp.reset_report()
    assert hmp.report(show=False).results == (0, 0)


def test_options_and_defaults() -> None:
    model, x = Model(), torch.randn(3, 8)
    for options, dtype in (
        ({"preset": "recommended"}, torch.float32),
        ({"preset": "recommended", "results": "as computed"}, torch.bfloat16),
        ({"preset": "torch-cpu"}, torch.bfloat16),
        ({}, torch.bfloat16),
        ({"results": "fp32"}, torch.float32),
        ({"preset": "recommended", "dtype": "fp16"}, torch.float32),
    ):
        hmp.convert(**options)  # type: ignore[arg-type]  # of any type
        assert model(x).dtype is dtype
        assert copy.deepcopy(model)(x).dtype is dtype
    with pytest.raises(ValueError, match='must be None, "fp32" or "as computed"; got'):
        hmp.convert(results="bf16")
    hmp.restore()
    assert model(x).dtype is torch.float32


def test_ctrl_c_while_the_arguments_are_looked_at_is_raised() -> None:
    class Batch(dict[str, Tensor]):
        def values(self) -> Any:
            raise KeyboardInterrupt

    class OfBatches(Model):
        def forward(self, batch: Batch) -> Tensor:
            return super().forward(batch["x"])

    hmp.convert(preset="recommended")
    model = OfBatches()
    with pytest.raises(KeyboardInterrupt):
        model(Batch(x=torch.ones(2, 8)))
