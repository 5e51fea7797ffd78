"""Names in lists: which are known, what they cover, which of two decides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import HmpWarning, ListError, hmp, ops
from habana_mp.ops import written
from helpers.each import each
from helpers.lists import Converter, warned_by_convert, write_list
from helpers.processes import run_script
from helpers.state_of_torch import assert_torch_is_restored

MATRIX = torch.eye(3) + 1
BF16, FP32 = torch.bfloat16, torch.float32

# ---- names ---------------------------------------------------------------------------------------------------------


@each(
    "one, other",
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
        ("nn.Linear", "linear"),
        ("torch.mm", "Tensor.mm"),
        ("F.mish", "Mish"),
    ],
)
@each("swap", [False, True])
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


@each(
    "typo, meant",
    [
        ("softmx", "softmax"),
        ("layernorm", "layer_norm"),
        ("conv_2d", "conv2d"),
        ("cross_entropyloss", "cross_entropy_loss"),
        ("F.sofmax", "softmax"),
        ("torch.Tensor.softmx", "softmax"),
        ("LINEAR", "linear"),
        ("torch.gelu", "gelu"),
        ("torch.nn.Liner", "linear"),
        ("nn.LayerNrom", "layer_norm"),
        ("softmax.bogus", "softmax"),
        ("lstm_cells.x", "lstm_cell"),
        ("torch.linalg.invv", "linalg_inv"),
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


@each("name", ["retain_grad", "long", "data_ptr", "__float__", "handle_torch_function", "Tensor.to"])
def test_what_is_no_operation_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ListError, match=f":1: `{name}` is no operation whose precision a list could decide"):
        hmp.convert("O1", write_list(tmp_path / "a.txt", [name]))


def test_unfold_is_the_one_of_torch_nn_functional_too(converted: Converter) -> None:
    image = torch.randn(1, 2, 4, 4)
    converted(bf16=["unfold"])
    assert F.unfold(image, 2).dtype is BF16
    assert image.unfold(2, 2, 1).dtype is FP32  # a view


def test_an_unknown_preset_is_refused_with_those_that_have_it_in_their_names() -> None:
    with pytest.raises(ValueError, match="`preset` must be one of") as caught:
        hmp.convert(preset="bert")
    hint = str(caught.value).partition("did you mean ")[2]
    assert hint.startswith("'gaudi/nlp/bert', 'gaudi/nlp/bert/bert_pt', ")
    assert hint.endswith(" or another of the 18 that `habana-mp lists bert` shows?")
    with pytest.raises(ValueError, match=r"; did you mean 'xpu-amp-bf16', 'xpu-amp-fp16'\?$"):
        hmp.convert(preset="XPU-AMP")


def test_letters_that_only_look_alike_are_shown_apart(tmp_path: Path) -> None:
    with pytest.raises(ListError, match=r"unknown operation `l\\u0456near`"):
        hmp.convert("O1", write_list(tmp_path / "a.txt", ["l\u0456near"]))


@pytest.mark.parametrize("wrong", [[], {}, 3])
def test_what_is_no_name_is_refused_as_an_unknown_one(wrong: Any) -> None:
    for call in (lambda: hmp.convert(wrong), lambda: hmp.convert(preset=wrong), lambda: hmp.op_wrap(abs, to=wrong)):
        with pytest.raises(ValueError, match="must be one of"):
            call()


EVERY_NAME = """
import pathlib, sys, torch
from habana_mp import ListError, hmp
folder = pathlib.Path(sys.argv[1])
(folder / "empty.txt").write_text("")
taken = []
names = {*dir(torch._C.TensorBase), *dir(torch._C._VariableFunctions), *dir(torch._C._nn), *dir(torch)}
for name in sorted(names)[::4]:
    # The second line is always refused, so that nothing is put into torch.
    (folder / "one.txt").write_text(name + "\\nno.such.name")
    try:
        hmp.convert("O1", folder / "one.txt", folder / "empty.txt")
    except ListError as error:
        assert not hmp.is_converted()
        assert "no.such.name" in str(error)
        if ":1:" not in str(error):
            taken.append(name)
    except Exception as error:
        print(name, type(error).__name__, str(error)[:80])
assert len(taken) > 120
(folder / "all.txt").write_text("\\n".join(taken))
hmp.convert("O1", folder / "all.txt", folder / "empty.txt")
hmp.restore()
"""


def test_any_name_of_torch_is_taken_or_refused_as_a_list_error(tmp_path: Path) -> None:
    # In a process of its own, since what was covered once is remembered for good.
    done = run_script(EVERY_NAME, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


@each("name", ["pow.Nonsense", "softmax.nonsense", "matmul.", "add.Tensor.extra", ".add"])
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
    resolve = ops.resolve
    monkeypatch.setattr(ops, "resolve", lambda name: None if name == "svd" else resolve(name))
    assert warned_by_convert(preset="torch-cpu") == []
    path, empty = write_list(tmp_path / "a.txt", []), write_list(tmp_path / "b.txt", ["svd"])
    told = f"{empty}:1: `svd` has no effect: torch {torch.__version__} has no operation of that name"
    assert warned_by_convert("O1", path, empty) == [told]


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


# The cases of tests/rules/test_listed_operations.py have the others.
@each(
    "name, call",
    [
        ("sub", lambda x: 1 - x),
        ("cat", lambda x: torch.concatenate([x, x])),
        ("clamp", lambda x: x.clip(0, 1)),
        ("norm", torch.linalg.norm),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2)),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear")),
        ("interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2, mode="nearest-exact")),
        ("LSTM", lambda x: torch.nn.LSTM(3, 4)(x)[0]),
        ("GRU", lambda x: torch.nn.GRU(3, 4)(x)[0]),
        ("pad", lambda x: F.pad(x, (1, 1))),
        ("acos", torch.arccos),
        ("outer", lambda x: torch.outer(x[0], x[1])),
    ],
)
def test_a_name_covers_the_ways_its_operation_is_reached(converted: Converter, name: str, call: object) -> None:
    converted(bf16=[name])
    assert call(MATRIX).dtype is BF16  # type: ignore[operator]  # found by name


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


@each("spelling", ["cross_entropy_loss", "__truediv__", "divide", "rtruediv", "nll_loss_nd"])
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


def test_a_module_names_the_same_operation_whatever_ran_before() -> None:
    modules = [one for one, kind in vars(torch.nn).items() if isinstance(kind, type)]
    before = [ops.resolve(one) for one in modules]
    assert ops.Resolved(("multi_head_attention_forward",)) in before
    hmp.convert()
    ops.answer_from(ops.ROWS)
    written.plain_names.cache_clear()
    assert [ops.resolve(one) for one in modules] == before
