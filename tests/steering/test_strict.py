"""`convert(strict=True)`: a pattern of the user's that matches no module is an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from habana_mp import HmpWarning, hmp
from habana_mp.policy.lists import Listed
from habana_mp.policy.presets import Preset
from helpers.lists import Converter, write_list
from helpers.steered import BF16, FP32, inputs, network

X = torch.ones(2, 8)


def test_a_pattern_without_a_module_raises_at_the_end_of_the_first_call(converted: Converter) -> None:
    model = network()
    ends: list[bool] = []
    model.register_forward_hook(lambda *_: ends.append(True))
    converted(bf16=["linear"], rules={"linear @ layer.1": "fp32", "linear @ middle": "fp32"}, strict=True)
    with pytest.raises(ValueError, match=re.escape("did you mean `layers.1`?")) as failed:
        model(inputs())
    assert str(failed.value).count("\n") == 1
    assert re.search(r"rules\['linear @ middle'\]: .* no module of Net is at `middle`", str(failed.value))
    assert ends == [True]


def test_a_pattern_is_judged_once_and_everything_holds_afterwards(converted: Converter) -> None:
    model, other = network(), nn.Sequential(nn.Linear(8, 8))
    converted(bf16=["linear"], rules={"linear @ nowhere": "fp32", "linear @ layers.0": "fp32"}, strict=True)
    with pytest.raises(ValueError, match="nowhere"):
        model(inputs())
    assert hmp.is_converted()
    assert torch.ones(8).softmax(0).dtype is FP32
    assert [product.dtype for product, _ in model(inputs())][:2] == [FP32, BF16]
    assert other(X).dtype is BF16


def test_a_line_of_a_file_is_named_with_its_place(tmp_path: Path) -> None:
    path = write_list(tmp_path / "fp32.txt", ["exp", "softmax @ encoder.**.attention"])
    hmp.convert("O1", "", path, strict=True)
    with pytest.raises(hmp.ListError, match=r"fp32\.txt:2: .* no module of Sequential is at `encoder"):
        nn.Sequential(nn.Linear(8, 8))(X)


def test_lines_without_pattern_are_not_judged(converted: Converter) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    converted(bf16=["linear"], rules={"grid_sample": "fp32", "linear @ 0": "fp32"}, strict=True)
    assert model(X).dtype is FP32
    hmp.convert("O2", rules={"linear @ head": "fp32"}, strict=True)
    with pytest.raises(ValueError, match="head"):
        model(X)


def test_lines_of_presets_are_warned_about_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Listed("linear", "own.json", 3, pattern="decoder")
    monkeypatch.setattr("habana_mp.hmp.preset_named", lambda _: Preset("own", "", lower=(line,)))
    hmp.convert(strict=True)
    with pytest.warns(HmpWarning, match=r"own\.json:3: .* is at `decoder`"):
        nn.Sequential(nn.Linear(8, 8))(X)
    hmp.convert(rules={"linear @ encoder": "bf16"}, strict=True)
    with pytest.warns(HmpWarning, match="decoder"), pytest.raises(ValueError, match=r"^rules.*at `encoder`$"):
        nn.Sequential(nn.Linear(8, 8))(X)


def test_a_model_that_lives_and_did_not_run_counts(converted: Converter) -> None:
    generator, judge = nn.Sequential(nn.Linear(8, 8)), network()
    converted(bf16=["linear"], rules={"linear @ layers.*": "fp32", "* @ 0": "fp32"}, strict=True)
    assert generator(X).dtype is FP32
    assert judge(inputs())[0][0].dtype is FP32


def test_a_module_without_weights_is_no_model(converted: Converter) -> None:
    converted(bf16=["linear"], rules={"linear @ head": "fp32"}, strict=True)
    nn.Sequential(nn.Flatten())(X)
    with pytest.raises(ValueError, match="head"):
        nn.Sequential(nn.Linear(8, 8))(X)


def test_an_exception_inside_goes_first(converted: Converter) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    converted(bf16=["linear"], rules={"linear @ head": "fp32"}, strict=True)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    with pytest.raises(ValueError, match="head"):
        model(X)


def test_results_are_converted_where_the_pattern_fits() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    hmp.convert(preset="recommended", rules={"linear @ head": "fp32"}, strict=True)
    with pytest.raises(ValueError, match="head"):
        model(X)
    assert model(X).dtype is FP32
    hmp.convert(preset="recommended", rules={"linear @ head": "fp32"})
    with pytest.warns(HmpWarning, match="head"):
        model(X)


@pytest.mark.parametrize("kind", ["module", "function"])
def test_compiled_code_is_judged_too(kind: str, converted: Converter) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 8))
    compiled = torch.compile(model if kind == "module" else lambda x: model(x) + 1, backend="eager")
    converted(bf16=["linear"], rules={"linear @ 0": "fp32"}, strict=True)
    assert compiled(X).dtype is FP32
    converted(bf16=["linear"], rules={"linear @ 1": "fp32"}, strict=True)
    with pytest.raises(Exception, match="no module of Sequential is at `1`"):
        compiled(X)
    assert compiled(X).dtype is BF16 or kind == "function"


def test_the_path_in_a_wrapped_model_is_that_of_the_model(converted: Converter) -> None:
    model = nn.DataParallel(nn.Sequential(nn.Linear(8, 8)))
    converted(bf16=["linear"], rules={"linear @ 0": "fp32"}, strict=True)
    assert model(X).dtype is FP32


def test_lines_of_a_region_are_warned_about(converted: Converter) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    converted(bf16=["linear"], strict=True)
    with hmp.autocast("cpu", rules={"linear @ 1": "fp32"}), pytest.warns(HmpWarning, match="is at `1`"):
        assert model(X).dtype is BF16


def test_strict_is_a_switch() -> None:
    with pytest.raises(ValueError, match="`strict` must be True or False"):
        hmp.convert(strict="yes")  # type: ignore[arg-type]  # wrong on purpose
