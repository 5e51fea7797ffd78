"""Operations that torch computes as one, but which consist of others: a loss follows its parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from habana_mp import ListError, hmp, ops
from habana_mp.ops.operation import NO_KERNEL
from habana_mp.policy.lists import Listed
from habana_mp.policy.presets import Preset
from habana_mp.policy.rules import Ruling, policy_from_lists
from helpers.lists import Converter

MATRIX = torch.eye(3) + 1
BF16, FP32 = torch.bfloat16, torch.float32

LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    "listed", [["log_softmax", "nll_loss"], ["log_softmax"], ["nll_loss"], ["nll_loss2d"]], ids=str
)
def test_a_loss_follows_its_parts_into_float32(converted: Converter, listed: list[str]) -> None:
    converted(fp32=listed)
    assert F.cross_entropy(MATRIX.bfloat16(), LABELS).dtype is FP32
    assert torch.nn.CrossEntropyLoss()(MATRIX.bfloat16(), LABELS).dtype is FP32


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


_COMPOSED_NAMES = sorted(
    {
        name
        for whole in (name for name, row in ops.rows().items() if row.parts)
        for name in (whole, *ops.parts_of(whole))
        if ops.resolve(name) is not None
    }
)


@given(sides=st.dictionaries(st.sampled_from(_COMPOSED_NAMES), st.sampled_from(["bf16", "fp32"])))
@settings(max_examples=300)
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

    for whole, about in ((name, row) for name, row in ops.rows().items() if row.parts):
        if ops.row_of(whole).unlisted == NO_KERNEL or (whole not in rulings and whole not in sides):
            continue
        parts = {part: listed_as(part) for part in ops.parts_of(whole)}
        ruling = rulings.get(whole, Ruling())
        if whole in sides:
            assert (ruling.precision, ruling.by_parts) == (sides[whole], False), whole
        elif listed_as(whole):  # by its family
            assert ruling.precision == listed_as(whole)
        elif "fp32" in parts.values():
            assert (ruling.precision, ruling.by_parts) == ("fp32", True), whole
        elif ruling.precision == "bf16":
            assert about.is_only_parts
            assert set(parts.values()) == {"bf16"}, whole
        if about.parts_follow and listed_as(whole) == "fp32":
            assert all(rulings[part].precision == (given or "fp32") for part, given in parts.items())
