"""``habana-mp run --gaudi``: the stand-in is there, and the script itself converts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from helpers.processes import RUN, python

SCRIPT = """
import torch
import habana_frameworks.torch.core as htcore
from habana_frameworks.torch.hpex import hmp

model = torch.nn.Linear(8, 8).to("hpu")
x = torch.ones(2, 8, device="hpu")
before = model(x).dtype
hmp.convert(opt_level="O1", bf16_file_path="", fp32_file_path="", isVerbose=False)
print(before, model(x).dtype)
with torch.autocast("hpu"):
    print(model(x).dtype)
"""


def run(folder: Path, *words: str, script: str = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return python(*RUN, *words, "script.py", cwd=folder, **environment)


def test_the_script_alone_converts_and_its_report_is_as_fine_as_was_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path, "--gaudi", "--detail", "lines", "--report", "out.json")
    assert done.stdout.split() == ["torch.float32", "torch.bfloat16", "torch.bfloat16"], done.stderr
    assert "habana-mp: calls: 2 in bf16" in done.stderr
    found = json.loads((tmp_path / "out.json").read_text())["rows"]
    rows = {(row["module"], row["line"], row["precision"]) for row in found if row["operation"] == "linear"}
    assert rows == {("Linear", 10, "bf16"), ("Linear", 12, "bf16")}


def test_the_reference_in_float32_needs_no_edit(tmp_path: Path) -> None:
    assert run(tmp_path, "--gaudi=", "--opt-level", "o0").stdout.split() == ["torch.float32"] * 3


def test_a_script_that_does_not_convert_is_told_so(tmp_path: Path) -> None:
    done = run(tmp_path, "--gaudi=cpu", script="import torch\ntorch.ones(2, 2, device='hpu') @ torch.ones(2, 2)\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "habana-mp: the script asked for no mixed precision"


def test_wrong_options_are_refused_before_the_script_begins(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mm\n")
    for words, expected in {
        ("--gaudi=cpu", "--bf16=a.txt"): "--bf16 does not go with --gaudi: the script's own `hmp.convert` decides",
        ("--gaudi=cpu:1",): "`device` must be one of 1 here, numbered from 0; got 'cpu:1'",
        ("--gaudi", "cpu"): "a device stands after a `=`: --gaudi=cpu",
    }.items():
        done = run(tmp_path, *words)
        assert (done.returncode, done.stdout, expected in done.stderr) == (2, "", True), done.stderr
    done = run(tmp_path, "--gaudi", HABANA_MP_OPT_LEVEL="O7")
    assert (done.returncode, done.stdout) == (2, "")
    assert "habana-mp run: error: HABANA_MP_OPT_LEVEL must be O0" in done.stderr


def test_without_the_option_a_script_for_gaudi_is_told_of_it(tmp_path: Path) -> None:
    for script in (SCRIPT, "import torch\ntorch.ones(2, device='hpu')\n"):
        done = run(tmp_path, script=script)
        assert "the script is written for Gaudi: `habana-mp run --gaudi`" in done.stderr


def test_each_mapped_call_is_logged_once_with_its_place(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "--gaudi=cpu",
        script="import torch\nimport habana_frameworks.torch.gpu_migration\nfor _ in range(3):\n"
        "    torch.cuda.is_available()\n    torch.amp.GradScaler('cuda')\n",
    )
    logged = [line for line in done.stderr.splitlines() if line.startswith("habana_mp.gaudi: ")]
    assert [line.partition("script.py:")[2] for line in logged] == [
        "4: cuda is cpu here (torch.cuda.is_available)",
        "5: cuda is cpu here (torch.amp.GradScaler)",
    ]


def test_without_the_stand_in_the_report_names_a_region_of_a_device_that_is_not_here(tmp_path: Path) -> None:
    loop = (
        "import torch\nx = torch.ones(2, 2)\nfor _ in range(3):\n"
        "    with torch.autocast('xpu', enabled=False):\n        {}\n"
    )
    told = "Casts are off in the disabled region of torch.autocast for xpu at script.py:4, though no xpu is here"
    (line,) = [one for one in run(tmp_path, script=loop.format("x @ x")).stderr.splitlines() if told in one]
    assert "--gaudi" in line
    assert "though no xpu is here" not in run(tmp_path, script=loop.format("pass")).stderr
