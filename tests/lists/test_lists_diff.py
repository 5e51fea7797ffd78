"""``habana-mp lists diff``: names that are in other lists, or in one only."""

from __future__ import annotations

from pathlib import Path

import pytest

from habana_mp import cli
from habana_mp.policy.presets import presets
from helpers.lists import write_list


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str]]:
    status = cli.main(["lists", "diff", *words])
    return status, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "name", ["hmp-default", "torch-cpu", next(one for one in presets() if one.startswith("gaudi/"))]
)
def test_a_preset_is_the_same_as_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, name, name) == (0, ["the same names in the same lists"])


def test_names_of_presets_that_moved_or_are_in_one_only_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    status, lines = told(capsys, "torch-cpu", "torch-cuda")
    assert status == 1
    cpu, cuda = presets()["torch-cpu"], presets()["torch-cuda"]
    assert "softmax" in {one.name for one in cuda.fp32} - {one.name for one in cpu.fp32}
    assert "only in torch-cuda: softmax  fp32" in lines
    moved = [line for line in lines if line.startswith("moved: ")]
    assert moved
    for line in moved:
        name, before, _, after = line.removeprefix("moved: ").split()
        assert name in {one.name for one in getattr(cpu, before)}, line
        assert before != after, line


def test_releases_of_torch_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    only = "only in torch-xpu@2.12: rms_norm  fp32"
    assert told(capsys, "torch-xpu@2.11", "torch-xpu@2.12") == (1, [only])


def test_files_are_compared_however_names_are_spelled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = write_list(tmp_path / "a.txt", ["mm", "cross_entropy", "softmax"])
    b = write_list(tmp_path / "b.txt", ["bmm", "cross_entropy_loss", "softmax", "mm"])
    assert told(capsys, a, b) == (1, [f"only in {b}: bmm  listed"])
    assert told(capsys, b, a) == (1, [f"only in {b}: bmm  listed"])
    assert told(capsys, a, a)[0] == 0


def test_two_files_are_the_two_lists_of_a_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lower, fp32 = write_list(tmp_path / "lower.txt", ["mm"]), write_list(tmp_path / "fp32.txt", ["softmax"])
    assert told(capsys, f"{lower},{fp32}", f"{fp32},{lower}") == (
        1,
        ["moved: mm  lower -> fp32", "moved: softmax  fp32 -> lower"],
    )


def test_a_file_by_itself_may_be_either_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [one.name for one in presets()["hmp-default"].fp32]
    status, lines = told(capsys, "hmp-default", write_list(tmp_path / "a.txt", names))
    assert status == 1
    assert {line.split("  ")[1] for line in lines} == {"lower"}


def test_wrong_usage_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lists", "diff", "cpu", "torch-cpu"]) == 2
    assert "`cpu` is neither a preset" in (error := capsys.readouterr().err)
    assert "did you mean 'torch-cpu'?" in error
    assert cli.main(["lists", "diff", str(tmp_path), "torch-cpu"]) == 2
