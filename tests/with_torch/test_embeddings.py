"""Embeddings: trained as by hand, and their sparse gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import hmp
from helpers.comparing import assert_same, assert_unchanged, seeded
from helpers.each import each
from helpers.lists import Converter
from helpers.modules import assert_near, lower, raised, trained

BF16, FP32 = torch.bfloat16, torch.float32

pytestmark = pytest.mark.usefixtures("alike")


INDICES = torch.tensor([[1, 2], [1, 3]])


@pytest.mark.parametrize("options", [{}, {"max_norm": 0.5}, {"padding_idx": 1}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_train_in_a_list_and_in_none(converted: Converter, options: dict[str, Any]) -> None:
    def run() -> Any:
        module = nn.Embedding(6, 4, **options)
        return trained(module, INDICES), module.weight.detach()

    expected = seeded(run)
    hmp.convert()
    assert_same(seeded(run), expected)
    converted(bf16=["embedding"])
    (result, gradients), weight = seeded(run)
    assert_same(result, lower(expected[0][0]))
    assert_near(gradients, expected[0][1])
    assert_same((gradients[0].dtype, weight), (FP32, expected[1]))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_train_in_a_list_and_in_none(converted: Converter, mode: Any) -> None:
    module, weights = nn.EmbeddingBag(6, 4, mode=mode), torch.rand(2, 2)
    keywords = {"per_sample_weights": weights} if mode == "sum" else {}
    expected = trained(module, INDICES, **keywords)
    hmp.convert()
    assert_same(trained(module, INDICES, **keywords), expected)
    assert_same(trained(module, INDICES, **lower(keywords)), trained(module, INDICES, **raised(lower(keywords))))
    converted(bf16=["embedding_bag"])
    result, gradients = trained(module, INDICES, **keywords)
    assert_same(result, lower(expected[0]))  # summed in float32, and rounded once
    assert_near(gradients, expected[1])


def test_sparse_gradients_of_an_embedding_are_stepped_exactly() -> None:
    def run() -> Any:
        module = nn.Embedding(6, 4, sparse=True)
        optimizer = torch.optim.SparseAdam(module.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            module(INDICES).float().pow(2).sum().backward()
            assert module.weight.grad.is_sparse
            with hmp.disable_casts():
                optimizer.step()
        return module.weight.detach()

    assert_unchanged(run)


SPARSE: dict[str, Callable[[torch.Tensor, bool], torch.Tensor]] = {
    "embedding": lambda weight, sparse: F.embedding(INDICES, weight, sparse=sparse),
    "embedding by keyword": lambda weight, sparse: torch.embedding(weight, INDICES, sparse=sparse),
    "embedding_bag": lambda weight, sparse: F.embedding_bag(INDICES, weight, mode="sum", sparse=sparse),
    "gather": lambda weight, sparse: weight.gather(0, INDICES, sparse_grad=sparse),
}


@each("name", SPARSE)
@each("side", ["bf16", "fp32"])
def test_an_operation_in_a_list_keeps_its_weight_where_the_gradient_is_sparse(
    converted: Converter, name: str, side: str
) -> None:
    dtype, other = (FP32, BF16) if side == "bf16" else (BF16, FP32)
    found = []
    for convert in (False, True):
        weight = torch.linspace(-1, 1, 24).reshape(6, 4).to(dtype).requires_grad_()
        if convert:
            converted(**{side: [name.split()[0]]})
            assert SPARSE[name](weight, False).dtype is other
        out = SPARSE[name](weight, True)
        out.float().pow(2).sum().backward()
        assert weight.grad.is_sparse
        found.append([out.detach(), weight.grad.to_dense()])
    assert_same(*found)
