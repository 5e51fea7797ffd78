"""What a user calls of this package, each as a piece of work that is made again and again while memory runs out."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp

_TEMPORARY = tempfile.TemporaryDirectory(prefix="habana_mp_trust_")
_FOLDER = Path(_TEMPORARY.name)


#: Lines for one module of `_Model`, and for all that it calls.
_RULES = {"linear @ first": "fp32", "* @ second": "fp32", "relu": "lower"}


def _nothing() -> None:
    return None


def _convert(**options: Any) -> None:
    hmp.convert("O1", **options)


@dataclass
class Entry:
    """A piece of work. ``run`` is called with the result of ``prepare`` for each attempt. ``begin`` and ``end`` are
    called before and after all attempts."""

    name: str
    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = _nothing
    begin: Callable[[], None] = _convert
    end: Callable[[], None] = hmp.restore
    #: Puts an attempt's changes back, also those of one that failed.
    clean: Callable[[], None] = _nothing
    #: True if an attempt that fails leaves torch as it was before.
    is_whole: bool = False
    #: The largest number of attempts in the short form, if each takes long.
    most: int | None = None
    #: CPython may lose this many blocks of memory in an attempt: those of a frame and of all that it holds.
    lost_blocks: int = 20
    #: Returns the tensors and modules of a state that must be freed after its attempt.
    tensors: Callable[[Any], Iterable[Any]] = field(default=lambda state: ())


def _matrices() -> tuple[torch.Tensor, torch.Tensor]:
    with hmp.disable_casts():
        return torch.ones(4, 8), torch.ones(8, 4)


def _layer(inner: int = 8, outer: int = 8) -> tuple[nn.Linear, torch.Tensor]:
    with hmp.disable_casts():
        layer = nn.Linear(inner, outer)
        with torch.no_grad():
            layer.weight.fill_(0.5)
            layer.bias.fill_(0.25)
        return layer, torch.ones(4, inner)


def _of_layer(state: tuple[nn.Linear, torch.Tensor]) -> list[Any]:
    return [*state[0].parameters(), state[1]]


def _call(state: tuple[nn.Linear, torch.Tensor]) -> torch.Tensor:
    layer, x = state
    with torch.no_grad():
        return layer(x)


def _call_often(state: tuple[nn.Linear, torch.Tensor]) -> torch.Tensor:
    for _ in range(7):
        result = _call(state)
    return result


def _train(state: tuple[nn.Linear, torch.Tensor]) -> torch.Tensor:
    layer, x = state
    layer.zero_grad()
    result = layer(x)
    result.float().sum().backward()
    return result.detach()


def _add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def _operations(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Functions, bound methods, keywords, lists of tensors, operations in place, a subscript."""
    a, b = state
    product = torch.mm(a, b)
    multiply = a.matmul
    both = torch.cat([multiply(b), a.mm(mat2=b)])
    both[0] = 3.5
    both += 1.0
    picked = both[[0, 0, 1]]
    return torch.softmax(torch.stack((picked[:2], product[:2])), dim=-1).exp().sum(0)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


def _model() -> tuple[_Model, torch.Tensor]:
    with hmp.disable_casts(), torch.no_grad():
        model = _Model()
        for number, parameter in enumerate(model.parameters(), 1):
            parameter.fill_(number / 8)
        return model, torch.ones(4, 8)


def _kept_model() -> tuple[_Model, torch.Tensor]:
    model, x = _model()
    hmp.keep(model.second)
    return model, x


def _run_model(state: tuple[_Model, torch.Tensor]) -> torch.Tensor:
    model, x = state
    result: torch.Tensor = model(x)
    result.float().sum().backward()
    return result.detach()


def _of_model(state: tuple[_Model, torch.Tensor]) -> list[Any]:
    return [state[0], *state[0].parameters(), state[1]]


