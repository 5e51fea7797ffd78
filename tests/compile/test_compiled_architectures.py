"""Architectures of transformers under torch.compile, whole: bit by bit what they give uncompiled, before and after.

Each of these is compiled without a graph break by plain torch, with the same bits. This needs transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from habana_mp import _core, hmp
from helpers.architectures import make_batch, make_model
from helpers.modules import assert_near

ONE_LAYER = {"num_hidden_layers": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("causal", ONE_LAYER),
    "gemma3_text": ("causal", {}),
    "bert": ("masked", ONE_LAYER),
    "deberta": ("masked", ONE_LAYER),
    "bart": ("seq2seq", {"encoder_layers": 1, "decoder_layers": 1}),
    "swin": ("image", {"depths": [1, 1]}),
    "resnet": ("image", {"depths": [1, 1], "hidden_sizes": [16, 32]}),
}
pytestmark = pytest.mark.usefixtures("compiled_anew")


Result = dict[str, torch.Tensor]


class Subject:
    """A model, what it is given, and what a step gives: the logits, and the gradients by name."""

    def __init__(self, name: str) -> None:
        kind, settings = MODELS[name]
        self.model = make_model(kind, name, **settings)
        self.batch = make_batch(kind, self.model)

    def compiled(self, backend: str) -> Callable[..., Any]:
        return torch.compile(self.model, backend=backend, fullgraph=True)

    def step(self, call: Callable[..., Any] | None = None) -> Result:
        self.model.zero_grad()
        output = (self.model if call is None else call)(**self.batch)
        output.loss.backward()
        gradients = {name: one.grad for name, one in self.model.named_parameters() if one.grad is not None}
        return {"logits": output.logits.detach(), **gradients}


def assert_same_bits(result: Result, expected: Result) -> None:
    assert result.keys() == expected.keys()
    for name, one in expected.items():
        torch.testing.assert_close(result[name], one, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", ["gemma3_text", "deberta", "bart", "swin"])
def test_compiled_after_convert_it_gives_what_it_gives_uncompiled(name: str) -> None:
    subject = Subject(name)
    plain = subject.step()
    hmp.convert()
    expected = subject.step()
    assert not torch.equal(expected["logits"], plain["logits"])
    # Without instructions, the package computes products of eager code, and torch those of this backend.
    assert_same = assert_same_bits if _core.kernels_multiplies_bfloat16() else assert_near
    assert_same(subject.step(subject.compiled("aot_eager")), expected)


@pytest.mark.parametrize("name", ["llama", "bert", "resnet"])
def test_compiled_before_convert_it_obeys_and_after_restore_it_is_as_before(name: str) -> None:
    subject = Subject(name)
    plain = subject.step()
    compiled = subject.compiled("eager")
    assert_same_bits(subject.step(compiled), plain)
    hmp.convert()
    assert_same_bits(subject.step(compiled), subject.step())
    hmp.restore()
    assert_same_bits(subject.step(compiled), plain)
