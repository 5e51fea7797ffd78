"""HABANA_MP_TRACE prints each step of the decision about a call, with the line of the source that took it."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.processes import run_script

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
from habana_mp import hmp
hmp.convert(preset="recommended", within="everywhere")
x = torch.ones(4, 4)
with torch.no_grad():
    torch.matmul(x, x)
torch.add(x.bfloat16(), x)
"""
STEP = re.compile(r"habana_mp: (\w+): (.*) \((src/[\w/]+\.[ch]pp):(\d+)\)")


def steps(operation: str) -> list[tuple[str, str, str, int]]:
    done = run_script(SCRIPT, HABANA_MP_TRACE=operation)
    assert done.returncode == 0, done.stderr
    found = [STEP.fullmatch(line) for line in done.stderr.splitlines()]
    assert all(found), done.stderr
    return [(one[1], one[2], one[3], int(one[4])) for one in found if one is not None]


def test_the_steps_of_one_operation_are_printed_from_its_rule_to_its_result() -> None:
    assert [(operation, text) for operation, text, *_ in steps("matmul")] == [
        ("matmul", "the rule comes from: the lists"),
        ("matmul", "the rule wants: bf16"),
        ("matmul", "with casts: in the list"),
        ("matmul", "cast: argument 0, fp32 to bf16"),
        ("matmul", "cast: argument 1, fp32 to bf16"),
        ("matmul", "bf16: in the list"),
    ]


def test_all_traces_each_operation_with_the_line_that_took_the_step() -> None:
    found = steps("all")
    assert {"matmul", "add"} <= {operation for operation, *_ in found}
    for _, text, path, line in found:
        lines = (ROOT / path).read_text("utf-8").splitlines()
        step = "trace" if text.startswith(("the rule", "cast")) else "(Way::with_casts)" if "with casts" in text else ""
        assert step in "".join(lines[line - 2 : line + 1]), (path, line)
