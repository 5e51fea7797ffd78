"""Names as code has them, with their place in torch, and of modules: what they stand for, and what they leave alone."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import ListError, hmp, ops
from habana_mp.policy.lists import DIRECTORY
from habana_mp.policy.presets import shipped_names
from helpers.each import each
from helpers.lists import Converter, write_list
from helpers.state_of_torch import assert_torch_is_restored

MATRIX = torch.eye(4) + 1
BF16, FP32 = torch.bfloat16, torch.float32

PLACES = [
    ("torch.matmul", "matmul"),
    ("torch.norm", "norm"),
    ("torch.nn.functional.softmax", "softmax"),
    ("nn.functional.softmax", "softmax"),
    ("F.softmax", "softmax"),
    ("F.logsigmoid", "log_sigmoid"),
    ("F.interpolate", "interpolate"),
    ("torch._C._nn.gelu", "gelu"),
    ("Tensor.add", "add"),
    ("torch.Tensor.add", "add"),
    ("Tensor.__matmul__", "__matmul__"),
    ("torch.linalg.inv", "linalg_inv"),
    ("linalg.norm", "linalg_norm"),
    ("torch.special.expit", "special_expit"),
    ("torch.fft.ifft", "fft_ifft"),
    ("torch.ops.aten.conv2d", "conv2d"),
    ("torch.ops.aten.mm.default", "mm"),
    ("ops.aten.mm", "mm"),
    ("aten.mm.default", "mm"),
]

MODULES = [
    ("Linear", "linear"),
    ("LazyLinear", "linear"),
    ("ConvTranspose3d", "conv_transpose3d"),
    ("LayerNorm", "layer_norm"),
    ("BatchNorm2d", "batch_norm"),
    ("InstanceNorm1d", "instance_norm"),
    ("Softmax", "softmax"),
    ("Sigmoid", "sigmoid"),
    ("LogSigmoid", "log_sigmoid"),
    ("ReLU6", "hardtanh"),
    ("ZeroPad2d", "pad"),
    ("Upsample", "interpolate"),
    ("CrossEntropyLoss", "cross_entropy"),
    ("BCEWithLogitsLoss", "binary_cross_entropy_with_logits"),
    ("MultiheadAttention", "multi_head_attention_forward"),
    ("LSTM", "lstm"),
    ("RNN", "RNN"),
    ("GRUCell", "gru_cell"),
]

#: Modules that call others only, or views.
CONTAINERS = ("Sequential", "ModuleList", "Transformer", "TransformerEncoderLayer", "TransformerDecoder", "Identity")


@each("written, plain", PLACES)
def test_a_name_with_its_place_in_torch_is_the_plain_one(written: str, plain: str) -> None:
    assert ops.resolve(plain) is not None
    assert ops.resolve(written) == ops.resolve(plain)


@each("form", ["{}", "nn.{}", "torch.nn.{}"])
@each("module, called", MODULES)
def test_a_module_stands_for_the_operation_that_it_calls(module: str, called: str, form: str) -> None:
    assert ops.resolve(called) is not None
    assert ops.resolve(form.format(module)) == ops.resolve(called)


def test_a_module_is_known_by_the_place_that_its_class_shows() -> None:
    assert ops.resolve("torch.nn.modules.linear.Linear") == ops.resolve("linear")
    assert ops.resolve("torch.nn.modules.conv.Linear") is None


def test_only_modules_that_call_others_or_views_stand_for_nothing() -> None:
    kinds = inspect.getmembers(nn, lambda one: inspect.isclass(one) and issubclass(one, nn.Module))
    without = {name for name, _ in kinds if ops.resolve(name) is None}
    known = {*CONTAINERS, "Module", "ModuleDict", "ParameterList", "ParameterDict", "RNNBase", "Container"}
    known |= {"DataParallel", "Flatten", "Unflatten", "RNNCellBase", "CrossMapLRN2d"}
    known |= {"TransformerEncoder", "TransformerDecoderLayer"}
    assert without <= known


@each("name", CONTAINERS)
@each("form", ["{}", "torch.nn.{}"])
def test_a_module_without_an_operation_of_its_own_is_refused(tmp_path: Path, name: str, form: str) -> None:
    name = form.format(name)
    path = write_list(tmp_path / "a.txt", ["mm", name])
    told = f"{path}:2: `{name}` is a module that calls no operation of its own; list the operations, or the modules, "
    with pytest.raises(ListError, match=re.escape(told)):
        hmp.convert("O1", path)
    assert_torch_is_restored()


def test_names_that_lists_have_held_mean_what_they_meant() -> None:
    models = json.loads((DIRECTORY / "gaudi_model_lists.json").read_text("utf-8"))
    names = {*shipped_names(), *(name for entry in models for name in entry["ops"])}
    names |= {*ops.rows(), *ops.spellings(), *ops.EXPLAINED}
    assert len(names) > 500
    assert {name for name in names if ops.plain_name(name) != name} == set()


def test_written_names_decide_as_plain_ones_do(converted: Converter) -> None:
    converted(bf16=["nn.Linear", "torch.exp", "F.softmin"], fp32=["Tensor.mm", "nn.Softmax"])
    assert nn.Linear(4, 4)(MATRIX).dtype is BF16
    assert torch.exp(MATRIX).dtype is BF16
    assert F.softmin(MATRIX, 0).dtype is BF16
    assert torch.mm(MATRIX.bfloat16(), MATRIX.bfloat16()).dtype is FP32
    assert F.softmax(MATRIX.bfloat16(), -1).dtype is FP32


def test_attention_follows_the_name_of_its_module_also_where_nothing_is_recorded(converted: Converter) -> None:
    attention = nn.MultiheadAttention(4, 2).eval()
    converted(bf16=["nn.MultiheadAttention"])
    with torch.no_grad():
        assert attention(MATRIX, MATRIX, MATRIX)[0].dtype is BF16


def test_an_operator_may_be_written_as_code_calls_it(tmp_path: Path) -> None:
    path = write_list(tmp_path / "a.txt", ["torch.ops.written_names.twice"])
    with pytest.raises(ListError, match=r"unknown operator `torch\.ops\.written_names\.twice`; import the library"):
        hmp.convert("O1", path)

    @torch.library.custom_op("written_names::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    hmp.convert("O1", path)
    assert twice(MATRIX).dtype is BF16
