"""``hmp.warm`` makes the casts that the first call would make."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import hmp


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 256)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.conv(x.mT).mT
        x = self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.norm(self.lstm(x)[0]))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model()


def made() -> tuple[int, int]:
    """The number of cached casts, and their bytes."""
    weights = hmp.report(show=False).weights
    return weights.weights, weights.bytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lists", [{"preset": "recommended"}, {"opt_level": "O2"}], ids=str)
def test_the_first_call_makes_no_cast_of_a_weight(model: Model, lists: dict[str, str], dtype: torch.dtype) -> None:
    x = torch.randn(2, 40, 64)
    hmp.convert(**lists, dtype=dtype, rules={})
    with torch.no_grad():
        expected = model(x)
        wanted = made()
        hmp.restore()  # drops the casts
        hmp.convert(**lists, dtype=dtype, rules={})
        assert hmp.warm(model) == made()[1] == wanted[1] > 0
        assert hmp.warm(model) == 0
        assert torch.equal(model(x), expected)
    assert made() == wanted


def test_a_kept_layer_and_one_with_a_rule_are_not_cast(model: Model) -> None:
    hmp.convert(preset="recommended", rules={"lstm": "fp32", "linear @ attention.**": "fp32", "conv1d": "fp32"})
    hmp.keep(model.head)
    assert hmp.warm(model) == 0
    hmp.keep(model.head, None)
    assert hmp.warm(model) == 2 * (64 * 256 + 256)


def test_without_lists_nothing_is_cast(model: Model) -> None:
    assert hmp.warm(model) == 0
    hmp.convert(opt_level="O0")
    assert hmp.warm(model) == 0


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`model` must be a module; got list"):
        hmp.warm([])  # type: ignore[arg-type]
