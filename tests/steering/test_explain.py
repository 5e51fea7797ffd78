"""``hmp.explain`` and ``habana-mp explain``."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from habana_mp import hmp
from habana_mp.cli import main
from helpers.lists import Converter, write_list
from helpers.steered import network


def test_a_line_of_a_file_is_named_with_file_and_line(tmp_path: Path) -> None:
    bf16 = write_list(tmp_path / "bf16.txt", ["# mine", "linear", "softmax @ layers.*"])
    fp32 = write_list(tmp_path / "fp32.txt", ["exp", "* @ layers.1"])
    hmp.convert("O1", bf16, fp32)
    found = hmp.explain("linear")
    assert (found.precision, found.reason, found.file, found.line) == ("bf16", "list", bf16, 2)
    assert str(found) == f"linear runs in bf16: `linear` at {bf16}:2"
    found = hmp.explain("softmax", "layers.0")
    assert (found.precision, found.file, found.line, found.rule) == ("bf16", bf16, 3, "softmax @ layers.*")
    found = hmp.explain("softmax", "layers.1.proj")
    assert (found.precision, found.file, found.line) == ("fp32", fp32, 2)
    assert str(found) == f"softmax in layers.1.proj runs in fp32: `* @ layers.1` at {fp32}:2"
    assert hmp.explain("softmax", "Net.layers.0").precision == "bf16"
    assert hmp.explain("softmax").precision == "unchanged"


def test_a_module_is_found_in_its_model(converted: Converter) -> None:
    model = network()
    converted(bf16=["linear"], rules={"linear @ layers.1": "fp32", "linear @ Net.left": "fp16"})
    assert hmp.explain("linear", model.layers[1].proj).precision == "fp32"
    found = hmp.explain("linear", model.left)
    assert (found.precision, found.rule, found.file, found.line) == ("fp16", "linear @ Net.left", None, None)
    assert str(found) == "linear in left runs in fp16: `linear @ Net.left` at rules['linear @ Net.left']"
    hmp.keep(model.layers)
    found = hmp.explain("linear", "Net.layers.0.proj")
    assert (found.precision, found.reason) == ("fp32", "kept")
    assert "hmp.keep keeps the module" in str(found)


@pytest.mark.parametrize(
    ("operation", "precision", "reason"),
    [
        ("add", "unchanged", "widest"),
        ("add_", "unchanged", "in_place"),
        ("relu", "unchanged", "first_input"),
        ("fft_rfft", "fp32", "no_kernel"),
        ("view", "unchanged", "view"),
        ("cross_entropy", "fp32", "parts"),
    ],
)
def test_where_no_list_decides_the_rule_is_named(
    converted: Converter, operation: str, precision: str, reason: str
) -> None:
    converted(bf16=["linear"], fp32=["nll_loss", "log_softmax"])
    found = hmp.explain(operation)
    assert (found.precision, found.reason) == (precision, reason)
    assert "rule" in str(found)


def test_it_tells_what_happens(converted: Converter) -> None:
    model = network()
    converted(bf16=["linear", "softmax"], rules={"* @ layers.1": "fp32", "softmax @ *.inner": "fp32"})
    seen = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, __, out, name=name: seen.__setitem__(name, out))
    model(torch.ones(2, 8))
    words = {"bf16": torch.bfloat16, "fp32": torch.float32}
    for name in ("layers.0.proj", "layers.1.proj", "left.inner.proj"):
        assert words[hmp.explain("linear", name).precision] is seen[name].dtype
    for name in ("layers.0", "layers.1", "left.inner"):
        assert words[hmp.explain("softmax", name).precision] is seen[name][1].dtype


def test_without_lists_it_says_so(converted: Converter) -> None:
    assert str(hmp.explain("linear")) == (
        "linear keeps the precision of its tensors: no lists are in force; call hmp.convert() first"
    )
    with hmp.autocast("cpu", rules={"linear @ a": "fp32"}):
        assert hmp.explain("linear").precision == "bf16"
        assert hmp.explain("linear", "a.b").precision == "fp32"


def test_a_model_is_shown_with_the_lines_that_reach_each_module(converted: Converter) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    hmp.keep(model[0])
    converted(bf16=["linear"], rules={"* @ 1": "fp32", "linear @ 1.*": "bf16"})
    assert str(hmp.explain(model)) == (
        "Sequential\n"
        "  0: Linear  <- kept in fp32\n"
        "  1: Sequential  <- `* @ 1` fp32\n"
        "    0: Linear  <- `linear @ 1.*` bf16, `* @ 1` fp32"
    )
    assert str(hmp.explain(copy.deepcopy(model))) == str(hmp.explain(model))


def test_wrong_arguments_are_refused(converted: Converter) -> None:
    with pytest.raises(hmp.ListError, match="unknown operation `sofmax`; did you mean `softmax`"):
        hmp.explain("sofmax")
    with pytest.raises(TypeError, match="`operation` must be the name of an operation, or a model; got int"):
        hmp.explain(3)
    with pytest.raises(TypeError, match="`module` must be a module or its path; got int"):
        hmp.explain("softmax", 3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fp32 = write_list(tmp_path / "fp32.txt", ["exp", "* @ layers.1"])
    assert main(["explain", "linear", "layers.1", "--preset", "recommended", "--fp32", fp32]) == 0
    assert capsys.readouterr().out == f"linear in layers.1 runs in fp32: `* @ layers.1` at {fp32}:2\n"
    assert main(["explain", "linear", "layers.1", "--rule", "linear @ layers.*=bf16", "--opt-level", "O2"]) == 0
    assert "runs in bf16: `linear @ layers.*`" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_package.py").write_text("from helpers.steered import network as build_model\n")
    assert main(["explain", "--module", "my_package:build_model", "--rule", "* @ left=fp32"]) == 0
    assert "  left: Holder  <- `* @ left` fp32\n" in capsys.readouterr().out
    for path in ("left.inner", "Net.left.inner", "Net"):
        assert main(["explain", "linear", path, "--module", "my_package:build_model"]) == 0
        assert f"linear in {path} runs in bf16" in capsys.readouterr().out
    assert not hmp.is_converted()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["explain", "sofmax"], "did you mean `softmax`"),
        (["explain"], "an OPERATION or --module"),
        (["explain", "linear", "--rule", "linear"], "LINE=PRECISION"),
        (["explain", "linear", "--module", "nowhere:build"], "cannot import"),
        (["explain", "linear", "--module", "helpers.steered"], "PACKAGE.MODULE:FUNCTION"),
        (["explain", "linear", "--module", "helpers.steered:BF16"], "returns no torch.nn.Module"),
        (["explain", "linear", "nowhere", "--module", "helpers.steered:network"], "no module of Net is at `nowhere`"),
        (["explain", "linear", "Nut.left", "--module", "helpers.steered:network"], "no module of Net is at `Nut.left`"),
        (["explain", "linear", "--fp32", "nowhere.txt"], "does not exist"),
    ],
)
def test_wrong_usage_of_the_command(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(words))
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not hmp.is_converted()