def _divide_by_zero(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The guard finds the division, and says so."""
    a, b = state
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.mm(a, b) + (a / torch.zeros(4, 8)).sum()


def _observer(function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _core.make_observed_call()


def _begin_observer() -> None:
    _convert()
    _core.observe_calls(_observer)


def _end_observer() -> None:
    _core.observe_calls(None)
    hmp.restore()


def _diagnose(state: tuple[_Model, torch.Tensor]) -> int:
    model, x = state
    return len(hmp.diagnose(lambda: model(x).float().square().mean()).findings)


def _construct(_: None) -> None:
    model = _Model()
    assert all(one.dtype is torch.float32 for one in model.parameters())


def _look_at_frozen(_: None) -> tuple[bool, bool]:
    is_found = any(one is Entry for one in _core.objects_with_frozen())
    return is_found, gc.get_freeze_count() > 1000


def _region(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with hmp.autocast("cpu", dtype=torch.float16):
        inside = torch.mm(*state)
        with hmp.autocast("cpu", enabled=False):
            outside = torch.mm(*state)
    assert inside.dtype is torch.float16
    assert outside.dtype is torch.float32
    return inside + torch.mm(*state)


def _torch_autocast(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        inside = torch.mm(*state)
    assert inside.dtype is torch.float32
    return inside + torch.mm(*state)


def _casts_off(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with hmp.disable_casts():
        inside = torch.mm(*state)
    assert inside.dtype is torch.float32
    return inside + torch.mm(*state)


def _wrap(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    wrapped = hmp.op_wrap(_add, to="bf16")
    result = wrapped(state[0], state[0])
    assert result.dtype is torch.bfloat16
    return result


def _report(_: None) -> int:
    report = hmp.report(show=False)
    text = str(report)
    report.to_dict()
    report.to_json(_FOLDER / "report.json")
    report.to_html(_FOLDER / "report.html")
    return len(report) + bool(text)


def _counted(state: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    hmp.reset_report()
    return _operations(state)


def _begin_report(detail: Any) -> Callable[[], None]:
    def begin() -> None:
        _convert(report=detail)
        _operations(_matrices())
        _train(_layer())
        _call(_layer())

    return begin


def _begin_log(kind: str) -> Callable[[], None]:
    def begin() -> None:
        if kind == "python":
            logger = logging.getLogger("habana_mp.trust")
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.handlers = [logging.StreamHandler(open(os.devnull, "w", encoding="utf-8"))]  # noqa: SIM115
            _convert(log=logger)
        else:
            _convert(log=_FOLDER / f"log.{kind}", isVerbose="why")

    return begin


def _optimizer(make: Callable[[Any], Any]) -> Callable[[], Any]:
    def prepare() -> Any:
        layer, x = _layer()
        _train((layer, x))
        _call((layer, x))
        return layer, x, make(layer.parameters())

    return prepare


def _step(state: tuple[nn.Linear, torch.Tensor, torch.optim.Optimizer]) -> None:
    layer, x, optimizer = state
    optimizer.step()
    with torch.no_grad():
        result = layer(x)
    # Also after a failed attempt, the cached casts must have the weights' values.
    expected = F.linear(x.bfloat16(), layer.weight.detach().clone().bfloat16(), layer.bias.detach().bfloat16())
    assert torch.equal(result, expected)


def _escape(state: tuple[nn.Linear, torch.Tensor]) -> torch.Tensor:
    """The weight is cast, its memory gets elsewhere and is written there, and it is cast again."""
    layer, _ = state
    _call(state)
    array = layer.weight.detach().numpy()
    array[:] = 2.0
    first = _call(state)
    torch.from_dlpack(layer.weight.detach()).fill_(0.5)
    second = _call(state)
    layer.weight.data = torch.full((8, 8), 0.5)
    return first + second + _call(state)


def _restore_and_check(_: None) -> None:
    hmp.restore()
    assert not hmp.is_converted()


def _convert_o1(_: None) -> None:
    hmp.convert("O1")
    assert hmp.is_converted()


def _convert_again(_: None) -> None:
    hmp.convert("O1", preset="hmp-guide-o1", report="modules", within="modules", rules=_RULES, guard=1.0)
    assert hmp.is_converted()


def _assume_packing(form: str) -> Callable[[], None]:
    def begin() -> None:
        _convert()
        if "packed" in _core.accelerators:
            _core.weights_assume_packing(form)

    return begin


def _end_packing() -> None:
    if "packed" in _core.accelerators:
        _core.weights_assume_packing("measured")
    hmp.restore()


ENTRIES = [
    Entry("a call with casts", _operations, _matrices, tensors=list),
    Entry("kept weights", _call, _layer, tensors=_of_layer),
    Entry("recorded", _train, _layer, tensors=_of_layer),
    Entry("memory of weights elsewhere", _escape, _layer, tensors=_of_layer),
    *(
        Entry(
            f"packed weights: {form}",
            _call_often,
            lambda: _layer(256, 128),
            _assume_packing(form),
            _end_packing,
            tensors=_of_layer,
            most=120,
        )
        for form in ("library", "panels in any order")
    ),
    Entry("construction", _construct),
    Entry("frozen objects", _look_at_frozen, begin=gc.freeze, end=gc.unfreeze),
    Entry("op_wrap", _wrap, _matrices, tensors=list),
    Entry("regions", _region, _matrices, tensors=list),
    Entry("regions without convert", _region, _matrices, _nothing, tensors=list, clean=hmp.restore, most=40),
    Entry("torch.autocast", _torch_autocast, _matrices, tensors=list),
    Entry("disable_casts", _casts_off, _matrices, tensors=list),
    *(
        Entry(f"report: {detail}", _report, _nothing, _begin_report(detail), most=60)
        for detail in ("operations", "modules", "lines")
    ),
    *(
        Entry(f"counted by {detail}", _counted, _matrices, _begin_report(detail), tensors=list)
        for detail in ("modules", "lines")
    ),
    *(
        Entry(f"log: {kind}", _operations, _matrices, _begin_log(kind), tensors=list)
        for kind in ("txt", "jsonl", "python")
    ),
    *(
        Entry(f"step: {name}", _step, _optimizer(make), tensors=lambda state: _of_layer(state[:2]))
        for name, make in {
            "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
            "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
        }.items()
    ),
    Entry(
        "rules by module",
        _run_model,
        _model,
        lambda: _convert(rules=_RULES),
        tensors=_of_model,
        most=12,
        lost_blocks=100,
    ),
    Entry("a kept module", _run_model, _kept_model, tensors=_of_model, most=12, lost_blocks=100),
    Entry("guard", _run_model, _model, lambda: _convert(guard=1.0), tensors=_of_model, most=12, lost_blocks=100),
    Entry("guard that finds a value", _divide_by_zero, _matrices, lambda: _convert(guard=1.0), tensors=list, most=60),
    Entry(
        "observed calls",
        _run_model,
        _model,
        _begin_observer,
        _end_observer,
        tensors=_of_model,
        most=12,
        lost_blocks=100,
    ),
    Entry("diagnosis", _diagnose, _model, tensors=_of_model, most=12, lost_blocks=300),
    Entry("convert", _convert_o1, begin=_nothing, is_whole=True, clean=hmp.restore, most=12),
    Entry("a second convert", _convert_again, _convert, _nothing, clean=hmp.restore, most=12),
    Entry("restore", _restore_and_check, _convert, _nothing, clean=hmp.restore, most=12),
]
