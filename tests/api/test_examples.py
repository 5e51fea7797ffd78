"""The examples run, and what they show is true. Needs scikit-learn and torchviz."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from habana_mp import hmp
from helpers.late import module_of
from helpers.processes import python

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _leaves_torch_alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    assert not hmp.is_converted()
    hmp.reset_report()


def test_digits_reach_the_accuracy_of_fp32(capsys: pytest.CaptureFixture[str]) -> None:
    results = module_of(EXAMPLES / "digits.py").main([])
    fp32 = results.pop("FP32")
    assert fp32.accuracy > 0.95
    assert set(results) == {"default lists", "within modules", "own lists", "ResNet50 preset", "O2"}
    assert results["within modules"] == results["default lists"]  # only modules compute there
    for name, result in results.items():
        assert result.accuracy > 0.99 * fp32.accuracy, name
    shown = capsys.readouterr().out
    assert "conv2d              bf16" in shown
    assert "cross_entropy_loss  fp32" in shown


def test_language_model_reaches_the_loss_of_fp32() -> None:
    results = module_of(EXAMPLES / "language_model.py").main(["--steps", "60", "--attention", "softmax"])
    fp32 = results.pop("FP32")
    assert fp32 < 2
    assert set(results) == {"default lists", "ResNet50 preset", "O2"}
    for name, loss in results.items():
        assert loss == pytest.approx(fp32, rel=0.01), name


def test_custom_lists_move_operations_between_the_precisions() -> None:
    results = module_of(EXAMPLES / "custom_lists.py").main([])
    default = results["default lists"]
    assert (default.softmax, default.layer_norm) == ("fp32", "bf16")
    assert results["softmax to bf16"].softmax == "bf16"
    assert results["layer_norm to fp32"].layer_norm == "fp32"
    assert all(result.own_function == "fp32" for result in results.values())
    assert results["everything in fp32"].error == 0
    assert 0 < results["only linear in bf16"].error < results["softmax to bf16"].error < 0.05


def test_graph_shows_cast_nodes_only_in_mixed_precision(tmp_path: Path) -> None:
    result = module_of(EXAMPLES / "graph.py").main(["--output", str(tmp_path / "made" / "graph.v2")])
    assert result.files[0].name == "graph.v2.dot"
    # Weight and bias of the convolution and of the linear layer, and the input of softmax.
    assert result.cast_nodes == 5
    assert result.cast_nodes_fp32 == 0
    assert result.files[0].read_text().count("ToCopyBackward0") == 5
    assert all(file.stat().st_size > 0 for file in result.files)


#: Of each example: arguments that make it short, and what it prints.
SCRIPTS = {
    "custom_lists": ([], "softmax to bf16"),
    "graph": ([], "graph.dot"),
    "language_model": (["--steps", "2"], "ResNet50 preset"),
}


# `make demo` runs digits, and tests/report/test_pictures.py the encoder.
@pytest.mark.parametrize("name", sorted({one.stem for one in EXAMPLES.glob("*.py")} - {"digits", "encoder"}))
def test_an_example_runs_as_a_script_from_anywhere(name: str, tmp_path: Path) -> None:
    arguments, shown = SCRIPTS[name]
    done = python(EXAMPLES / f"{name}.py", *arguments, cwd=tmp_path, with_dynamo=True)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout
