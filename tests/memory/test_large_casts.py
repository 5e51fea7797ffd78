"""Memory that waits for the next large cast, and the C library's that is kept: no result, no gradient depends on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from habana_mp import _core, hmp
from helpers import processor
from helpers.each import each
from helpers.lists import Converter
from helpers.processes import in_threads, printed_by_each

#: Large enough for a block, in these tests.
SMALL = 1024
LIMIT = 1 << 20


@pytest.fixture
def blocks(converted: Converter) -> Iterator[Converter]:
    """As ``converted``, with blocks for casts of a kilobyte."""

    def convert(**lists: Any) -> None:
        converted(**lists)
        _core.keep_blocks(SMALL, LIMIT)

    yield convert
    hmp.restore()
    assert _core.block_bytes_waiting() == 0


@contextmanager
def small_blocks(most: int = 1 << 30, **options: Any) -> Iterator[None]:
    """As ``blocks``, with autocast's lists, for a part of a test."""
    hmp.convert(preset="torch-cpu", **options)
    try:
        _core.keep_blocks(SMALL, most)
        yield
    finally:
        hmp.restore()


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return values(*shape, seed=seed).requires_grad_()


def test_the_next_cast_of_that_size_gets_the_memory(blocks: Converter) -> None:
    blocks(bf16=["relu"])
    x = leaf(32, 32)
    made = torch.relu(x).grad_fn.next_functions[0][0]
    assert type(made).__name__ == "RecordedCastBackward"
    assert _core.block_bytes_waiting() == 2048
    torch.relu(x)
    assert _core.block_bytes_waiting() == 2048


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.t(),
    "rows": lambda x: x[::2],
    "columns": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(32, 32),
    "four dimensions": lambda x: x.view(2, 16, 8, 4),
    "channels last": lambda x: x.view(2, 16, 8, 4).contiguous(memory_format=torch.channels_last),
    "one of a dimension": lambda x: x.view(32, 1, 32).transpose(0, 1),
}


@each("lay", LAYOUTS.values())
@each("given, to", [("float32", "bf16"), ("bfloat16", "fp32"), ("float16", "fp32")])
def test_values_strides_and_gradients_are_those_of_a_cast_by_hand(
    blocks: Converter, lay: Callable[[torch.Tensor], torch.Tensor], given: str, to: str
) -> None:
    dtype = torch.bfloat16 if to == "bf16" else torch.float32
    ours, by_hand = (values(32, 32).to(getattr(torch, given)).requires_grad_() for _ in range(2))
    expected = torch.relu(lay(by_hand).to(dtype))
    expected.backward(values(*expected.shape, seed=1).to(dtype))
    blocks(**{to: ["relu"]})
    for _ in range(3):
        ours.grad = None
        result = torch.relu(lay(ours))
        result.backward(values(*result.shape, seed=1).to(dtype))
        assert result.dtype == dtype
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
        assert by_hand.grad is not None
        assert ours.grad.dtype == ours.dtype
        assert torch.equal(ours.grad, by_hand.grad)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.sampled_from([16, 24, 32, 48]), st.booleans()), min_size=4, max_size=25))
def test_what_somebody_holds_is_not_written_over(uses: list[tuple[int, bool]]) -> None:
    with small_blocks(8192):
        held = []
        for i, (rows, hold) in enumerate(uses):
            x = leaf(rows, 32, seed=i)
            result = torch.ops.aten.alias(F.mse_loss(x.bfloat16(), values(rows, 32).bfloat16(), reduction="none"))
            if hold:
                held.append((result, result.clone(), x, i))
        for result, copy, x, i in held:
            assert torch.equal(result, copy)
            result.sum().backward()
            assert x.grad is not None
            by_hand = leaf(len(x), 32, seed=i)
            F.mse_loss(by_hand.bfloat16().float(), values(len(x), 32).bfloat16().float(), reduction="sum").backward()
            assert torch.equal(x.grad, by_hand.grad)


@each(
    "hold",
    [
        lambda cast: cast,
        lambda cast: cast[3:5],
        lambda cast: cast.detach(),
        lambda cast: cast.untyped_storage(),
        lambda cast: cast.detach().numpy(),
        lambda cast: torch.from_dlpack(cast.detach()),
        lambda cast: nn.Parameter(cast.detach()),
    ],
)
def test_a_cast_stays_what_it_is_in_whatever_hands(blocks: Converter, hold: Callable[[torch.Tensor], Any]) -> None:
    blocks(fp32=["dropout"])
    x = values(32, 32).bfloat16().requires_grad_()
    cast = F.dropout(x, training=False)
    assert cast.dtype is torch.float32
    copy, held = cast.detach().clone(), hold(cast)
    del cast
    for i in range(4):
        other = values(32, 32, seed=i + 1).bfloat16().requires_grad_()
        F.dropout(other, training=False)
    raw = held if isinstance(held, torch.UntypedStorage) else None
    now = torch.empty(0).set_(raw)[: copy.numel()] if raw is not None else torch.as_tensor(held)
    assert torch.equal(now.flatten(), copy.flatten() if now.numel() == copy.numel() else copy[3:5].flatten())


