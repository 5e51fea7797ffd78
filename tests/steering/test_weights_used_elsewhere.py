"""A rule or `keep` holds in a module's forward: a warning says where another module reads its weights itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import HmpWarning, hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.processes import in_threads

BF16, FP32 = torch.bfloat16, torch.float32
X = torch.ones(2, 8)


class Adapted(nn.Module):
    """Adds a correction to the weights of a layer that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.low, self.high = nn.Linear(8, 8), nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.base.weight, self.base.bias) + self.high(self.low(x))


class Language(nn.Module):
    """The head reads the weights of the embedding, which is called too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 8)
        self.body = nn.Sequential(Adapted(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.tokens(x.argmax(-1))) @ self.tokens.weight.t()


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x[None], x[None], x[None])[0][0]
        return x


class Tied(nn.Module):
    """The head is called, and its weight is that of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5, 8), nn.Linear(8, 5, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.tokens(x.argmax(-1)))


class Sometimes(nn.Module):
    """Calls one of its modules in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.auxiliary = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + (self.auxiliary(x) if self.training else 0)


def told(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HmpWarning)
        call()
    return [str(one.message) for one in caught if issubclass(one.category, HmpWarning)]


def test_a_rule_for_a_module_that_is_never_called_names_what_to_write(converted: Converter) -> None:
    model = Language()
    converted(bf16=["linear", "matmul"], rules={"linear @ body.0.base": "fp32"})
    assert told(lambda: [model(X) for _ in range(3)]) == [
        "rules['linear @ body.0.base']: `linear @ body.0.base` does not hold for `linear` in Adapted, which reads the "
        "weights of `body.0.base` itself: write `linear @ body.0`, or call `body.0.base` there"
    ]
    converted(bf16=["linear", "matmul"], rules={"linear @ body.0": "fp32"})
    assert told(lambda: model(X)) == []


def test_a_line_for_many_modules_is_told_of_once(converted: Converter) -> None:
    model = Attending()
    converted(bf16=["linear"], rules={"* @ blocks.*.out_proj": "fp32"})
    (text,) = told(lambda: model(X))
    assert "write `* @ blocks.0`" in text


def test_keep_of_a_module_that_is_never_called_names_what_to_keep(converted: Converter) -> None:
    model = Attending()
    converted(bf16=["linear", "bmm"])
    assert told(lambda: model(X)) == []
    hmp.keep(model.blocks[1].out_proj)
    (text,) = told(lambda: [model(X) for _ in range(2)])
    assert text.startswith("hmp.keep of `blocks.1.out_proj` does not hold for `linear` in MultiheadAttention")
    assert "keep `blocks.1`, or" in text
    hmp.keep(model.blocks[1])
    assert told(lambda: model(X)) == []


def test_keep_of_an_embedding_does_not_reach_a_head_that_reads_its_weights(converted: Converter) -> None:
    model = Language()
    hmp.keep(model.tokens)
    converted(bf16=["matmul", "linear"])
    (text,) = told(lambda: model(X))
    assert text.startswith("hmp.keep of `tokens` does not hold for `__matmul__` in Language")
    assert "keep `Language`" in text


@each(
    "model, rule",
    [
        (Tied, "linear @ head"),
        (Tied, "* @ tokens"),
        (Sometimes, "linear @ auxiliary"),
        (Adapted, "linear @ low"),
        (Adapted, "* @ Adapted"),
        (Attending, "linear @ blocks.1"),
    ],
)
def test_nothing_is_told_where_a_rule_holds_or_no_weight_is_used(
    model: type[nn.Module], rule: str, converted: Converter
) -> None:
    converted(bf16=["linear"], rules={rule: "fp32"})
    assert told(lambda: model().eval()(X)) == []


def test_nothing_is_told_where_the_line_changes_nothing(converted: Converter) -> None:
    model = Adapted()
    converted(bf16=["linear"], rules={"linear @ base": "bf16"})
    assert told(lambda: model(X)) == []
    with hmp.disable_casts():
        hmp.keep(model.base)
        assert told(lambda: model(X)) == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_that_calls_a_module_is_no_use_elsewhere(backend: str, converted: Converter) -> None:
    torch._dynamo.reset()
    model = torch.compile(Sometimes(), backend=backend)
    outer = nn.Sequential(torch.compile(Sometimes(), backend=backend), nn.Linear(8, 8))
    converted(bf16=["linear"], rules={"linear @ head": "fp32", "linear @ 0.auxiliary": "fp32"})
    assert told(lambda: (model(X), outer(X))) == []


def test_lines_of_a_region_are_told_of_too(converted: Converter) -> None:
    model = Adapted()
    with hmp.autocast("cpu", rules={"linear @ base": "fp32"}):
        (text,) = told(lambda: [model(X) for _ in range(2)])
    assert "write `linear @ Adapted`" in text
    converted(bf16=["linear"])
    assert told(lambda: model(X)) == []


def test_a_call_that_raises_is_not_the_first_one(converted: Converter) -> None:
    model = Adapted()
    converted(bf16=["linear"], rules={"linear @ base": "fp32"})
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 3))
    assert len(told(lambda: model(X))) == 1


def test_each_model_is_looked_at_when_it_first_runs(converted: Converter) -> None:
    first, second = Sometimes(), Adapted()
    converted(bf16=["linear"], rules={"linear @ base": "fp32"})
    assert told(lambda: first(X)) == []
    found: list[str] = []
    in_threads(lambda _: found.extend(told(lambda: second(X))), 1)
    assert len(found) == 1


def test_looking_changes_no_result(converted: Converter) -> None:
    model = Language()
    converted(bf16=["linear", "matmul"], rules={"linear @ body.0.base": "fp32"})
    results: list[torch.Tensor] = []
    told(lambda: results.extend(model(X) for _ in range(2)))
    assert torch.equal(*results)
    assert results[0].dtype is BF16
