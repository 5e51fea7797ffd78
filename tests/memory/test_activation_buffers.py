"""Memory for casts of activations that is used again: only where nobody can still read what was in it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from habana_mp import _core, hmp, ops
from helpers.lists import Converter
from helpers.processes import in_threads
from helpers.weights import all_bfloat16_tensors

WITHOUT_GRAD: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
W = torch.linspace(-1.0, 1.0, 32 * 8).reshape(32, 8).bfloat16()


def batch(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() @ W


@pytest.mark.parametrize("mode", WITHOUT_GRAD)
def test_results_stay_right_when_memory_is_used_again(converted: Converter, mode: str) -> None:
    batches = [batch(i, 4, 32) for i in range(20)]
    expected = [by_hand(x) for x in batches]
    converted(bf16=["matmul"])
    with WITHOUT_GRAD[mode]():
        results = [x @ W for x in batches]
    assert all(map(torch.equal, results, expected))
    assert _core.buffer_count() == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.booleans()), min_size=5, max_size=30))
def test_any_order_of_shapes_and_layouts(shapes: list[tuple[int, int, bool]]) -> None:
    images = [
        (batch(i, n, c, 5, 5).to(memory_format=torch.channels_last) if last else batch(i, n, c, 5, 5), i)
        for i, (n, c, last) in enumerate(shapes)
    ]
    kernels = {c: batch(c, 2, c, 3, 3).bfloat16() for c in range(1, 5)}
    expected = [F.conv2d(x.bfloat16(), kernels[x.shape[1]]) for x, _ in images]
    hmp.convert(preset="torch-cpu")
    with torch.no_grad():
        for (x, _), wanted in zip(images, expected, strict=True):
            result = F.conv2d(x, kernels[x.shape[1]])
            assert torch.equal(result, wanted)
            assert result.stride() == wanted.stride()


def test_what_a_graph_holds_is_not_used_again(converted: Converter) -> None:
    converted(bf16=["matmul"])
    weight = W.clone().requires_grad_()
    batches = [batch(i, 4, 32) for i in range(6)]
    results = [x @ weight for x in batches]
    with torch.no_grad():
        for x in batches:
            x.flip(0) @ W
    for x, result in zip(batches, results, strict=True):
        (gradient,) = torch.autograd.grad(result.sum(), weight)
        assert torch.equal(gradient, x.bfloat16().t() @ torch.ones(4, 8, dtype=torch.bfloat16))


def test_a_result_that_is_its_input_is_not_written_over(converted: Converter) -> None:
    converted(bf16=["dropout", "alpha_dropout"])
    assert not {"dropout", "alpha_dropout"} & {name for name, row in ops.rows().items() if row.caches_weights}
    batches = [batch(i, 4, 32) for i in range(6)]
    with torch.no_grad():
        for call in (lambda x: F.dropout(x, training=False), lambda x: F.alpha_dropout(x, training=False)):
            results = [call(x) for x in batches]
            for x, result in zip(batches, results, strict=True):
                assert torch.equal(result.float().flatten(), x.bfloat16().float().flatten())


def test_threads_do_not_share_memory_that_is_in_use(converted: Converter) -> None:
    # Large enough for the cast to let go of the GIL.
    batches = [batch(i, 64, 2048) for i in range(4)]
    weight = batch(9, 2048, 16).bfloat16()
    converted(bf16=["matmul"])
    with torch.no_grad():
        expected = [x @ weight for x in batches]
    wrong: list[int] = []

    def work(index: int) -> None:
        with torch.no_grad():
            for _ in range(60):
                if not torch.equal(batches[index] @ weight, expected[index]):
                    wrong.append(index)

    in_threads(work)
    assert wrong == []


def test_a_few_are_kept_and_go_with_the_configuration(converted: Converter) -> None:
    converted(bf16=["matmul"])
    with torch.no_grad():
        for _ in range(3):
            for rows in range(1, 41):
                batch(rows, rows, 32) @ W
        for _ in range(3):
            batch(0, 1 << 15, 1 << 10) @ batch(1, 1 << 10, 1).bfloat16()
    assert 0 < _core.buffer_count() <= 16
    hmp.restore()
    assert _core.buffer_count() == 0


def buffers_like(rows: int) -> list[torch.Tensor]:
    return [one for one in all_bfloat16_tensors() if one.dim() == 2 and one.shape[0] >= rows]


def test_what_somebody_found_among_all_objects_is_not_written_over(converted: Converter) -> None:
    converted(bf16=["matmul"])
    weight = torch.ones(32, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        others = buffers_like(777)
        for _ in range(5):
            torch.full((777, 32), 1.0) @ weight
        held = [one for one in buffers_like(777) if all(one is not other for other in others)]
        assert len(held) == 1
        torch.full((777, 32), 7.0) @ weight
    assert torch.equal(held[0], torch.ones_like(held[0]))
