"""Which module a call belongs to: its path, whoever calls it and whenever it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from habana_mp import Report, hmp
from helpers.models import Calls
from helpers.processes import in_threads
from helpers.watching import paths

X = torch.linspace(-1, 1, 32).reshape(4, 8)

pytestmark = pytest.mark.usefixtures("counted")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).softmax(-1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.fixture
def watched() -> Iterator[Callable[[], Report]]:
    """The calls are recorded; a function that gives the report."""
    hmp.convert(report="modules")
    return lambda: hmp.report(show=False)


def test_a_path_is_the_class_of_the_root_and_names_of_attributes(watched: Any) -> None:
    Net()(X)
    assert paths(watched()) == {
        "Net.blocks.0": {"softmax"},
        "Net.blocks.0.linear": {"linear"},
        "Net.blocks.1": {"softmax"},
        "Net.blocks.1.linear": {"linear"},
        "Net.head": {"linear"},
    }
    modules = {one.path: (one.kind, one.calls) for one in watched().modules}
    assert modules["Net"] == ("Net", 1)
    assert modules["Net.blocks.1.linear"] == ("Linear", 1)


def test_two_models_of_one_class_are_told_apart_while_both_live(watched: Any) -> None:
    first, second = Block(), Block()
    first(X), second(X), first(X)
    assert {one.path: one.calls for one in watched().modules if "." not in one.path} == {"Block": 2, "Block#2": 1}


def test_a_model_in_the_place_of_one_that_has_gone_has_its_name(watched: Any) -> None:
    for _ in range(3):
        Block()(X)
    assert {one.path: one.calls for one in watched().modules} == {"Block": 3, "Block.linear": 3}


def test_a_shared_module_has_the_path_of_whoever_calls_it(watched: Any) -> None:
    pair = nn.Sequential(Block(), Block())
    pair[1].linear = pair[0].linear
    pair(X)
    assert {"Sequential.0.linear", "Sequential.1.linear"} <= paths(watched()).keys()


def test_a_part_that_is_called_by_itself_keeps_the_path_that_it_has_in_its_model(watched: Any) -> None:
    model = Net()
    model(X)
    hmp.reset_report()
    model.blocks[1](X)
    assert paths(watched()) == {"Net.blocks.1": {"softmax"}, "Net.blocks.1.linear": {"linear"}}


def test_a_module_that_no_attribute_names_has_its_class_for_a_name(watched: Any) -> None:
    Calls(lambda x: nn.Softmax(-1)(x))(X)
    assert paths(watched()) == {"Calls.<Softmax>": {"softmax"}}


def test_a_module_that_raises_is_left(watched: Any) -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        inner(x)
        raise ValueError("on purpose")

    inner = Block()
    with pytest.raises(ValueError, match="on purpose"):
        Calls(fail, inner=inner)(X)
    with pytest.raises(RuntimeError):
        Block()(X[:, :3])
    torch.mm(X, X.t())
    assert paths(watched())[None] == {"mm"}
    assert {one.path: one.calls for one in watched().modules}["Calls"] == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_block_that_runs_again_in_the_backward_has_its_path(watched: Any, use_reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = checkpoint(
                    lambda value, block=block: block.linear(value).softmax(-1), x, use_reentrant=use_reentrant
                )
            return self.head(x)

    Checkpointed()(X.clone().requires_grad_()).sum().backward()
    expected = {"Checkpointed.blocks.0.linear", "Checkpointed.blocks.1.linear"}
    for phase, times in (("forward", 1), ("backward", 1)):
        rows = [row for row in watched() if row.phase == phase and row.operation == "linear"]
        assert {row.module for row in rows} >= expected, phase
        assert {row.calls for row in rows} == {times}
    assert {row.module for row in watched() if row.operation == "softmax"} == {"Checkpointed"}


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return torch.addcmul(torch.zeros_like(x), gradients[0], 3 * x * x)


def test_what_a_gradient_calls_belongs_to_the_module_that_recorded_it(watched: Any) -> None:
    class Powers(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(Cubed.apply(x))

    class Power(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Cubed.apply(x)

    model = Powers()
    model.blocks[1].linear = nn.Sequential(nn.Linear(8, 8), Power())  # type: ignore[assignment]  # a module of another kind
    (Cubed.apply(model(X.clone().requires_grad_())) + 1).sum().backward()
    found = [row for row in watched() if row.operation == "addcmul"]
    root = hmp.report(show=False).modules[0].path  # another Powers may still be there
    assert {row.module for row in found} == {None, root, f"{root}.blocks.1.linear.1"}
    assert [(row.phase, row.calls) for row in found] == 3 * [("backward", 1)]


def test_each_thread_has_modules_of_its_own(watched: Any) -> None:
    models = [Net(), nn.Sequential(Block(), Block())]
    in_threads(lambda i: [models[i](X) for _ in range(20)], 2)
    calls = {row.module: row.calls for row in watched() if row.operation == "linear" and row.module is not None}
    expected = ("Net.blocks.0.linear", "Net.blocks.1.linear", "Net.head", "Sequential.0.linear", "Sequential.1.linear")
    assert calls == dict.fromkeys(expected, 20)


@pytest.mark.usefixtures("alone_in_a_group")
def test_wrappers_have_no_place_in_a_path(watched: Any) -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Net()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    DistributedDataParallel(model)(X).sum().backward()
    found = {path for path in paths(watched()) if path is not None}
    assert found == {f"Net.{name}" for name in ("blocks.0", "blocks.0.linear", "blocks.1", "blocks.1.linear", "head")}


def test_a_layer_of_torch_that_is_compiled_by_itself_has_its_path(watched: Any) -> None:
    torch._dynamo.reset()
    torch.compile(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), backend="aot_eager")(X)
    found = {(row.operation, row.module) for row in watched() if row.phase == "traced"}
    assert {("linear", "Sequential.0"), ("layer_norm", "Sequential.1")} <= found


def test_a_report_of_modules_has_no_lines_whoever_watches_besides() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    hmp.convert(report="modules")
    with FlopCounterMode(display=False):
        Net()(X)
    assert {(row.file, row.phase) for row in hmp.report(show=False)} == {(None, "forward")}
    assert "Net.blocks.0.linear" in paths(hmp.report(show=False))


def test_the_time_of_a_module_is_at_least_that_of_its_parts(watched: Any) -> None:
    model = Net()
    for _ in range(5):
        model(X)
    seconds = {one.path: one.seconds for one in watched().modules}
    assert seconds["Net"] >= sum(seconds[f"Net.{name}"] for name in ("blocks.0", "blocks.1", "head"))
    assert seconds["Net.blocks.0"] >= seconds["Net.blocks.0.linear"] > 0
