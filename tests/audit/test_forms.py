"""The forms of an audit: text, JSON, a table in a notebook, and the lines of ``habana-mp run --audit``."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import habana_mp
from habana_mp import hmp
from helpers.processes import RUN, python


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 8)).bfloat16()


def test_rows_count_the_tensors_of_each_kind_and_dtype() -> None:
    model = network()
    model[0].requires_grad_(False)
    model[2].weight.grad = torch.ones_like(model[2].weight)
    found = hmp.audit(model, torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1))
    rows = {(one.kind, one.dtype): (one.count, one.bytes, one.name) for one in found.rows if one.kind != "lost updates"}
    assert rows == {
        ("trained weights", "bfloat16"): (4, 2 * (32 + 32 + 256 + 8), "1.weight"),
        ("frozen weights", "bfloat16"): (2, 2 * (512 + 32), "0.weight"),
        ("buffers", "bfloat16"): (2, 2 * 64, "1.running_mean"),
        ("buffers", "int64"): (1, 8, "1.num_batches_tracked"),
        ("gradients", "bfloat16"): (1, 2 * 256, "2.weight"),
        ("state_dict", "bfloat16"): (8, 2 * (32 + 32 + 256 + 8 + 512 + 32 + 64), "0.weight"),
        ("state_dict", "int64"): (1, 8, "1.num_batches_tracked"),
    }
    assert {one.name: one.lost for one in found.rows if one.kind == "lost updates"} == {"1": None, "2": 0.0}


def test_all_forms_have_the_findings_and_the_rows(tmp_path: Path) -> None:
    found = habana_mp.audit(network())
    assert found is not habana_mp.audit(network())  # the function, not a module of this name
    found.to_json(tmp_path / "audit.json")
    content = json.loads((tmp_path / "audit.json").read_text())
    assert not content["healthy"]
    assert [one["text"] for one in content["findings"]] == [one.text for one in found.findings]
    assert [one["kind"] for one in content["rows"]] == [one.kind for one in found.rows]
    lines = str(found).splitlines()
    assert lines[0] == f"1. lower weights: {found.findings[0].text}"
    assert lines[3].split() == ["kind", "dtype", "tensors", "MB", "lost", "example"]
    assert "<td>trained weights</td><td>bfloat16</td><td>6</td>" in found._repr_html_()
    assert repr(found) == "<Audit with 2 findings; print() shows them>"


SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)){lowered}
other = nn.Linear(16, 8)  # no optimizer has its weights
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 16).to(model[0].weight.dtype)).float().sum().backward()
    optimizer.step()
print(model[0].weight.sum().item())
"""


def test_the_command_audits_each_optimizer_once_and_changes_no_result(tmp_path: Path) -> None:
    for name, lowered in (("healthy.py", ""), ("lower.py", ".bfloat16()")):
        (tmp_path / name).write_text(SCRIPT.format(lowered=lowered))
    healthy, lower, plain = (
        python(*RUN, *words, cwd=tmp_path, with_dynamo=True)
        for words in (("--audit", "healthy.py"), ("--audit", "lower.py"), ("lower.py",))
    )
    assert healthy.stderr.count("habana-mp: audit of ") == lower.stderr.count("habana-mp: audit of ") == 1
    assert "habana-mp: audit of Sequential before the first step of AdamW:\nhabana-mp: Healthy: " in healthy.stderr
    assert "habana-mp: 1. lower weights: 4 of 4 trained weights are in bfloat16" in lower.stderr
    assert "audit" not in plain.stderr
    assert lower.stdout == plain.stdout
    assert lower.stderr.splitlines()[-2:] == plain.stderr.splitlines()[-2:]