def test_a_gradient_of_a_gradient(blocks: Converter) -> None:
    def second(tanh: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = leaf(32, 32)
        (first,) = torch.autograd.grad((tanh(x).float() ** 2).sum(), x, create_graph=True)
        assert first.requires_grad
        (gradient,) = torch.autograd.grad((first**2).sum(), x)
        return gradient

    expected = second(lambda x: torch.tanh(x.bfloat16()))
    blocks(bf16=["tanh"])
    assert torch.equal(second(torch.tanh), expected)


class Tied(nn.Module):
    """As decoders have it: the table of words is the last layer too. Large enough for a node of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1 << 15, 1 << 7)
        nn.init.normal_(self.table.weight, std=0.02, generator=torch.Generator().manual_seed(3))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return F.linear(self.table(words), self.table.weight)


def trained(model: Tied, steps: int, *, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[Any]:
    words = torch.arange(24).view(2, 12) * 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(words), words).backward()
        gradients.append(model.table.weight.grad.clone())
        with hmp.disable_casts():
            optimizer.step()
    return [*gradients, model.table.weight.detach().clone()]


def cross_entropy(scores: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), words.flatten())


@pytest.mark.parametrize("cache", [True, False])
def test_a_large_weight_that_is_used_twice_trains_as_by_hand(cache: bool) -> None:
    def by_hand() -> list[Any]:
        model = Tied()
        model.forward = lambda words: F.linear(model.table(words).bfloat16(), model.table.weight.bfloat16())
        return trained(model, 3, loss_of=lambda scores, words: cross_entropy(scores.float(), words))

    with small_blocks(weight_cache=cache):
        with processor.by_hand():
            expected = by_hand()
        ours = trained(Tied(), 3, loss_of=cross_entropy)
        assert _core.block_bytes_waiting() > 0
    assert all(map(torch.equal, ours, expected))


def test_restore_gives_back_and_leaves_what_is_in_use(blocks: Converter) -> None:
    blocks(bf16=["relu", "tanh"])
    x = leaf(32, 32)
    torch.relu(x)
    result = torch.tanh(x)
    assert _core.block_bytes_waiting() > 0
    hmp.restore()
    assert _core.block_bytes_waiting() == 0
    result.sum().backward()
    assert torch.equal(result, torch.tanh(x.detach().bfloat16()))
    del result
    assert _core.block_bytes_waiting() == 0


def test_threads_have_blocks_of_their_own(blocks: Converter) -> None:
    blocks(bf16=["relu"])
    wrong = []

    def work(seed: int) -> None:
        x = leaf(40, 40, seed=seed)
        expected = torch.relu(x.detach().bfloat16())
        for _ in range(300):
            result = torch.relu(x)
            if not torch.equal(result, expected):
                wrong.append(seed)
            result.backward(torch.ones_like(result))

    in_threads(work)
    assert not wrong


PROGRAM = """
import ctypes
import sys
from habana_mp import hmp


libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def megabytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

def use(count, size=10 << 20):
    blocks = [libc.malloc(size) for _ in range(count)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in reversed(blocks):
        libc.free(block)

use(1)
FIRST
before = megabytes()
use(8)
kept = megabytes() - before
print(kept > 60, kept)
"""


def test_the_c_library_keeps_its_heap_unless_told_otherwise() -> None:
    kept = {
        "hmp.convert()": "True",
        "hmp.convert(); hmp.convert(reuse_memory=False)": "False",
        "hmp.convert(); hmp.restore()": "False",
        "hmp.autocast('cpu').__enter__()": "True",
    }
    printed = printed_by_each([("", PROGRAM.replace("FIRST", first)) for first in kept], with_dynamo=False)
    assert [one.split()[0] for one in printed] == [*kept.values()], printed
    for variable, value in {
        "MALLOC_TRIM_THRESHOLD_": "1000000",
        "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000000",
    }.items():
        command = [sys.executable, "-c", PROGRAM.replace("FIRST", "hmp.convert()")]
        output = subprocess.run(command, env={**os.environ, variable: value}, check=True, stdout=subprocess.PIPE).stdout
        assert output.split()[0] == b"False", (variable, output)
