"""Cached casts of weights on an accelerator: whatever changes a weight, the next call has its new values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from habana_mp import _core, hmp
from helpers.broken_assumptions import broken
from helpers.pretended.processes import on_the_device
from helpers.processes import in_threads

DEVICE = "pretended"


def converted(body: Callable[..., None]) -> Callable[..., None]:
    """Runs the body in a process with the device, under the lists of torch.autocast."""

    @on_the_device
    @functools.wraps(body)
    def test(**parameters: Any) -> None:
        hmp.reset_report()
        hmp.convert(preset="torch-cuda")
        try:
            body(**parameters)
        finally:
            hmp.restore()

    return test


def new_weight(*, trained: bool = False) -> nn.Parameter:
    return nn.Parameter(torch.randn(160, 128, device=DEVICE), requires_grad=trained)


def new_input() -> Tensor:
    return torch.randn(4, 128, device=DEVICE)


def product(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        return F.linear(x, weight)


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    with hmp.disable_casts(), torch.no_grad():
        return F.linear(x.bfloat16(), weight.detach().bfloat16())


def is_right(x: Tensor, weight: Tensor) -> bool:
    return torch.equal(product(x, weight).cpu(), by_hand(x, weight).cpu())


def cached() -> dict[str, Any]:
    return _core.weights_statistics()


# ---- what is cached --------------------------------------------------------------------------------------------------


@converted
def test_a_weight_is_cast_once() -> None:
    x, weight = new_input(), new_weight()
    assert all(is_right(x, weight) for _ in range(3))
    assert (cached()["weights"], cached()["hits"], cached()["refused"]) == (1, 2, 0)
    assert cached()["bytes"] == 2 * weight.numel()


@converted
def test_no_call_waits_for_the_device() -> None:
    x, weight = new_input(), new_weight(trained=True)
    before = torch.pretended.synchronizations()
    for _ in range(3):
        product(x, weight)
        F.linear(x, weight).sum().backward()
    assert torch.pretended.synchronizations() == before


@converted
def test_a_view_uses_the_cast_of_its_weight() -> None:
    x, weight = new_input(), new_weight()
    with torch.no_grad():
        assert torch.equal((x @ weight.T).cpu(), by_hand(x, weight).cpu())
        for part in (weight[:128], weight[32:]):
            assert torch.equal(F.linear(x, part).cpu(), by_hand(x, part).cpu())
    assert (cached()["weights"], cached()["hits"]) == (1, 2)


@converted
def test_gradients_are_those_of_a_cast_by_hand() -> None:
    x, weight = new_input(), new_weight(trained=True)
    found = [torch.autograd.grad(F.linear(x, weight).float().square().sum(), weight)[0] for _ in range(2)]
    with hmp.disable_casts():
        lowered = F.linear(x.bfloat16(), weight.bfloat16())
        (expected,) = torch.autograd.grad(lowered.float().square().sum(), weight)
    assert expected.dtype == torch.float32
    assert all(torch.equal(one.cpu(), expected.cpu()) for one in found)
    assert cached()["hits"] == 1


@converted
def test_weights_on_two_devices_and_on_the_cpu() -> None:
    weights = [nn.Parameter(torch.randn(160, 128, device=one)) for one in ("pretended:0", "pretended:1", "cpu")]
    for _ in range(2):
        for weight in weights:
            assert product(torch.randn(4, 128, device=weight.device), weight).dtype == torch.bfloat16
    assert (cached()["weights"], cached()["hits"]) == (3, 3)


@converted
def test_a_weight_that_moves_is_cast_there() -> None:
    model, x = nn.Linear(128, 160), torch.randn(4, 128)
    with torch.no_grad():
        for device in ("cpu", "pretended:0", "pretended:1", "cpu"):
            model.to(device)
            assert model(x.to(device)).device == torch.device(device)
    assert cached()["weights"] == 2
    assert cached()["bytes"] == 2 * (128 + 1) * 160


@converted
def test_a_weight_on_meta_has_no_cast() -> None:
    assert product(torch.ones(4, 128, device="meta"), nn.Parameter(torch.ones(160, 128, device="meta"))).is_meta
    assert cached()["weights"] == 0


# ---- what changes a weight -------------------------------------------------------------------------------------------


@contextmanager
def same_version(weight: nn.Parameter) -> Iterator[None]:
    with torch.autograd._unsafe_preserve_version_counter(weight), torch.no_grad():
        yield


def step_of_torch(weight: nn.Parameter, **options: Any) -> None:
    weight.requires_grad_()
    weight.grad = torch.randn_like(weight)
    torch.optim.AdamW([weight], lr=1.0, **options).step()


def write_unseen(weight: Tensor) -> None:
    """Writes as a kernel does that is not torch's own: neither torch nor the package sees it."""
    torch.pretended.host_alias(weight).mul_(2)


