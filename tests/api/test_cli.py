"""The command line: presets, checks of list files, and a reader that has had enough."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from habana_mp import cli, ops
from habana_mp.policy.lists import read_list
from habana_mp.policy.presets import presets
from helpers.lists import write_list
from helpers.processes import run_script


def test_a_check_names_every_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_list(tmp_path / "a.txt", ["mm, linear", "relu", "sofmax", "conv2d linear"])
    assert cli.main(["lists", "check", path]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{path}:1: a line must hold one operation name; got `mm, linear`",
        f"{path}:3: unknown operation `sofmax`; did you mean `softmax`?",
        f"{path}:4: a line must hold one operation name; got `conv2d linear`",
    ]


def test_a_name_without_a_meaning_here_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(iter(ops.EXPLAINED))
    path = write_list(tmp_path / "a.txt", ["mm", name])
    assert cli.main(["lists", "check", path]) == 0
    out = capsys.readouterr().out
    assert out.count(f"{path}:2: `{name}` has no effect") == 1
    assert f"{path}: 2 names, 1 without effect" in out


def test_names_that_nothing_can_be_cast_for_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_list(tmp_path / "a.txt", ["mm", "relu_", "__setitem__", "zeros", "randn", "rand_like"])
    assert cli.main(["lists", "check", path]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if "has no effect" in line]
    assert [line.split("`")[1] for line in told] == ["relu_", "__setitem__", "zeros", "randn"]


def test_a_list_of_a_preset_is_a_list_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lists", "hmp-default", "--only", "fp32"]) == 0
    (tmp_path / "own.txt").write_text(capsys.readouterr().out)
    assert [one.name for one in read_list(tmp_path / "own.txt")] == [one.name for one in presets()["hmp-default"].fp32]


def test_a_check_imports_what_defines_the_operators_of_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "defines_twice.py").write_text(
        "import torch\n"
        "@torch.library.custom_op('checked::twice', mutates_args=())\n"
        "def twice(x: torch.Tensor) -> torch.Tensor:\n"
        "    return x * 2\n"
    )
    path = write_list(tmp_path / "a.txt", ["checked::twice"])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lists", "check", path]) == 1
    assert "unknown operator `checked::twice`" in capsys.readouterr().out
    monkeypatch.setattr(sys, "path", sys.path.copy())
    assert cli.main(["lists", "check", "--import", "defines_twice", path]) == 0
    assert cli.main(["lists", "check", path, "--import", "defines_twice"]) == 0
    assert capsys.readouterr().out.count("1 name, fine") == 2
    (tmp_path / "is_broken.py").write_text("1 +")
    (tmp_path / "is_a_script.py").write_text("raise SystemExit(3)")
    for module, error in (
        ("defines_nothing", "ModuleNotFoundError"),
        ("is_broken", "SyntaxError"),
        ("is_a_script", "SystemExit: 3"),
    ):
        assert cli.main(["lists", "check", path, "--import", module]) == 1
        assert f"cannot import `{module}`: {error}" in capsys.readouterr().err


def test_two_lists_are_checked_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lower = write_list(tmp_path / "a.txt", ["mm", "cross_entropy"])
    contradicting = write_list(tmp_path / "b.txt", ["softmax", "cross_entropy_loss", "mm"])
    agreeing = write_list(tmp_path / "c.txt", ["softmax", next(iter(ops.EXPLAINED))])
    assert cli.main(["lists", "check", lower, contradicting]) == 0
    assert cli.main(["lists", "check", "--together", lower, contradicting]) == 1
    out = capsys.readouterr().out
    assert f"{contradicting}:2: `cross_entropy_loss` is the same operation" in out
    assert f"{contradicting}:3: `mm` is in both lists" in out
    assert cli.main(["lists", "check", lower, agreeing, "--together"]) == 0
    out = capsys.readouterr().out
    assert "they do not contradict each other" in out
    assert out.count("has no effect") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("lists check", "arguments are required: FILE"),
        ("lists check --together a.txt", "needs two FILEs"),
        ("lists hmp-default --together", "unrecognized arguments: --together"),
        ("lists --import os", "unrecognized arguments: --import"),
        ("lists hmp-default torch-cpu", "unrecognized arguments: torch-cpu"),
        ("lists diff torch-cpu", "arguments are required: PRESET|FILE"),
        ("lists --only fp32", "needs a preset"),
        ("lists hmp-default --only int8", "choose from"),
        ("lists check a.txt --only fp32", "unrecognized arguments: --only fp32"),
        ("lists check a.txt --quick", "unrecognized arguments: --quick"),
        ("doctor now", "unrecognized arguments: now"),
        ("doctr", "did you mean `doctor`?"),
        ("explian softmax", "did you mean `explain`?"),
        ("lists fnd softmax", "did you mean `find`?"),
        ("lists diff --josn a b", "unrecognized arguments: --josn"),
        ("diff --tmes a b", "did you mean `--times`?"),
        ("lists check a.txt --togther", "did you mean `--together`?"),
        ("explain softmax --ruel x=fp32", "did you mean `--rule`?"),
        ("run --requir-lowered script.py", "did you mean `--require-lowered`?"),
        ("diagnose --dtype fp61 script.py", "did you mean `fp16`?"),
        ("run --preset=half --gard=0.5 script.py", "did you mean `--guard`?"),
    ],
)
def test_wrong_usage_says_what_is_wrong(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words.split())
    assert caught.value.code == 2
    assert why in capsys.readouterr().err


def test_the_lists_that_name_an_operation_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lists", "find", "nn.functional.softmax"]) == 0
    rows = {tuple(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert {("hmp-default", "fp32", "softmax"), ("torch-cuda", "fp32", "softmax")} <= rows
    assert not [row for row in rows if row[0] == "torch-cpu"]
    for operator in ("@", "__matmul__"):
        assert cli.main(["lists", "find", operator]) == 0
        assert ["recommended", "lower", "matmul"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert cli.main(["lists", "find", "einsum"]) == 0
    assert "einsum (its matrix products only)" in capsys.readouterr().out
    assert cli.main(["lists", "find", "kthvalue"]) == 1
    assert capsys.readouterr().out == "no preset names `kthvalue`\n"
    assert cli.main(["lists", "find", "soft-max"]) == 2
    assert "did you mean `softmax`?" in capsys.readouterr().err


def test_a_folder_of_lists_is_shown_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_list(tmp_path / "bf16.txt", ["mm"])
    write_list(tmp_path / "fp32.txt", ["softmax"])
    assert cli.main(["lists", "show", str(tmp_path)]) == 0
    assert "  softmax " in capsys.readouterr().out
    assert cli.main(["lists", "diff", str(tmp_path), f"{tmp_path}/bf16.txt,{tmp_path}/fp32.txt"]) == 0
    (tmp_path / "fp32.txt").unlink()
    assert cli.main(["lists", "show", str(tmp_path)]) == 2
    assert "fp32.txt" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("diagnose", "--metric-file", "find", "--only", "--log"))


def test_the_doctor_says_why_nothing_can_be_converted() -> None:
    script, broken = "from habana_mp.cli import main\nraise SystemExit(main(['doctor']))", "torch.tapped-builtins"
    done = run_script(script, HABANA_MP_BREAK=broken)
    assert done.returncode == 1
    assert "impossible here: " in done.stdout
    assert "Traceback" not in done.stderr


def test_a_preset_is_shown_with_what_its_names_stand_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lists", "torch-cpu"]) == 0
    assert "torch.matmul, Tensor.matmul" in capsys.readouterr().out
    assert cli.main(["lists", "none"]) == 2


def test_a_file_or_a_near_name_instead_of_a_preset_is_noticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lists", "torch_cpu"]) == 2
    assert "did you mean 'torch-cpu'?" in capsys.readouterr().err
    assert cli.main(["lists", "cpu", "--only", "fp32"]) == 2
    assert "did you mean 'torch-cpu'?" in capsys.readouterr().err
    assert cli.main(["lists", write_list(tmp_path / "a.txt", ["mm"])]) == 2
    assert "`habana-mp lists check FILE...` checks files" in capsys.readouterr().err


@pytest.mark.parametrize("part", ["gaudi", "bert", "BERT", "cpu", "@0.15.0"])
def test_a_part_of_a_name_lists_the_presets_that_have_it(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lists", part]) == 0
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == [name for name in presets() if part.lower() in name]
    assert 0 < len(shown) < len(presets())


def test_a_list_file_that_is_missing_is_named_and_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = write_list(tmp_path / "a.txt", ["mm"])
    for files in (["gone.txt"], [there, "gone.txt"], [there, "gone.txt", "--together"]):
        assert cli.main(["lists", "check", *files]) == 2
        assert "'gone.txt'" in capsys.readouterr().err


def test_a_folder_of_lists_with_the_name_of_a_command_nearly_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "checks").mkdir()
    for name in ("bf16.txt", "fp32.txt"):
        write_list(tmp_path / "checks" / name, ["mm"] if name == "bf16.txt" else ["softmax"])
    monkeypatch.chdir(tmp_path)
    assert cli.main(["lists", "checks"]) == 0
    assert "softmax" in capsys.readouterr().out
