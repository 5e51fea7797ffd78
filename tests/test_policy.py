"""From a call of convert to rules: levels, names, precedence, presets, and what a failing call leaves behind."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Converter, assert_torch_is_restored, run_script, write_list
from hypothesis import given, settings
from hypothesis import strategies as st

from habana_mp import HmpWarning, ListError, _operations, _presets, hmp
from habana_mp._lists import DIRECTORY, Listed, read_list
from habana_mp._policy import Ruling, policy_from_lists
from habana_mp._presets import Preset

MATRIX = torch.eye(3) + 1
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32

MODEL_LISTS = json.loads((DIRECTORY / "gaudi_model_lists.json").read_text("utf-8"))


def warned_by_convert(*args: object, **options: object) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hmp.convert(*args, **options)  # type: ignore[arg-type]
    return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]


# ---- the call ------------------------------------------------------------------------------------------------------


def test_both_imports_give_the_same_functions() -> None:
    import habana_mp

    for name in hmp.__all__:
        assert getattr(habana_mp, name) is getattr(hmp, name), name


def test_all_four_parameters_work_by_position_and_by_keyword(tmp_path: Path) -> None:
    lower, upper = write_list(tmp_path / "a.txt", ["exp"]), write_list(tmp_path / "b.txt", ["mm"])
    hmp.convert("O1", lower, upper, False)
    assert torch.exp(MATRIX).dtype is BF16
    hmp.restore()
    hmp.convert(opt_level="O1", bf16_file_path=lower, fp32_file_path=upper, isVerbose=False)
    assert torch.exp(MATRIX).dtype is BF16
    assert torch.mm(MATRIX.bfloat16(), MATRIX.bfloat16()).dtype is FP32


@pytest.mark.parametrize("level", ["O3", "o1", "", "1", 1, None, True])
def test_an_unknown_level_is_refused_with_the_names_of_all(level: object) -> None:
    with pytest.raises(ValueError, match="opt_level") as caught:
        hmp.convert(level)  # type: ignore[arg-type]
    for known in ("O0", "O1", "O2"):
        assert known in str(caught.value)
    assert repr(level) in str(caught.value)
    assert_torch_is_restored()


def test_o0_casts_nothing_and_is_a_configuration() -> None:
    hmp.convert("O0")
    assert hmp.is_converted()
    assert torch.mm(MATRIX, MATRIX).dtype is FP32
    assert torch.softmax(MATRIX.bfloat16(), -1).dtype is BF16
    with pytest.raises(RuntimeError):
        torch.mm(MATRIX, MATRIX.bfloat16())


def test_o1_follows_the_default_lists() -> None:
    hmp.convert("O1")
    for operation in (torch.mm, torch.matmul, F.linear, torch.mul):
        assert operation(MATRIX, MATRIX).dtype is BF16
    for operation in (torch.log, torch.log2):
        assert operation(MATRIX.bfloat16()).dtype is FP32
    assert torch.exp(MATRIX).dtype is FP32
    assert torch.exp(MATRIX.bfloat16()).dtype is BF16


O2_LOWER = {
    "conv1d": lambda x: F.conv1d(x[None], x[None]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None]),
    "conv3d": lambda x: F.conv3d(x[None, None, None], x[None, None, None]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[None], x[:, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None]),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x[None, None, None], x[None, None, None]),
    "addmm": lambda x: torch.addmm(x, x, x),
    "mm": lambda x: torch.mm(x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "mv": lambda x: torch.mv(x, x[0]),
    "dot": lambda x: torch.dot(x[0], x[1]),
    "linear": lambda x: F.linear(x, x, x[0]),
    "matmul": lambda x: torch.matmul(x, x),
    "@": lambda x: x @ x,
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "addbmm": lambda x: torch.addbmm(x, x[None], x[None]),
    "nn.Linear": lambda x: torch.nn.functional.linear(x, x),
}
if hasattr(F, "grouped_mm"):
    O2_LOWER["grouped_mm"] = lambda x: F.grouped_mm(
        x.new_ones(2, 8), x.new_ones(1, 8, 8), offs=torch.tensor([2], dtype=torch.int32)
    )


@pytest.mark.parametrize("name", O2_LOWER)
def test_o2_runs_gemm_and_convolutions_in_lower_precision(name: str) -> None:
    hmp.convert("O2")
    assert O2_LOWER[name](MATRIX).dtype is BF16


O2_FP32 = {
    "fold": lambda m: F.fold(m[None], (1, 5), (1, 3)),
    "cov": torch.cov,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: F.softmax(x, -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "group_norm": lambda x: F.group_norm(x, 1),
    "dropout": lambda x: F.dropout(x, 0.5),
    "add": lambda x: x + x,
    "mul": lambda x: x * x,
    "div": lambda x: x / 2,
    "sub": lambda x: 1 - x,
    "pow": lambda x: x**2,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "sum": torch.sum,
    "mean": torch.mean,
    "cumsum": lambda x: torch.cumsum(x, 0),
    "cat": lambda x: torch.cat([x, x]),
    "avg_pool2d": lambda x: F.avg_pool2d(x[None], 2),
    "max_pool2d": lambda x: F.max_pool2d(x[None], 2),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[None], 1),
    "embedding": lambda x: F.embedding(torch.tensor([0]), x),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
    "std": torch.std,
    "var": torch.var,
    "norm": torch.norm,
}


@pytest.mark.parametrize("name", O2_FP32)
def test_o2_runs_every_other_floating_operation_in_float32(name: str) -> None:
    hmp.convert("O2")
    assert O2_FP32[name](MATRIX.bfloat16()).dtype is FP32


def test_o2_leaves_views_alone() -> None:
    hmp.convert("O2")
    x = torch.ones(2, 3, dtype=BF16)
    for viewed in (x.t(), x.view(6), x.reshape(3, 2), x[0], x.transpose(0, 1), x.unsqueeze(0)):
        assert viewed.dtype is BF16


@pytest.mark.parametrize("level", ["O0", "O2"])
@pytest.mark.parametrize("side", [0, 1, 2], ids=["bf16 file", "fp32 file", "both"])
def test_list_files_are_ignored_with_one_warning_where_the_level_has_no_lists(
    tmp_path: Path, level: str, side: int
) -> None:
    path = write_list(tmp_path / "a.txt", ["exp"])
    files = [(path, ""), ("", path), (path, path)][side]
    assert len(warned_by_convert(level, *files)) == 1
    assert torch.exp(MATRIX.bfloat16()).dtype is (FP32 if level == "O2" else BF16)


def test_the_warning_of_o2_points_at_the_callers_line(tmp_path: Path) -> None:
    path = write_list(tmp_path / "a.txt", ["exp"])
    with pytest.warns(HmpWarning) as caught:
        hmp.convert("O2", path)
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, "bf16", None])
def test_only_the_two_lower_precisions_are_taken(dtype: object) -> None:
    with pytest.raises(ValueError, match="dtype"):
        hmp.convert(dtype=dtype)  # type: ignore[arg-type]
    assert_torch_is_restored()


def test_float16_is_the_lower_precision_when_asked_for() -> None:
    hmp.convert(dtype=FP16)
    assert torch.mm(MATRIX, MATRIX).dtype is FP16
    assert F.softmax(MATRIX.half(), -1).dtype is FP32


def test_restore_without_convert_does_nothing() -> None:
    hmp.restore()
    hmp.restore()
    assert not hmp.is_converted()


# ---- names ---------------------------------------------------------------------------------------------------------


def test_a_name_in_both_lists_is_refused_with_both_places(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "a.txt", ["mm", "exp"])
    upper = write_list(tmp_path / "b.txt", ["# x", "", "exp"])
    with pytest.raises(ListError) as caught:
        hmp.convert("O1", lower, upper)
    message = str(caught.value)
    assert f"{upper}:3" in message
    assert f"{lower}:2" in message
    assert "`exp`" in message
    assert_torch_is_restored()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("cross_entropy", "cross_entropy_loss"),
        ("grid_sample", "grid_sampler"),
        ("truediv", "rtruediv"),
        ("truediv", "__truediv__"),
        ("__rtruediv__", "__rdiv__"),
        ("__pow__", "pow"),
        ("pow.Tensor_Scalar", "pow.Tensor_Tensor"),
        ("LSTMCell", "lstm_cell"),
        ("rsub", "__rsub__"),
        ("mod", "remainder"),
        ("dropout2d", "feature_dropout"),
        ("multi_dot", "linalg_multi_dot"),
        ("rmatmul", "matmul"),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_two_spellings_of_one_operation_in_both_lists_are_refused(
    tmp_path: Path, one: str, other: str, swap: bool
) -> None:
    names = (other, one) if swap else (one, other)
    lower, upper = write_list(tmp_path / "a.txt", [names[0]]), write_list(tmp_path / "b.txt", [names[1]])
    with pytest.raises(ListError) as caught:
        hmp.convert("O1", lower, upper)
    message = str(caught.value)
    assert f"{lower}:1" in message
    assert f"{upper}:1" in message
    assert f"`{one}`" in message
    assert f"`{other}`" in message
    assert_torch_is_restored()


def test_a_name_without_a_meaning_here_is_refused_in_both_lists_as_any_other(tmp_path: Path) -> None:
    path = write_list(tmp_path / "a.txt", ["embedding_bag_sum_fwd"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        with pytest.raises(ListError, match="embedding_bag_sum_fwd"):
            hmp.convert("O1", path, path)


def test_a_name_twice_in_one_list_is_no_conflict(converted: Converter) -> None:
    converted(bf16=["exp", "exp", "cross_entropy", "cross_entropy_loss"])
    assert torch.exp(MATRIX).dtype is BF16


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("softmx", "softmax"),
        ("Softmax", "softmax"),
        ("matmull", "matmul"),
        ("layernorm", "layer_norm"),
        ("batchnorm", "batch_norm"),
        ("conv_2d", "conv2d"),
        ("Linear", "linear"),
        ("cross_entropyloss", "cross_entropy_loss"),
        ("torch.matmul", "matmul"),
        ("torch.ops.aten.mm", "mm"),
        ("Tensor.add", "add"),
        ("F.sofmax", "softmax"),
        ("Tensor.matmull", "matmul"),
        ("torch.Tensor.softmx", "softmax"),
        ("GELU", "gelu"),
        ("LINEAR", "linear"),
        ("softmax.bogus", "softmax"),
        ("aten.mm.default", "mm"),
        ("lstm_cells.x", "lstm_cell"),
        ("torch.linalg.inv", "linalg_inv"),
        ("torch.special.expit", "special_expit"),
        ("torch.fft.ifft", "fft_ifft"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_known(tmp_path: Path, typo: str, meant: str) -> None:
    path = write_list(tmp_path / "a.txt", ["mm", typo])
    with pytest.raises(ListError) as caught:
        hmp.convert("O1", path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert f"did you mean `{meant}`?" in str(caught.value)
    assert_torch_is_restored()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("add_", "what it writes into keeps its precision"),
        ("transpose", "it gives a view"),
        ("storage_offset", "it tells of a tensor and computes nothing"),
    ],
)
def test_a_name_that_is_never_cast_is_warned_about(tmp_path: Path, name: str, why: str) -> None:
    path = write_list(tmp_path / "a.txt", ["mm", name])
    with pytest.warns(HmpWarning, match=f":2: `{name}` has no effect: {why}"):
        hmp.convert("O1", path)


@pytest.mark.parametrize("name", ["retain_grad", "long", "data_ptr", "__float__", "handle_torch_function"])
def test_what_is_no_operation_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ListError, match=f":1: `{name}` is no operation whose precision a list could decide"):
        hmp.convert("O1", write_list(tmp_path / "a.txt", [name]))


def test_unfold_is_the_one_of_torch_nn_functional_too(converted: Converter) -> None:
    image = torch.randn(1, 2, 4, 4)
    converted(bf16=["unfold"])
    assert F.unfold(image, 2).dtype is BF16
    assert image.unfold(2, 2, 1).dtype is FP32  # a view


@pytest.mark.parametrize("wrong", ["torch_cpu", "torch-cpuu"])
def test_an_unknown_preset_is_refused_with_the_nearest(wrong: str) -> None:
    with pytest.raises(ValueError, match="did you mean 'torch-cpu'"):
        hmp.convert(preset=wrong)


def test_letters_that_only_look_alike_are_shown_apart(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=r"unknown operation `l\\u0456near`"):
        hmp.convert("O1", write_list(tmp_path / "a.txt", ["l\u0456near"]))


@pytest.mark.parametrize("path", [3, ["a.txt"], True])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(ListError, match="`bf16_file_path` must be the path of a list file; got "):
        hmp.convert("O1", path)


@pytest.mark.parametrize("wrong", [[], {}, 3])
def test_what_is_no_name_is_refused_as_an_unknown_one(wrong: Any) -> None:
    for call in (lambda: hmp.convert(wrong), lambda: hmp.convert(preset=wrong), lambda: hmp.op_wrap(abs, to=wrong)):
        with pytest.raises(ValueError, match="must be one of"):
            call()


@pytest.mark.parametrize("given", [0, 1, None])
def test_the_switch_of_the_log_takes_what_scripts_give_it(given: int | None, capfd: pytest.CaptureFixture[str]) -> None:
    hmp.convert("O1", "", "", given)
    torch.mm(torch.ones(2, 2), torch.ones(2, 2))
    hmp.restore()
    captured = capfd.readouterr()
    assert ("casting" in captured.out + captured.err) is bool(given)


SWITCHES = ["isVerbose", "weight_cache", "packed_weights", "skip_slower", "reuse_memory"]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_true_or_false_and_a_wrong_one_changes_nothing(name: str) -> None:
    hmp.convert(dtype=torch.float16)
    options: dict[str, Any] = {name: "no"}
    with pytest.raises(ValueError, match=f"`{name}` must be True or False; got 'no'"):
        hmp.convert(**options)
    assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is torch.float16


@pytest.mark.parametrize(("name", "given"), [("isVerbose", 2), *itertools.product(SWITCHES[1:], [0, 1, None])])
def test_other_switches_take_no_number_and_no_none(name: str, given: int | None) -> None:
    options: dict[str, Any] = {name: given}
    with pytest.raises(ValueError, match=f"`{name}` must be True or False; got {given}"):
        hmp.convert(**options)


def test_a_name_like_no_other_is_refused_without_a_suggestion(tmp_path: Path) -> None:
    path = write_list(tmp_path / "a.txt", ["qqqqqqqqqqqqqqqq"])
    with pytest.raises(ListError) as caught:
        hmp.convert("O1", path)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["manual_seed", "save", "load", "compile", "set_default_dtype", "is_tensor", "typename", "seed"]
)
def test_a_function_of_torch_that_is_no_operation_is_refused_as_unknown(tmp_path: Path, name: str) -> None:
    path = write_list(tmp_path / "a.txt", [name])
    with pytest.raises(ListError, match=re.escape(f"{path}:1: unknown operation `{name}`")):
        hmp.convert("O1", path)
    assert_torch_is_restored()


@pytest.mark.parametrize("name", ["__len__", "__getitem__", "__init__", "__new__", "__class__", "__repr__", "__dict__"])
def test_a_slot_of_python_that_is_no_operation_is_refused_with_file_and_line(tmp_path: Path, name: str) -> None:
    path = write_list(tmp_path / "a.txt", [name])
    with pytest.raises(ListError, match=re.escape(f"{path}:1")):
        hmp.convert("O1", path)
    assert_torch_is_restored()


EVERY_NAME = """
import pathlib, sys, torch
from habana_mp import ListError, hmp
folder = pathlib.Path(sys.argv[1])
(folder / "empty.txt").write_text("")
for name in sorted({*dir(torch._C.TensorBase), *dir(torch._C._VariableFunctions), *dir(torch._C._nn), *dir(torch)}):
    (folder / "one.txt").write_text(name)
    try:
        hmp.convert("O1", folder / "one.txt", folder / "empty.txt")
    except ListError as error:
        assert not hmp.is_converted()
    except Exception as error:
        print(name, type(error).__name__, str(error)[:80])
    hmp.restore()