def replay_of_kernels(weight: nn.Parameter) -> None:
    """A graph of CUDA holds no tensor, so nothing but its replay shows that the weight has changed."""
    graph: Any = torch.pretended.Graph()
    graph._graph = SimpleNamespace(replay=lambda: write_unseen(weight))
    graph.replay()


def step_of_kernels(weight: nn.Parameter) -> None:
    class Own(torch.optim.Optimizer):
        def __init__(self) -> None:
            super().__init__([weight], {})

        def step(self) -> None:  # type: ignore[override]  # torch takes a closure
            write_unseen(weight)

    Own().step()


def write_on_another_stream(weight: nn.Parameter) -> None:
    stream = torch.Stream(DEVICE)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream, torch.no_grad():
        weight.mul_(2)
    torch.accelerator.current_stream().wait_stream(stream)


def write_after_a_pointer(weight: nn.Parameter) -> None:
    weight.data_ptr()
    with same_version(weight):
        weight.mul_(2)


def write_by_dlpack(weight: nn.Parameter) -> None:
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(weight.detach())).mul_(2)


def free_and_gather(weight: nn.Parameter) -> None:
    """What FSDP2 does: the memory is freed, and later filled again without a new version."""
    values, storage = weight.detach() * 2, weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    with same_version(weight):
        weight.copy_(values)


def keep_the_version(weight: nn.Parameter) -> None:
    with same_version(weight):
        weight.mul_(2)


CHANGES: dict[str, Callable[[nn.Parameter], object]] = {
    "in place": lambda weight: weight.detach().mul_(2),
    "data": lambda weight: weight.data.mul_(2),
    "new data": lambda weight: setattr(weight, "data", torch.randn_like(weight)),
    "kept version": keep_the_version,
    "a step": step_of_torch,
    "replayed kernels": replay_of_kernels,
    "another stream": write_on_another_stream,
    "a pointer": write_after_a_pointer,
    "DLPack": write_by_dlpack,
    "memory that is freed and filled": free_and_gather,
    "untyped storage": lambda weight: weight.untyped_storage().copy_(torch.randn_like(weight).untyped_storage()),
    "swap_tensors": lambda weight: torch.utils.swap_tensors(weight, new_weight(trained=weight.requires_grad)),
}


@pytest.mark.parametrize("change", CHANGES)
@converted
def test_a_change_is_seen(change: str) -> None:
    x, weight = new_input(), new_weight()
    assert is_right(x, weight)
    assert cached()["weights"] == 1
    before = product(x, weight).cpu()
    CHANGES[change](weight)
    assert is_right(x, weight)
    assert not torch.equal(product(x, weight).cpu(), before)


@converted
def test_a_step_ends_the_casts_of_trained_weights() -> None:
    x, weight = new_input(), new_weight(trained=True)
    assert is_right(x, weight)
    assert cached()["weights"] == 1
    step_of_kernels(weight)
    assert is_right(x, weight)


def alias_of_new_memory(weight: nn.Parameter) -> Tensor:
    """The former memory is gone, but what holds the version counter stays, as if it were the alias's owner."""
    former = weight.detach()
    weight.data = torch.randn_like(weight)
    product(new_input(), weight)
    alias = weight.data
    alias.former = former  # type: ignore[attr-defined]  # a name of its own
    return alias


ALIASES: dict[str, Callable[[nn.Parameter], Tensor]] = {
    "C++": lambda weight: torch.pretended.host_alias(weight),
    "data beside a former state": alias_of_new_memory,
    "DLPack": lambda weight: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(weight.detach())),
}


@pytest.mark.parametrize("made", ALIASES)
@converted
def test_a_write_through_a_living_alias_is_seen(made: str) -> None:
    x, weight = new_input(), new_weight()
    assert is_right(x, weight)
    alias = ALIASES[made](weight)
    for _ in range(2):
        assert is_right(x, weight)
        alias.mul_(2)
    assert is_right(x, weight)


