"""Each row names the one line that decided, also where several configurations and modules have lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import Row, hmp
from helpers.each import each

X = torch.linspace(-1, 1, 32).reshape(4, 8)

pytestmark = pytest.mark.usefixtures("counted")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.second(self.first(x)), -1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def rows(operation: str) -> list[Row]:
    return [row for row in hmp.report(show=False) if row.operation == operation]


def lines(operation: str) -> dict[str | None, int]:
    """Returns the calls of an operation by the line that decided."""
    found: dict[str | None, int] = {}
    for row in rows(operation):
        found[row.rule] = found.get(row.rule, 0) + row.calls
    return found


def listed(folder: Path, name: str, *names: str) -> str:
    path = folder / name
    path.write_text("".join(f"{one}\n" for one in names), "utf-8")
    return str(path)


@each("detail", ["operations", "modules", "lines"])
def test_modules_with_lines_of_the_same_effect_each_name_their_own(detail: Any) -> None:
    rules = {f"softmax @ blocks.{number}": "bf16" for number in range(2)} | {"linear @ blocks.2.second": "fp32"}
    hmp.convert(preset="recommended", rules=rules, report=detail)
    Net()(X)
    own = {f"rules['softmax @ blocks.{number}']": 1 for number in range(2)}
    found = lines("softmax")
    assert {name: calls for name, calls in found.items() if name in own} == own
    linear = lines("linear")
    assert linear.pop("rules['linear @ blocks.2.second']") == 1
    assert list(linear.values()) == [5]
    assert all(" or " not in str(row.rule) for row in hmp.report(show=False))


@each("detail", ["operations", "modules", "lines"])
def test_a_line_that_repeats_another_of_lower_rank_is_named(detail: Any) -> None:
    hmp.convert(preset="recommended", rules={"linear @ blocks.1": "bf16", "matmul": "bf16"}, report=detail)
    Net()(X)
    assert lines("linear")["rules['linear @ blocks.1']"] == 2
    assert not rows("matmul")


@each("detail", ["operations", "modules", "lines"])
def test_after_several_conversions_each_call_has_the_line_of_its_own(tmp_path: Path, detail: Any) -> None:
    for number in range(3):
        hmp.convert(
            bf16_file_path=listed(tmp_path, f"lower{number}.txt", "# a comment", "mm"),
            fp32_file_path=listed(tmp_path, f"fp32{number}.txt", "exp"),
            report=detail,
        )
        for _ in range(number + 1):
            torch.mm(X, X.t())
    hmp.convert(bf16_file_path=str(tmp_path / "lower0.txt"), fp32_file_path=str(tmp_path / "fp320.txt"), report=detail)
    torch.mm(X, X.t())
    assert lines("mm") == {f"{tmp_path}/lower{number}.txt:2": (2, 2, 3)[number] for number in range(3)}


@each("detail", ["operations", "modules", "lines"])
def test_regions_with_lists_of_their_own_name_them(tmp_path: Path, detail: Any) -> None:
    hmp.convert(preset="recommended", within="everywhere", report=detail)
    first, second = (listed(tmp_path, f"{name}.txt", "mm") for name in ("first", "second"))
    torch.mm(X, X.t())
    for path in (first, second, first):
        with hmp.autocast("cpu", bf16_file_path=path):
            torch.mm(X, X.t())
            assert hmp.explain("mm").where == f"{path}:1"
    with hmp.autocast("cpu", rules={"mm": "fp32"}):
        torch.mm(X, X.t())
    found = lines("mm")
    assert {found[f"{first}:1"], found["rules['mm']"]} == {2, 1}
    assert found[f"{second}:1"] == 1
    assert len(found) == 4


def test_regions_of_equal_lists_in_many_files_take_no_number_of_their_own(tmp_path: Path) -> None:
    for number in range(80):
        with hmp.autocast("cpu", bf16_file_path=listed(tmp_path, f"{number}.txt", "mm")):
            torch.mm(X, X.t())
    assert len(lines("mm")) == 80


def test_rows_of_a_list_of_a_level_a_kept_module_exact_code_and_wrapped_functions_name_these(tmp_path: Path) -> None:
    model = Net()
    hmp.keep(model.blocks[1])
    hmp.convert("O2", report="modules", rules={"linear @ blocks.0.first": "fp32"})
    model(X)
    hmp.op_wrap(lambda x: x, to="bf16")(X)
    by_module = {(row.module, row.operation): row.rule for row in hmp.report(show=False)}
    assert by_module["Net.blocks.0.first", "linear"] == "rules['linear @ blocks.0.first']"
    assert by_module["Net.blocks.0.second", "linear"] == "O2"
    assert by_module["Net.blocks.1.second", "linear"] == by_module["Net.blocks.1", "softmax"] == "hmp.keep"
    assert {row.rule for row in hmp.report(show=False) if row.reason == "op_wrap"} == {"op_wrap"}
    hmp.reset_report()
    hmp.convert(preset="recommended", exact=[Block.forward], report="modules", rules={"softmax": "fp32"})
    model(X)
    assert lines("softmax") == {"rules['softmax']": 2, "hmp.keep": 1}


@each("how", ["recommended", "rules", "O2", "keep"])
def test_explain_names_the_line_of_each_row(how: str) -> None:
    model = Net()
    rules = {"linear @ blocks.0": "fp32", "* @ blocks.2": "fp32", "linear @ blocks.1.second": "bf16 -> fp32"}
    if how == "keep":
        hmp.keep(model.blocks[0].first)
    if how == "O2":
        hmp.convert("O2", report="lines")
    else:
        hmp.convert(preset="recommended", rules=rules if how == "rules" else None, report="lines")
    model(X)
    compared = 0
    for row in hmp.report(show=False):
        if row.is_listed:
            explained = hmp.explain(row.operation, row.module or "")
            assert row.rule == (explained.where or "hmp.keep"), row
            assert isinstance(explained, hmp.Explanation)
            compared += 1
    assert compared >= 3


@pytest.mark.usefixtures("compiled_anew")
def test_what_a_compiler_traces_has_the_first_of_the_lines_that_decide_the_same() -> None:
    hmp.convert(preset="recommended", rules={f"softmax @ blocks.{n}": "bf16" for n in range(3)}, report="modules")
    model = Net()
    torch.compile(model, backend="eager")(X)
    found = {(row.module, row.rule) for row in rows("softmax") if row.phase == "traced"}
    assert found == {(f"Net.blocks.{n}", "rules['softmax @ blocks.0']") for n in range(3)}


class Mixed(nn.Module):
    """Calls compiled code, and an operation of its own before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8))
        self.inner.compile(backend="eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.inner(F.softmax(x, -1)), -1)


@pytest.mark.usefixtures("compiled_anew")
def test_compiled_code_leaves_the_line_of_the_module_that_calls_it() -> None:
    hmp.convert(preset="recommended", rules={f"softmax @ {n}": "bf16" for n in range(3)} | {"linear @ *.inner": "fp32"})
    model = nn.Sequential(*(Mixed() for _ in range(3)))
    for _ in range(2):
        model(X)
    own = {name: calls for name, calls in lines("softmax").items() if name and "softmax @" in name}
    assert own == {f"rules['softmax @ {n}']": 4 for n in range(3)}


@pytest.mark.usefixtures("compiled_anew")
def test_lines_of_one_effect_are_one_region_for_a_compiler() -> None:
    hmp.convert(preset="recommended", rules={f"softmax @ blocks.{n}": "bf16" for n in range(60)})
    model = nn.Module()
    model.blocks = nn.ModuleList(Block() for _ in range(60))
    count = torch._dynamo.testing.CompileCounter()
    for block in model.blocks:
        block.compile(backend=count)
        block(X)
    assert count.frame_count <= 60
    assert all(torch._dynamo.utils.counters["stats"].values())