"""


def test_every_name_of_torch_is_taken_or_refused_as_a_list_error(tmp_path: Path) -> None:
    # In a process of its own, since what was covered once is remembered for good.
    done = run_script(EVERY_NAME, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("name", ["pow.Nonsense", "softmax.nonsense", "matmul.", "add.Tensor.extra", ".add"])
def test_an_overload_that_does_not_exist_is_refused(tmp_path: Path, name: str) -> None:
    path = write_list(tmp_path / "a.txt", [name])
    with pytest.raises(ListError, match=re.escape(f"{path}:1")):
        hmp.convert("O1", path)


@pytest.mark.parametrize("name", ["pow.Scalar", "pow.Tensor_Scalar", "add.Tensor", "_convolution.deprecated"])
def test_an_overload_stands_for_its_operation(converted: Converter, name: str) -> None:
    converted(bf16=[name])
    called = {"pow": lambda: MATRIX**2, "add": lambda: MATRIX + MATRIX}
    called["_convolution"] = lambda: F.conv2d(MATRIX[None, None], MATRIX[None, None])
    assert called[name.partition(".")[0]]().dtype is BF16


@pytest.mark.parametrize("name", ["embedding_bag_sum_fwd", "embedding_bag_sum_bwd"])
def test_a_known_name_without_a_meaning_here_is_taken_with_one_warning(tmp_path: Path, name: str) -> None:
    path, empty = write_list(tmp_path / "a.txt", ["exp", name]), write_list(tmp_path / "b.txt", [])
    warned = warned_by_convert("O1", path, empty)
    assert len(warned) == 1
    assert f"{path}:2" in warned[0]
    assert f"`{name}`" in warned[0]
    assert torch.exp(MATRIX).dtype is BF16


def test_an_operation_that_this_torch_lacks_is_told_to_whoever_can_change_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = _operations.resolve
    monkeypatch.setattr(_operations, "resolve", lambda name: None if name == "svd" else resolve(name))
    assert warned_by_convert(preset="torch-cpu") == []
    path, empty = write_list(tmp_path / "a.txt", []), write_list(tmp_path / "b.txt", ["svd"])
    told = f"{empty}:1: `svd` has no effect: torch {torch.__version__} has no operation of that name"
    assert warned_by_convert("O1", path, empty) == [told]


def test_a_name_without_a_meaning_that_stands_twice_is_warned_about_once(tmp_path: Path) -> None:
    path, empty = write_list(tmp_path / "a.txt", ["embedding_bag_sum_fwd"] * 3), write_list(tmp_path / "b.txt", [])
    assert len(warned_by_convert("O1", path, empty)) == 1


def test_the_warning_about_a_name_points_at_the_callers_line(tmp_path: Path) -> None:
    path, empty = write_list(tmp_path / "a.txt", ["embedding_bag_sum_fwd"]), write_list(tmp_path / "b.txt", [])
    with pytest.warns(HmpWarning) as caught:
        hmp.convert("O1", path, empty)
    assert [one.filename for one in caught] == [__file__]


# ---- precedence ----------------------------------------------------------------------------------------------------


def divisions() -> dict[str, torch.dtype]:
    x = MATRIX
    return {
        "torch.div": torch.div(x, x).dtype,
        "Tensor.div": x.div(x).dtype,
        "torch.divide": torch.divide(x, x).dtype,
        "torch.true_divide": torch.true_divide(x, x).dtype,
        "/": (x / x).dtype,
        "1 /": (1 / x).dtype,
    }


def test_div_takes_all_ways_of_dividing_along(converted: Converter) -> None:
    converted(bf16=["div"])
    assert set(divisions().values()) == {BF16}


def test_truediv_is_the_operator_only(converted: Converter) -> None:
    converted(bf16=["truediv"])
    assert {name for name, dtype in divisions().items() if dtype is BF16} == {"/", "1 /"}


@pytest.mark.parametrize("other", ["truediv", "__truediv__"])
def test_an_operator_in_a_list_of_its_own_leaves_its_family(tmp_path: Path, other: str) -> None:
    lower, upper = write_list(tmp_path / "a.txt", ["div"]), write_list(tmp_path / "b.txt", [other])
    hmp.convert("O1", lower, upper)
    assert torch.div(MATRIX, MATRIX).dtype is BF16
    assert (MATRIX / MATRIX).dtype is FP32
    assert (MATRIX.bfloat16() / MATRIX.bfloat16()).dtype is FP32
    hmp.convert("O1", upper, lower)
    assert torch.div(MATRIX.bfloat16(), MATRIX.bfloat16()).dtype is FP32
    assert (MATRIX / MATRIX).dtype is BF16


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("add", lambda x: x + x),
        ("add", lambda x: 1 + x),
        ("sub", lambda x: x - x),
        ("sub", lambda x: 1 - x),
        ("mul", lambda x: x * x),
        ("mul", lambda x: 2 * x),
        ("matmul", lambda x: x @ x),
        ("pow", lambda x: x**2),
        ("pow", lambda x: 2**x),
        ("cat", lambda x: torch.concat([x, x])),
        ("cat", lambda x: torch.concatenate([x, x])),
        ("softmax", lambda x: torch.special.softmax(x, 0)),
        ("log_softmax", lambda x: torch.special.log_softmax(x, 0)),
        ("sigmoid", torch.special.expit),
        ("erfinv", torch.special.erfinv),
        ("clamp", lambda x: x.clip(0, 1)),
        ("nll_loss", lambda x: F.nll_loss(x, torch.tensor([0, 1, 2]))),
        ("max_pool2d", lambda x: F.max_pool2d(x[None], 2, return_indices=True)[0]),
        ("norm", torch.norm),
        ("norm", lambda x: x.norm()),
        ("norm", torch.linalg.norm),
        ("cosine_similarity", lambda x: F.cosine_similarity(x, x)),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2)),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear")),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2, mode="nearest-exact")),
        ("dropout", lambda x: F.dropout(x, 0.5)),
        ("dropout2d", lambda x: F.dropout2d(x[None], 0.5)),
        ("LSTMCell", lambda x: torch.nn.LSTMCell(3, 4)(x)[0]),
        ("GRUCell", torch.nn.GRUCell(3, 4)),
        ("RNNCell", torch.nn.RNNCell(3, 4)),
        ("LSTM", lambda x: torch.nn.LSTM(3, 4)(x)[0]),
        ("GRU", lambda x: torch.nn.GRU(3, 4)(x)[0]),
        ("normalize", F.normalize),
        ("softmin", lambda x: F.softmin(x, 0)),
        ("_convolution", lambda x: F.conv2d(x[None, None], x[None, None])),
        ("einsum", lambda x: torch.einsum("ij,jk->ik", x, x)),
        ("scaled_dot_product_attention", lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None])),
        ("pad", lambda x: F.pad(x, (1, 1))),
        ("relu6", F.relu6),
        ("stack", lambda x: torch.stack([x, x])),
        ("acos", torch.arccos),
        ("outer", lambda x: torch.outer(x[0], x[1])),
        ("tensordot", lambda x: torch.tensordot(x, x, 1)),
    ],
)
def test_a_name_covers_the_ways_its_operation_is_reached(converted: Converter, name: str, call: object) -> None:
    converted(bf16=[name])
    assert call(MATRIX).dtype is BF16  # type: ignore[operator]


def test_a_list_beats_the_widest_and_the_first_input(converted: Converter) -> None:
    mixed = (MATRIX.bfloat16(), MATRIX)
    converted(bf16=["add", "mm"], fp32=["mul", "bmm"])
    assert torch.add(*mixed).dtype is BF16
    assert torch.mul(*mixed).dtype is FP32
    assert torch.mm(mixed[1], mixed[0]).dtype is BF16
    assert torch.bmm(mixed[0][None], mixed[1][None]).dtype is FP32


def test_a_users_file_beats_the_other_side_of_the_default_lists(tmp_path: Path) -> None:
    path = write_list(tmp_path / "a.txt", ["softmax", "mm"])
    hmp.convert("O1", path)
    assert F.softmax(MATRIX, -1).dtype is BF16
    hmp.convert("O1", "", path)
    assert torch.mm(MATRIX.bfloat16(), MATRIX.bfloat16()).dtype is FP32
    assert F.linear(MATRIX, MATRIX).dtype is BF16


@pytest.mark.parametrize("spelling", ["cross_entropy_loss", "__truediv__", "divide", "rtruediv", "nll_loss_nd"])
def test_a_users_file_beats_the_default_lists_in_any_spelling(tmp_path: Path, spelling: str) -> None:
    # The default fp32 list says `cross_entropy`, `truediv`, `nll_loss`: the user said so otherwise, in other words.
    hmp.convert("O1", write_list(tmp_path / "a.txt", [spelling]))
    call = {
        "cross_entropy_loss": lambda: F.cross_entropy(MATRIX, torch.tensor([0, 1, 2])),
        "__truediv__": lambda: MATRIX / MATRIX,
        "divide": lambda: torch.divide(MATRIX, MATRIX),
        "rtruediv": lambda: 1 / MATRIX,
        "nll_loss_nd": lambda: F.nll_loss(MATRIX, torch.tensor([0, 1, 2])),
    }[spelling]
    assert call().dtype is BF16


# ---- what torch computes as one ------------------------------------------------------------------------------------

LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    "listed", [["log_softmax", "nll_loss"], ["log_softmax"], ["nll_loss"], ["nll_loss2d"]], ids=str
)
def test_a_loss_follows_its_parts_into_float32(converted: Converter, listed: list[str]) -> None:
    converted(fp32=listed)
    assert F.cross_entropy(MATRIX.bfloat16(), LABELS).dtype is FP32
    assert torch.nn.CrossEntropyLoss()(MATRIX.bfloat16(), LABELS).dtype is FP32


@pytest.mark.parametrize("preset", ["gaudi/nlp/bert@0.15.0", "gaudi/audio/hubert", "torch-xpu"])
def test_the_loss_over_many_classes_is_exact_where_a_preset_names_its_parts(preset: str) -> None:
    torch.manual_seed(0)
    logits, labels = (torch.randn(16, 30000) / 2).bfloat16(), torch.randint(0, 30000, (16,))
    expected = F.cross_entropy(logits.float(), labels)
    hmp.convert(preset=preset)
    assert torch.equal(F.cross_entropy(logits, labels), expected)


def test_the_parts_of_a_loss_follow_it_into_float32(converted: Converter) -> None:
    converted(fp32=["cross_entropy", "binary_cross_entropy_with_logits"])
    half = MATRIX.bfloat16()
    assert torch.log_softmax(half, -1).dtype is FP32
    assert torch.special.log_softmax(half, -1).dtype is FP32
    assert F.nll_loss(half, LABELS).dtype is FP32
    assert F.binary_cross_entropy(half / 2 - 0.5, half / 2 - 0.5).dtype is FP32


def test_a_loss_is_lowered_by_all_of_its_parts_and_lowers_none(converted: Converter) -> None:
    converted(bf16=["log_softmax", "nll_loss"])
    assert F.cross_entropy(MATRIX, LABELS).dtype is BF16
    converted(bf16=["log_softmax"])
    assert F.cross_entropy(MATRIX, LABELS).dtype is FP32
    converted(bf16=["cross_entropy"])
    assert torch.log_softmax(MATRIX, -1).dtype is FP32
    assert F.nll_loss(MATRIX, LABELS).dtype is FP32


def test_a_part_in_float32_outweighs_another_in_the_lower_list(converted: Converter) -> None:
    converted(bf16=["log_softmax"], fp32=["nll_loss"])
    assert F.cross_entropy(MATRIX.bfloat16(), LABELS).dtype is FP32
    assert torch.log_softmax(MATRIX, -1).dtype is BF16


def test_a_loss_in_a_list_of_its_own_does_not_follow_its_parts(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "a.txt", ["cross_entropy"])
    upper = write_list(tmp_path / "b.txt", ["log_softmax", "nll_loss"])
    hmp.convert("O1", lower, upper)
    assert F.cross_entropy(MATRIX, LABELS).dtype is BF16
    hmp.convert("O1", upper, lower)
    assert F.cross_entropy(MATRIX.bfloat16(), LABELS).dtype is FP32


def test_a_norm_follows_the_name_that_torch_has_for_it_inside(converted: Converter) -> None:
    image = torch.rand(2, 4, 3, 3)
    converted(fp32=["native_layer_norm", "native_group_norm", "native_batch_norm"])
    half = image.bfloat16()
    assert F.layer_norm(half, (3,)).dtype is FP32
    assert F.group_norm(half, 2).dtype is FP32
    assert F.batch_norm(half, None, None, training=True).dtype is FP32
    assert F.instance_norm(half).dtype is FP32
    converted(bf16=["native_layer_norm", "native_group_norm", "batch_norm"])
    assert F.layer_norm(image, (3,)).dtype is BF16
    assert F.group_norm(image, 2).dtype is BF16
    assert F.instance_norm(image).dtype is FP32


def test_attention_and_products_do_not_follow_their_parts(converted: Converter) -> None:
    half = MATRIX.bfloat16()[None]
    converted(fp32=["softmax"])
    assert F.scaled_dot_product_attention(half, half, half).dtype is BF16
    converted(bf16=["mm", "addmm", "bmm", "mv", "dot"])
    assert F.linear(MATRIX, MATRIX).dtype is FP32
    assert torch.matmul(MATRIX, MATRIX).dtype is FP32


def test_the_lists_of_torch_autocast_do_not_mean_the_parts_of_a_loss() -> None:
    hmp.convert(preset="torch-cpu")
    assert F.cross_entropy(MATRIX.bfloat16(), LABELS).dtype is FP32
    assert torch.log_softmax(MATRIX.bfloat16(), -1).dtype is BF16


def test_the_log_says_that_a_loss_follows_its_parts(converted: Converter, tmp_path: Path) -> None:
    log = tmp_path / "casts.jsonl"
    converted(fp32=["log_softmax"], log=log)
    F.cross_entropy(MATRIX.bfloat16(), LABELS)
    hmp.restore()
    line = next(one for one in map(json.loads, log.read_text("utf-8").splitlines()) if one["kind"] == "operation")
    assert (line["operation"], line["precision"], line["reason"]) == ("cross_entropy_loss", "fp32", "parts")


_COMPOSED_NAMES = sorted(
    {
        name
        for whole in _operations.COMPOSED
        for name in (whole, *_operations.parts_of(whole))
        if _operations.resolve(name) is not None
    }
)


@given(sides=st.dictionaries(st.sampled_from(_COMPOSED_NAMES), st.sampled_from(["bf16", "fp32"])))
@settings(max_examples=300, deadline=None)
def test_any_lists_decide_by_the_name_itself_then_by_a_part_in_float32(sides: dict[str, str]) -> None:
    lists = {
        side: tuple(Listed(name, side, 1) for name, its_side in sides.items() if its_side == side)
        for side in ("bf16", "fp32")
    }
    try:
        policy = policy_from_lists(Preset("", "", lists["bf16"], lists["fp32"]), "bf16")
    except ListError:  # two names that both take an operation along, one in each list
        return
    rulings = {one.operation: one.listed for one in policy.covered}

    def listed_as(operation: str) -> str:
        ruling = rulings.get(operation)
        is_listed = ruling is not None and ruling.action == "precision" and not ruling.by_parts
        return ruling.precision if ruling is not None and is_listed and not ruling.no_kernel else ""

    for whole, about in _operations.COMPOSED.items():
        if whole in _operations.NO_KERNEL or (whole not in rulings and whole not in sides):
            continue
        parts = {part: listed_as(part) for part in _operations.parts_of(whole)}
        ruling = rulings.get(whole, Ruling())
        if whole in sides:
            assert (ruling.precision, ruling.by_parts) == (sides[whole], False), whole
        elif listed_as(whole):  # by its family
            assert ruling.precision == listed_as(whole)
        elif "fp32" in parts.values():
            assert (ruling.precision, ruling.by_parts) == ("fp32", True), whole
        elif ruling.precision == "bf16":
            assert about.are_all
            assert set(parts.values()) == {"bf16"}, whole
        if about.follow and listed_as(whole) == "fp32":
            assert all(rulings[part].precision == (given or "fp32") for part, given in parts.items())


# ---- shipped lists -------------------------------------------------------------------------------------------------


def test_the_model_lists_are_all_there() -> None:
    assert len(MODEL_LISTS) == 92
    assert len({name for entry in MODEL_LISTS for name in entry["ops"]}) == 123


@pytest.mark.parametrize("index", range(92))
def test_each_list_of_a_model_can_be_given_as_a_file(tmp_path: Path, index: int) -> None:
    entry = MODEL_LISTS[index]
    path, empty = write_list(tmp_path / "ops.txt", entry["ops"]), write_list(tmp_path / "empty.txt", [])
    absent = [name for name in entry["ops"] if _operations.resolve(name) is None]
    given = (path, empty) if entry["kind"] == "bf16" else (empty, path)
    assert len(warned_by_convert("O1", *given)) == len(set(absent))
    assert hmp.is_converted()


@pytest.mark.parametrize("index", range(92))
def test_each_list_of_a_model_can_be_given_beside_the_default_of_the_other_side(tmp_path: Path, index: int) -> None:
    entry = MODEL_LISTS[index]
    path = write_list(tmp_path / "ops.txt", entry["ops"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        hmp.convert("O1", *((path, "") if entry["kind"] == "bf16" else ("", path)))
    assert hmp.is_converted()


@pytest.mark.parametrize("name", sorted(_presets.presets()))
def test_every_preset_loads(name: str) -> None:
    preset = _presets.presets()[name]
    assert preset.description
    assert preset.lower or preset.fp32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HmpWarning)
        hmp.convert(preset=name)
    assert hmp.is_converted()


def test_every_model_list_is_in_a_preset() -> None:
    in_presets = {
        (side, tuple(one.name for one in listed))
        for preset in _presets.presets().values()
        for side, listed in (("bf16", preset.lower), ("fp32", preset.fp32))
    }
    missing = [entry["model"] for entry in MODEL_LISTS if (entry["kind"], tuple(entry["ops"])) not in in_presets]
    assert missing == []


def test_an_unknown_preset_is_refused_with_the_known_names() -> None:
    with pytest.raises(ValueError, match="hmp-default"):
        hmp.convert(preset="nothing")
    assert_torch_is_restored()


def test_every_shipped_name_leads_to_torch_or_is_explained() -> None:
    names = {one.name for file in DIRECTORY.glob("*.txt") for one in read_list(file)}
    names |= {name for entry in MODEL_LISTS for name in entry["ops"]}
    assert names <= _presets.shipped_names() | names
    unexplained = []
    for name in sorted(names):
        resolved = _operations.resolve(name)
        if resolved is None:
            if name not in {*_operations.EXPLAINED, "cholesky", "qr"}:  # the two are gone from torch 2.15
                unexplained.append(name)
        else:
            for one in resolved.exact:
                assert _operations.builtins_named(one) or _operations.composite_named(one), name
    assert unexplained == []


def test_what_an_operation_writes_into_beside_its_first_input_is_never_cast() -> None:
    written = {
        (name, position, argument.name)
        for schema in torch._C._jit_get_all_schemas()
        for name in [schema.name.removeprefix("aten::")]
        for position, argument in enumerate(schema.arguments)
        if position > 0 and argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out
        if _operations.builtins_named(name)
    }
    assert ("_native_batch_norm_legit", 3, "running_mean") in written
    for name, position, keyword in sorted(written - {("_amp_update_scale_", 1, "growth_tracker")}):  # an integer
        castable = _operations.arguments_of(name)
        assert castable is not None, name
        assert position not in castable.positions
        assert keyword in castable.kept_keywords


# ---- replacing -----------------------------------------------------------------------------------------------------


def test_convert_twice_replaces_and_does_not_stack(converted: Converter) -> None:
    converted(bf16=["exp", "normalize"])
    converted(bf16=["sin", "softmin"])
    assert torch.exp(MATRIX).dtype is FP32
    assert F.normalize(MATRIX).dtype is FP32
    assert torch.sin(MATRIX).dtype is BF16
    assert F.softmin(MATRIX, 0).dtype is BF16
    hmp.restore()
    assert_torch_is_restored()
    assert F.softmin(MATRIX, 0).dtype is FP32


def test_a_replaced_configuration_leaves_no_trace_in_the_counts(converted: Converter, counted: None) -> None:
    for _ in range(3):
        converted(bf16=["exp"])
    torch.exp(MATRIX)
    assert [(row.operation, row.calls) for row in hmp.report(show=False)] == [("exp", 1)]


@pytest.mark.parametrize(
    "broken",
    [
        lambda folder: hmp.convert("O9"),
        lambda folder: hmp.convert("O1", str(folder / "missing.txt")),
        lambda folder: hmp.convert("O1", "", str(folder / "missing.txt")),
        lambda folder: hmp.convert("O1", str(folder)),
        lambda folder: hmp.convert("O1", write_list(folder / "x.txt", ["nonsense"])),
        lambda folder: hmp.convert("O1", write_list(folder / "x.txt", ["mm"]), write_list(folder / "y.txt", ["mm"])),
        lambda folder: hmp.convert(preset="nothing"),
        lambda folder: hmp.convert(dtype=torch.int8),
        lambda folder: hmp.convert(log=folder / "no" / "such" / "folder" / "x.log"),
        lambda folder: hmp.convert(log=3),
    ],
)
def test_a_failing_convert_leaves_the_former_configuration_in_force(
    tmp_path: Path, converted: Converter, broken: object
) -> None:
    converted(bf16=["exp", "softmin"], fp32=["normalize"])
    with pytest.raises((OSError, ValueError, TypeError)):
        broken(tmp_path)  # type: ignore[operator]
    assert hmp.is_converted()
    assert torch.exp(MATRIX).dtype is BF16
    assert F.softmin(MATRIX, 0).dtype is BF16
    assert F.normalize(MATRIX.bfloat16()).dtype is FP32
    assert torch.mm(MATRIX, MATRIX).dtype is FP32


def test_a_failing_convert_leaves_the_former_log_open(tmp_path: Path, converted: Converter) -> None:
    log = tmp_path / "casts.log"
    converted(bf16=["exp"], log=log)
    with pytest.raises(ListError):
        hmp.convert("O1", write_list(tmp_path / "x.txt", ["nonsense"]), log=tmp_path / "other.log")
    torch.exp(MATRIX)
    hmp.restore()
    assert "to_bf16" in log.read_text()
    assert not (tmp_path / "other.log").exists()