@converted
def test_a_weight_in_memory_of_another_library_is_never_cached() -> None:
    x, owner = new_input(), torch.randn(160, 128, device=DEVICE)
    weight = nn.Parameter(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(owner)), requires_grad=False)
    assert is_right(x, weight)
    owner.mul_(2)
    assert is_right(x, weight)
    assert cached()["reasons"] == {"its memory is not torch's own": 2}


# ---- streams ---------------------------------------------------------------------------------------------------------


@converted
def test_a_stream_waits_for_a_cast_of_another_one() -> None:
    x, weight = new_input(), new_weight()
    streams = [torch.Stream(DEVICE) for _ in range(3)]
    for one in streams:
        one.wait_stream(torch.accelerator.current_stream())
    results = []
    for one in (*streams, *streams):
        with one:
            results.append(product(x, weight))
            x.record_stream(one)
    for one in streams:
        torch.accelerator.current_stream().wait_stream(one)
    assert all(torch.equal(one.cpu(), by_hand(x, weight).cpu()) for one in results)
    assert (cached()["weights"], cached()["hits"], cached()["refreshes"]) == (1, 5, 0)


@converted
def test_a_dropped_cast_stays_until_another_stream_has_read_it() -> None:
    x, weight, stream = new_input(), new_weight(), torch.Stream(DEVICE)
    product(x, weight)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        found = product(x, weight)
        x.record_stream(stream)
    right = by_hand(x, weight).cpu()
    weight.data = torch.randn_like(weight)  # the first stream casts it again, and frees the former cast
    for _ in range(4):
        product(x, weight)
        torch.randn(weight.shape, device=DEVICE, dtype=torch.bfloat16)
    torch.accelerator.current_stream().wait_stream(stream)
    assert torch.equal(found.cpu(), right)


@converted
def test_a_cast_that_is_made_again_is_waited_for_again() -> None:
    x, weight = new_input(), new_weight()
    first, second = torch.Stream(DEVICE), torch.Stream(DEVICE)
    for makes, waits in ((first, second), (first, second), (second, first)):
        torch.accelerator.synchronize()
        with makes:
            product(x, weight)
        with waits:
            found = product(x, weight)
        torch.accelerator.synchronize()
        assert torch.equal(found.cpu(), by_hand(x, weight).cpu())
        weight.detach().mul_(2)
    assert (cached()["hits"], cached()["refreshes"]) == (3, 2)


@converted
def test_streams_of_a_device_that_is_not_the_current_one() -> None:
    x, weight = new_input(), new_weight()
    product(x, weight)
    x, weight.data = x.to("pretended:1"), weight.to("pretended:1").data
    torch.accelerator.synchronize(1)
    before = torch.pretended.current_stream("pretended:1")
    for one in (before, torch.pretended.Stream(1), torch.pretended.Stream(1)):
        torch.pretended.set_stream(one)
        assert torch.pretended.current_device() == 0
        found = product(x, weight)
    torch.pretended.set_stream(before)
    torch.accelerator.synchronize(1)
    assert torch.equal(found.cpu(), by_hand(x, weight).cpu())
    assert (cached()["weights"], cached()["hits"]) == (1, 2)


@converted
def test_threads_with_streams_of_their_own() -> None:
    x, weight = new_input(), new_weight()
    right = by_hand(x, weight).cpu()
    torch.accelerator.synchronize()
    wrong: list[object] = []

    def serve(_: int) -> None:
        try:
            with torch.Stream(DEVICE):
                wrong.extend(1 for _ in range(20) if not torch.equal(product(x, weight).cpu(), right))
        except RuntimeError as error:
            wrong.append(error)

    in_threads(serve, 3)
    assert wrong == []


# ---- graphs ----------------------------------------------------------------------------------------------------------


@converted
def test_a_captured_graph_casts_its_weights() -> None:
    x, weight, graph = new_input(), new_weight(), torch.pretended.Graph()
    product(x, weight)
    with torch.pretended.graph(graph):
        found = product(x, weight)
    assert cached()["reasons"] == {"a graph is being captured": 1}
    for _ in range(2):
        graph.replay()
        assert torch.equal(found.cpu(), by_hand(x, weight).cpu())
        weight.detach().mul_(2)


@converted
def test_a_capture_that_fails_ends() -> None:
    x, weight, graph = new_input(), new_weight(), torch.pretended.Graph()
    with pytest.raises(RuntimeError, match="capture"), torch.pretended.graph(graph):
        product(x, weight).cpu()
    del graph  # it holds the weight's memory
    assert is_right(x, weight)
    assert cached()["weights"] == 1


