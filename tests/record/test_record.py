"""``hmp.record``: what it writes, and that it changes nothing."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import hmp
from habana_mp.patches.torch.dynamo import graphs_compiled
from habana_mp.recording.recorder import described
from helpers.recorded import record, rows_of

ROOT = Path(__file__).parents[2]


def test_it_changes_no_value_and_no_decision(tmp_path: Path) -> None:
    hmp.reset_report()
    hmp.convert(preset="recommended")
    plain = record(Path(""), steps=3)
    before = hmp.report(show=False)
    hmp.reset_report()
    assert record(tmp_path / "a", steps=3) == plain
    after = hmp.report(show=False)

    def counted(report: hmp.Report) -> Counter[tuple[str, str, str]]:
        return Counter({(row.operation, row.precision, row.reason): row.calls for row in report if row.is_listed})

    assert counted(after) == counted(before)


def test_a_call_has_its_place_decision_and_values(tmp_path: Path) -> None:
    hmp.convert(preset="recommended")
    linear, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    with hmp.record(tmp_path):
        y = linear(x)
        y.sum().backward()
    row, *others = rows_of(tmp_path)
    assert (row["module"], row["operation"], row["phase"], row["number"]) == ("Linear", "linear", "forward", 1)
    assert (row["precision"], row["reason"], row["file"]) == ("bf16", "list", __file__)
    given_x, weight, bias = row["inputs"]
    assert (given_x["dtype"], given_x["sizes"], given_x["values"]) == ("float32", [2, 4], x.flatten().tolist())
    assert weight["weight"]
    assert bias["weight"]
    assert given_x["largest"] == float(x.abs().max())
    assert given_x["mean"] == pytest.approx(float(x.abs().mean()), rel=1e-6)
    assert [(one["operation"], one["phase"]) for one in others] == [
        ("sum", "forward"),
        ("gradient of sum", "backward"),
        ("gradient of linear", "backward"),
        ("gradient of weight", "backward"),
        ("gradient of bias", "backward"),
    ]
    assert others[-1]["results"][0]["values"] == linear.bias.grad.tolist()
    assert not linear.weight._backward_hooks  # nothing of the record is left


def test_the_same_operation_is_numbered_in_its_module(tmp_path: Path) -> None:
    hmp.convert()
    with hmp.record(tmp_path), torch.no_grad():
        for _ in range(3):
            torch.exp(torch.ones(2))
    assert [row["number"] for row in rows_of(tmp_path)] == [1, 2, 3]


def test_a_weight_has_one_gradient_a_step(tmp_path: Path) -> None:
    hmp.convert(preset="recommended")
    record(tmp_path, steps=3)
    gradients = [row["number"] for row in rows_of(tmp_path) if row["operation"] == "gradient of weight"]
    assert sorted(set(gradients)) == [1, 2, 3]
    keys = [(row["module"], row["operation"], row["number"]) for row in rows_of(tmp_path) if not row["inputs"]]
    assert len(keys) == len(set(keys))


def test_values_that_are_not_finite_are_a_share(tmp_path: Path) -> None:
    found = described(torch.tensor([1.0, -3.0, math.inf, math.nan]), 64)
    assert (found["largest"], found["mean"], found["not_finite"]) == (3.0, 2.0, 0.5)


@given(st.integers(1, 5000), st.integers(1, 100))
def test_the_sample_depends_on_the_sizes_alone(count: int, most: int) -> None:
    one, other = described(torch.arange(count), most), described(torch.arange(count).flip(0), most)
    assert len(one["values"]) <= min(count, most)
    assert one["values"] == [count - 1 - value for value in other["values"]]
    if count >= most:
        transposed = torch.arange(2 * count).view(2, count).t().contiguous().t()
        assert described(transposed, most)["values"] == described(transposed.contiguous(), most)["values"]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(True),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(2, 3).to_sparse(),
        torch.randn(5, dtype=torch.float64),
        torch.zeros(0),
        torch.empty(3, device="meta"),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
    ids=["bool", "complex", "sparse", "float64", "empty", "meta", "float8", "quantized"],
)
def test_each_kind_of_tensor_is_described(tensor: torch.Tensor) -> None:
    found = described(tensor, 64)
    assert found["sizes"] == list(tensor.shape)
    assert ("values" in found) == (tensor.numel() > 0 and tensor.device.type != "meta" and not tensor.is_quantized) or (
        tensor.dtype == torch.float8_e4m3fn
    )


def test_it_works_without_convert_and_leaves_torch_as_it_was(tmp_path: Path) -> None:
    with hmp.record(tmp_path):
        F.linear(torch.ones(1, 2), torch.ones(2, 2))
    assert not hmp.is_converted()
    assert [(row["operation"], row["results"][0]["dtype"]) for row in rows_of(tmp_path)] == [("linear", "float32")]


def test_convert_in_a_record_stays(tmp_path: Path) -> None:
    with hmp.record(tmp_path):
        hmp.convert(preset="recommended", within="everywhere")
        F.linear(torch.ones(1, 2), torch.ones(2, 2))
    assert hmp.is_converted()
    assert rows_of(tmp_path)[-1]["precision"] == "bf16"


def test_a_compiled_graph_is_one_call_that_knows_what_made_its_results(tmp_path: Path) -> None:
    hmp.convert(preset="recommended")
    record(tmp_path, compiled=True)
    rows = rows_of(tmp_path)
    (graph,) = (row for row in rows if row["operation"] == "compiled")
    assert graph["module"] == "Decoder"
    assert graph["made_by"] == [["Decoder.head", "linear", 1]]
    assert not any(row["module"].startswith("Decoder.blocks") for row in rows if row["phase"] == "forward")
    assert {"gradient of weight"} <= {row["operation"] for row in rows if row["module"] == "Decoder.blocks.0.up"}


@pytest.mark.parametrize("where", ["plain", "converted", "in a region", "converted inside"])
def test_each_record_has_the_compiled_code_whatever_was_before_it(tmp_path: Path, where: str) -> None:
    compiled, x = torch.compile(torch.exp, backend="aot_eager"), torch.ones(2)
    with hmp.record(tmp_path / "before convert"):
        compiled(x)
    compiled(x)
    if where == "converted":
        hmp.convert(preset="recommended")
        compiled(x)
    for name in ("one", "two"):
        with hmp.autocast("cpu", enabled=where == "in a region"), hmp.record(tmp_path / name):
            if where == "converted inside":
                hmp.convert(preset="recommended")
            compiled(x)
            compiled(x)
        compiled(x)
    assert [row["operation"] for row in rows_of(tmp_path / "before convert")] == ["compiled"]
    for name in ("one", "two"):
        assert [row["operation"] for row in rows_of(tmp_path / name)] == ["compiled"] * 2, name


def test_compiled_code_is_compiled_once_more_and_not_at_each_step(tmp_path: Path) -> None:
    hmp.convert()
    compiled = torch.compile(torch.exp, backend="aot_eager")
    block = hmp.record(tmp_path)
    counts = []
    for _ in range(3):
        with block:
            compiled(torch.ones(2))
        counts.append(graphs_compiled())
    assert counts[0] == counts[1] == counts[2]
    assert [row["operation"] for row in rows_of(tmp_path)] == ["compiled"] * 3


def test_a_crash_leaves_what_was_recorded(tmp_path: Path) -> None:
    script = (
        "import os, torch; from habana_mp import hmp\n"
        f"with hmp.record({str(tmp_path)!r}):\n    torch.exp(torch.ones(2)); os._exit(3)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 3
    assert [row["operation"] for row in rows_of(tmp_path)] == ["exp"]


def test_a_fork_does_not_write(tmp_path: Path) -> None:
    script = (
        "import os, torch; from habana_mp import hmp\n"
        f"with hmp.record({str(tmp_path)!r}):\n"
        "    pid = os.fork()\n"
        "    (torch.exp if pid else torch.sin)(torch.ones(2))\n"
        "    os._exit(0) if not pid else os.waitpid(pid, 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert [row["operation"] for row in rows_of(tmp_path)] == ["exp"]


def test_ranks_and_processes_write_their_own_files(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\ntorch.exp(torch.ones(2))\n")
    environment = {"RANK": "1", "WORLD_SIZE": "2", "PATH": "", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "habana_mp", "run", "--record", "out", "train.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert [row["operation"] for row in rows_of(tmp_path / "out", "rank-1")] == ["exp"]


def test_a_diagnosis_in_a_record_is_left_out_and_the_record_goes_on(tmp_path: Path) -> None:
    hmp.convert(preset="recommended")
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    with hmp.record(tmp_path):
        hmp.diagnose(lambda: model(x).sum())
        torch.exp(torch.ones(2))
    assert [row["operation"] for row in rows_of(tmp_path)] == ["exp"]


def test_a_record_goes_on_when_it_is_entered_again_and_another_one_is_refused(tmp_path: Path) -> None:
    @hmp.record(tmp_path)
    def step(left: int) -> None:
        torch.exp(torch.ones(2))
        if left:
            step(left - 1)

    step(1)
    step(0)
    assert [(row["operation"], row["number"]) for row in rows_of(tmp_path)] == [("exp", 1), ("exp", 2), ("exp", 3)]
    with hmp.record(tmp_path), pytest.raises(RuntimeError, match="another record runs"), hmp.record(tmp_path / "b"):
        pass


def test_writes_to_views_of_weights_run_as_without_a_record(tmp_path: Path) -> None:
    with hmp.record(tmp_path):
        torch.nn.Embedding(4, 2, padding_idx=0)
        weight = torch.nn.Parameter(torch.ones(2, 3))
        with torch.no_grad():
            weight[0].fill_(0)
            weight.view(-1).mul_(2)
            torch.nn.init.orthogonal_(weight[:1])
    assert {"fill_", "mul_"} <= {row["operation"] for row in rows_of(tmp_path)}


def test_values_written_past_torch_are_read_again(tmp_path: Path) -> None:
    x = torch.ones(2)
    with hmp.record(tmp_path):
        y = torch.exp(x)
        y.numpy()[:] = 3
        torch.log(y)
    assert rows_of(tmp_path)[1]["inputs"][0]["values"] == [3.0, 3.0]


def test_classes_of_tensors_that_raise_are_recorded_by_their_sizes(tmp_path: Path) -> None:
    class Strict(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is not torch.exp:
                raise ValueError(function)
            return super().__torch_function__(function, kinds, args, kwargs or {})

    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with hmp.record(tmp_path):
        torch.exp(torch.ones(2).as_subclass(Strict))
        torch.exp(nested)
    assert all("values" not in row["inputs"][0] for row in rows_of(tmp_path))


def test_threads_have_numbers_of_their_own(tmp_path: Path) -> None:
    with hmp.record(tmp_path):
        thread = threading.Thread(target=lambda: torch.exp(torch.ones(2)), name="loader")
        thread.start()
        thread.join()
        torch.exp(torch.ones(2))
    assert [(row["phase"], row["number"]) for row in rows_of(tmp_path)] == [("forward in loader", 1), ("forward", 1)]


def test_a_process_that_is_spawned_has_its_own_file_under_the_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing, torch\n"
        "def work(): torch.sin(torch.ones(2))\n"
        "if __name__ == '__main__':\n"
        "    torch.exp(torch.ones(2))\n"
        "    child = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join()\n"
    )
    command = [sys.executable, "-m", "habana_mp", "run", "--record", "out", "train.py"]
    environment = {"PATH": "", "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert [row["operation"] for row in rows_of(tmp_path / "out")] == ["exp"]
    assert [row["operation"] for row in rows_of(tmp_path / "out", "process-1")] == ["sin"]


def test_a_record_leaves_out_modules_whose_init_was_interrupted(tmp_path: Path) -> None:
    left = torch.nn.Linear.__new__(torch.nn.Linear)
    with hmp.record(tmp_path):
        torch.nn.Linear(4, 3)(torch.ones(2, 4))
    assert [row["operation"] for row in rows_of(tmp_path)] == ["linear"]
    assert not hasattr(left, "_parameters")


def test_a_traced_copy_of_the_model_that_lives(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    traced = torch.jit.trace(model, x)
    with hmp.record(tmp_path):
        model(x).sum().backward()
    assert {row["module"] for row in rows_of(tmp_path) if "weight" in row["operation"]} == {"Linear"}
    assert traced(x).shape == (2, 3)


def test_gradients_in_two_threads_are_those_of_their_calls(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)

    def run(folder: Path, order: tuple[int, ...]) -> None:
        with hmp.record(folder):
            for number in order:
                thread = threading.Thread(target=step, args=(number,), name=f"w{number}")
                thread.start()
                thread.join()

    def step(number: int) -> None:
        hidden = model(torch.full((2, 4), 1.0 + number))
        torch.autograd.grad(torch.tanh(hidden).sum(), hidden)

    run(tmp_path / "a", (0, 1))
    run(tmp_path / "b", (1, 0))
    assert str(hmp.compare(tmp_path / "a", tmp_path / "b")).startswith("No difference")


def test_a_record_on_a_full_disk_ends_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import resource, signal, torch\n"
        "from habana_mp import hmp\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))\n"
        "with hmp.record('out'):\n"
        "    for _ in range(30): torch.exp(torch.ones(2))\n"
    )
    environment = {"PATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    assert "the record ends here, since its file cannot be written" in done.stderr


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`sample` must be a whole number of at least 1; got 0"):
        hmp.record(tmp_path, sample=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), hmp.record(tmp_path / "file"):
        pass
    assert not hmp.is_converted()
