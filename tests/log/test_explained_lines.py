"""``isVerbose="why"``: each line says why, and which line of code called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from habana_mp import hmp
from helpers.watching import marked_line

X = torch.ones(2, 4)


def lines_of(path: Path) -> list[str]:
    hmp.restore()
    return path.read_text("utf-8").splitlines()


def test_a_cast_says_its_reason_and_its_line(tmp_path: Path) -> None:
    hmp.convert(isVerbose="why", log=tmp_path / "casts.log")
    torch.mm(X, X.t())  # a product
    (line,) = lines_of(tmp_path / "casts.log")
    assert line.startswith("casting  <built-in method mm of type object at ")
    assert line.endswith(f"  to  to_bf16  (in the list)  at  {__file__}:{marked_line(__file__, 'a product')}")


def test_a_layer_of_torch_has_the_line_that_calls_it(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))
    hmp.convert(isVerbose="why", log=tmp_path / "casts.log")
    model(X)  # the model
    where = f"  at  {__file__}:{marked_line(__file__, 'the model')}"
    assert [line.endswith(where) for line in lines_of(tmp_path / "casts.log")] == [True, True]


def test_json_lines_have_file_and_line(tmp_path: Path) -> None:
    hmp.convert(isVerbose="why", log=tmp_path / "casts.jsonl")
    torch.mm(X, X.t())  # in JSON
    (line,) = lines_of(tmp_path / "casts.jsonl")
    found = json.loads(line)
    assert (found["reason"], found["file"], found["line"]) == ("list", __file__, marked_line(__file__, "in JSON"))


@pytest.mark.parametrize("plain", [True, 1])
def test_other_logs_keep_their_form(tmp_path: Path, plain: bool) -> None:
    hmp.convert(isVerbose="why", log=tmp_path / "why.log")
    hmp.convert(isVerbose=plain, log=tmp_path / "casts.log")
    torch.mm(X, X.t())
    (line,) = lines_of(tmp_path / "casts.log")
    assert line.endswith("  to  to_bf16")