@on_the_device
def test_a_capture_may_begin_or_end_without_the_package() -> None:
    x, weight = new_input(), new_weight()
    for began_before in (True, False):
        graph = torch.pretended.Graph()
        hmp.reset_report()
        if not began_before:
            hmp.convert(preset="torch-cuda")
        with torch.pretended.graph(graph):
            if began_before:
                hmp.convert(preset="torch-cuda")
            product(x, weight)
            assert cached()["reasons"] == {"a graph is being captured": 1}
            hmp.restore()
        del graph  # it holds the weight's memory
        hmp.convert(preset="torch-cuda")
        assert is_right(x, weight)
        assert cached()["weights"] == 1
        hmp.restore()


# ---- memory ----------------------------------------------------------------------------------------------------------


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Leaves this many bytes free on the device."""
    torch.pretended.empty_cache()
    torch.pretended.set_memory_limit(torch.pretended.memory_allocated() + size)
    try:
        yield
    finally:
        torch.pretended.set_memory_limit(1 << 34)


@converted
def test_casts_take_half_of_the_free_memory() -> None:
    weights = [nn.Parameter(torch.randn(4096, 2048, device=DEVICE)) for _ in range(6)]  # a cast takes 16 MB
    x = torch.randn(1, 2048, device=DEVICE)
    with room_for(100 << 20):
        for weight in weights:
            product(x, weight)
    assert 2 <= cached()["weights"] < 5
    assert "the limit was reached" in cached()["reasons"]


@converted
def test_the_limit_of_a_device_is_its_own() -> None:
    devices = ["pretended:0"] * 2 + ["pretended:1"] * 3
    weights = [nn.Parameter(torch.randn(4096, 2048, device=one)) for one in devices]  # a cast takes 16 MB
    with room_for(40 << 20):  # on the current device, the first one
        for weight in weights:
            product(torch.randn(1, 2048, device=weight.device), weight)
    assert cached()["weights"] == 5


@converted
def test_memory_that_waits_for_reuse_is_free() -> None:
    weights = [nn.Parameter(torch.randn(4096, 2048, device=DEVICE)) for _ in range(3)]  # a cast takes 16 MB
    x = torch.randn(1, 2048, device=DEVICE)
    waiting = torch.empty(300 << 20, dtype=torch.uint8, device=DEVICE)
    for weight in weights[:2]:  # as much is always cached
        product(x, weight)
    with room_for(20 << 20):
        del waiting
        product(x, weights[2])
    assert cached()["weights"] == 3


@pytest.mark.parametrize("lowered", [True, False])
@converted
def test_casts_are_given_back_before_memory_runs_out(lowered: bool) -> None:
    weight, x = nn.Parameter(torch.randn(4096, 2048, device=DEVICE)), torch.randn(1, 2048, device=DEVICE)
    large = torch.ones(1 << 10, 1 << 10, device=DEVICE)
    product(x, weight)
    assert cached()["weights"] == 1
    with room_for(10 << 20):
        made = torch.mm(large[:, :1], large[:1].repeat(1, 6)) if lowered else torch.cat([large] * 3)  # 12 MB
        assert made.dtype == (torch.bfloat16 if lowered else torch.float32)
        assert cached()["weights"] == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.cat([large] * 9)
    assert made.float().sum().item() == made.numel()
    assert is_right(x, weight)


@on_the_device
def test_without_the_current_stream_nothing_is_cached() -> None:
    x, weight = new_input(), new_weight()
    with broken("torch.streams-of-accelerators"):
        hmp.reset_report()
        hmp.convert(preset="torch-cuda")
        assert all(is_right(x, weight) for _ in range(2))
        hmp.restore()
    assert cached()["reasons"] == {"casts are not cached on its device": 2}


@on_the_device
def test_inference_mode_uses_the_same_casts() -> None:
    x, weight = new_input(), new_weight()
    hmp.reset_report()
    hmp.convert(preset="torch-cuda")
    try:
        with torch.inference_mode():
            y = new_input()
            found = [F.linear(y, weight) for _ in range(2)]
            assert torch.mm(y, y.T).dtype == torch.bfloat16
        assert is_right(x, weight)
    finally:
        hmp.restore()
    assert all(torch.equal(one.cpu(), by_hand(y, weight).cpu()) for one in found)
    assert (cached()["weights"], cached()["hits"]) == (0, 2)
