"""What a report counts of compiled code: each call in a graph once, when the graph is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp

X = torch.linspace(-1, 1, 64).reshape(4, 16)

pytestmark = pytest.mark.usefixtures("counted")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.between(block, x)
        return self.head(x).softmax(-1)

    def between(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x)


class Broken(Plain):
    """Dynamo traces what is before each break twice, and compiles the code after it as another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[0](x) @ torch.eye(16)
        torch._dynamo.graph_break()
        x = self.blocks[1](x)
        torch._dynamo.graph_break()
        return self.head(x)


class Recomputed(Plain):
    def between(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False)  # type: ignore[no-any-return]  # it has no types


class Regions(Plain):
    def between(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with hmp.disable_casts():
            x = block(x)
        with torch.autocast("cpu", enabled=False):
            return block(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x[None]) @ torch.einsum("ab,cb->ac", x, x).sum().expand(16, 4)


def counts(detail: str) -> dict[tuple[Any, ...], int]:
    found: dict[tuple[Any, ...], int] = {}
    for row in hmp.report(show=False):
        place = () if detail == "operations" else (row.module, row.line)
        key = (row.operation, row.precision, row.reason, *place)
        found[key] = found.get(key, 0) + row.calls
    return found


@pytest.mark.parametrize("detail", ["operations", "lines"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("kind", [Plain, Broken, Recomputed, Regions, Attention])
def test_compiled_code_has_the_rows_of_one_eager_call(kind: type[nn.Module], backend: str, detail: Any) -> None:
    torch._dynamo.reset()
    hmp.convert(preset="recommended", report=detail)
    hmp.reset_report()
    model = kind().eval()
    model(X)
    expected = counts(detail)
    hmp.reset_report()
    compiled = torch.compile(model, backend=backend, fullgraph=kind is Plain)
    for _ in range(2):
        compiled(X)
    assert counts(detail) == expected
    assert {(row.seconds, row.cast_seconds) for row in hmp.report(show=False)} == {(None, None)}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_training_adds_no_row(backend: str) -> None:
    torch._dynamo.reset()
    hmp.convert(preset="recommended", report="modules")
    compiled = torch.compile(nn.Linear(16, 4), backend=backend)
    for _ in range(2):
        compiled(X).sum().backward()
    report = hmp.report(show=False)
    assert [(row.operation, row.phase, row.calls) for row in report if row.phase != "forward"] == [
        ("linear", "traced", 1)
    ]
    assert report.words[0].startswith("The product ran in bf16")


def test_a_call_counts_once_for_each_graph_that_holds_it() -> None:
    torch._dynamo.reset()
    hmp.convert(preset="recommended")
    compiled = torch.compile(nn.Linear(16, 4), backend="aot_eager", dynamic=False)
    for rows in (4, 4, 3, 3):
        compiled(X[:rows])
    assert counts("operations") == {("linear", "bf16", "list"): 2}


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_model_counts_as_one_call(strict: bool) -> None:
    torch._dynamo.reset()
    hmp.convert(preset="recommended", report="modules")
    model = Plain().eval()
    model(X)
    expected = counts("operations")
    hmp.reset_report()
    program = torch.export.export(model, (X,), strict=strict)
    assert counts("operations") == expected
    program.module()(X)
    assert counts("operations") == expected
