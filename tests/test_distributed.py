"""Training on two ranks: each way of torch gives the weights that the same casts give in one process, by hand."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from conftest import needs_fully_shard, write_list
from distributed_worker import on_two_ranks, ranks
from torch import distributed as dist
from torch import nn
from torch.distributed import fsdp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from habana_mp import _places, hmp

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # where older releases have them
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

BF16, FP32 = torch.bfloat16, torch.float32
STEPS, RATE = 3, 1e-2
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True, scope="module")
def two_processes() -> Iterator[None]:
    yield
    ranks.stop()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))


def batch(rank: int, step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(8, 16, generator=generator), torch.randint(0, 8, (8,), generator=generator)


def backward(model: nn.Module, of: Batch) -> None:
    result = model(of[0])
    assert result.dtype is BF16
    F.cross_entropy(result, of[1]).backward()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=RATE)


def step(optimizer: torch.optim.Optimizer) -> None:
    with hmp.disable_casts():
        optimizer.step()
    optimizer.zero_grad()


def weights(model: nn.Module) -> list[torch.Tensor]:
    """The parameters, whole."""
    whole = []
    for parameter in model.parameters():
        assert parameter.dtype is FP32
        whole.append(parameter.full_tensor() if isinstance(parameter, DTensor) else parameter)
    return [one.detach().clone() for one in whole]


def gradients(model: nn.Module, of: Batch, run: Callable[[nn.Module, Batch], None] = backward) -> list[torch.Tensor]:
    model.zero_grad()
    run(model, of)
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    model.zero_grad()
    return found


def train_by_hand(micro: int = 1, run: Callable[[nn.Module, Batch], None] = backward) -> list[torch.Tensor]:
    """Three steps in one process, with the mean of both ranks' gradients."""
    model = network()
    optimizer = adamw(model)
    for number in range(STEPS):
        sums = []
        for rank in range(2):
            parts = [gradients(model, batch(rank, number * micro + i), run) for i in range(micro)]
            with hmp.disable_casts():
                sums.append([sum(same) for same in zip(*parts, strict=True)])
        with hmp.disable_casts():
            for parameter, first, second in zip(model.parameters(), *sums, strict=True):
                assert first.dtype is FP32
                parameter.grad = (first + second) / 2
        step(optimizer)
    return weights(model)


def train(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or adamw(model)
    for number in range(STEPS):
        backward(model, batch(dist.get_rank(), number))
        step(optimizer)


def assert_same(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_near(actual: list[torch.Tensor], expected: list[torch.Tensor], within: float = 0.02) -> None:
    """Two sums in bf16, in another order."""
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype is other.dtype
        assert (one - other).norm() <= within * other.norm(), ((one - other).norm() / other.norm()).item()


def assert_ranks_agree(tensors: list[torch.Tensor]) -> None:
    for one in tensors:
        both = [torch.empty_like(one) for _ in range(2)]
        dist.all_gather(both, one.contiguous())
        assert torch.equal(*both)


# ---- DistributedDataParallel ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True], ids=["any module", "the model"])
@on_two_ranks
def test_ddp_trains_the_same_where_only_modules_are_lowered(named: bool) -> None:
    inner = network()
    hmp.convert(within=inner if named else "modules")
    model = DistributedDataParallel(inner)
    train(model)
    hmp.convert(within="modules")
    assert_same(weights(model), train_by_hand())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 1e-3, "gradient_as_bucket_view": True, "static_graph": True},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@on_two_ranks
def test_ddp_trains_with_the_mean_of_both_gradients(options: dict[str, Any]) -> None:
    hmp.convert()
    model = DistributedDataParallel(network(), **options)
    train(model)
    assert_same(weights(model), train_by_hand())
    assert_ranks_agree(weights(model))


@on_two_ranks
def test_ddp_agrees_with_one_process_on_the_whole_batch() -> None:
    hmp.convert()
    model = DistributedDataParallel(network())
    backward(model, batch(dist.get_rank()))
    (x0, y0), (x1, y1) = batch(0), batch(1)
    assert_near(
        [one.grad for one in model.parameters()], gradients(network(), (torch.cat([x0, x1]), torch.cat([y0, y1])))
    )


@on_two_ranks
def test_ddp_wrapped_before_convert_trains_the_same() -> None:
    model = DistributedDataParallel(network())
    hmp.convert()
    train(model)
    assert_same(weights(model), train_by_hand())


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["plain", "bucket_view"])
@on_two_ranks
def test_ddp_accumulates_gradients_without_sync(options: dict[str, Any]) -> None:
    hmp.convert()
    model = DistributedDataParallel(network(), **options)
    optimizer = adamw(model)
    for number in range(STEPS):
        with model.no_sync():
            backward(model, batch(dist.get_rank(), 2 * number))
        backward(model, batch(dist.get_rank(), 2 * number + 1))
        step(optimizer)
    assert_same(weights(model), train_by_hand(micro=2))


class Branches(nn.Module):
    """Uses one of its heads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        return self.heads[head](x)


@on_two_ranks
def test_ddp_finds_the_parameters_that_a_rank_does_not_use() -> None:
    hmp.convert()
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    x, y = batch(dist.get_rank())
    F.cross_entropy(model(x, dist.get_rank()), y).backward()
    for head in range(2):
        alone = Branches()
        x, y = batch(head)
        F.cross_entropy(alone(x, head), y).backward()
        with hmp.disable_casts():
            expected = [one.grad / 2 for one in alone.heads[head].parameters()]
        assert_same([one.grad for one in model.module.heads[head].parameters()], expected)
    assert all(one.grad is None for one in model.module.heads[2].parameters())


@on_two_ranks
def test_ddp_hands_out_running_statistics_in_float32() -> None:
    hmp.convert()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)))
    alone = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8))
    alone.load_state_dict(model.module.state_dict())
    for number in range(2):
        model(batch(dist.get_rank(), number)[0])
        alone(batch(0, number)[0])
    model.eval()(batch(0)[0])  # each forward begins with the buffers of rank 0
    norm, expected = model.module[1], alone[1]
    assert norm.running_mean.dtype is norm.running_var.dtype is FP32
    assert_same([norm.running_mean, norm.running_var], [expected.running_mean, expected.running_var])


@pytest.mark.parametrize("name", ["fp16_compress_hook", "allreduce_hook"])
@on_two_ranks
def test_a_hook_that_compresses_gradients_rounds_them_and_nothing_else(name: str) -> None:
    hmp.convert()
    dtype = torch.float16 if name == "fp16_compress_hook" else FP32
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, getattr(default_hooks, name))
    backward(model, batch(dist.get_rank()))
    first, second = (gradients(network(), batch(rank)) for rank in range(2))
    with hmp.disable_casts():
        expected = [(a.to(dtype) / 2 + b.to(dtype) / 2).float() for a, b in zip(first, second, strict=True)]
    assert_same([one.grad for one in model.parameters()], expected)


@on_two_ranks
def test_power_sgd_sends_what_it_sends_without_casts() -> None:
    hmp.convert()
    alone = network()
    backward(alone, batch(dist.get_rank()))
    sent = []
    for converted in (True, False):
        hmp.convert() if converted else hmp.restore()
        model = DistributedDataParallel(network())
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=0.5)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            model.zero_grad()
            model(batch(0)[0])
            with hmp.disable_casts():  # a loss with the gradients that `alone` has
                both = zip(model.parameters(), alone.parameters(), strict=True)
                sum((mine * its.grad).sum() for mine, its in both).backward()
        assert state.compression_stats()[0] > 1
        sent.append([one.grad for one in model.parameters()])
    assert_same(*sent)


@pytest.mark.parametrize("casts_off", [True, False], ids=["disable_casts", "bare"])
@on_two_ranks
def test_a_sharded_optimizer_steps_in_float32(casts_off: bool) -> None:
    hmp.convert()
    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=RATE)
    for number in range(STEPS):
        backward(model, batch(dist.get_rank(), number))
        with hmp.disable_casts() if casts_off else contextlib.nullcontext():
            optimizer.step()
        optimizer.zero_grad()
    assert_same(weights(model), train_by_hand())


# ---- fully_shard ---------------------------------------------------------------------------------------------------


def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (2,))


def sharded(**options: Any) -> fsdp.FSDPModule:
    model = network()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fsdp.fully_shard(layer, mesh=mesh(), **options)
    return fsdp.fully_shard(model, mesh=mesh(), **options)


@needs_fully_shard
@pytest.mark.parametrize("convert_first", [True, False], ids=["convert-shard", "shard-convert"])
@on_two_ranks
def test_fully_sharded_training_is_the_same(convert_first: bool) -> None:
    if convert_first:
        hmp.convert()
    model = sharded()
    hmp.convert()
    train(model)
    assert_same(weights(model), train_by_hand())


@needs_fully_shard
@pytest.mark.parametrize("named", [False, True], ids=["any module", "the model"])
@on_two_ranks
def test_fully_sharded_training_is_the_same_where_only_modules_are_lowered(named: bool) -> None:
    model = sharded()
    hmp.convert(within=model if named else "modules")
    train(model)
    hmp.convert(within="modules")
    assert_same(weights(model), train_by_hand())


@needs_fully_shard
@pytest.mark.parametrize("reshard", [False, 2])
@on_two_ranks
def test_fully_sharded_training_is_the_same_however_it_is_sharded_again(reshard: bool | int) -> None:
    hmp.convert()
    model = sharded(reshard_after_forward=reshard)
    train(model)
    assert_same(weights(model), train_by_hand())


@needs_fully_shard
@on_two_ranks
def test_fully_sharded_gradients_accumulate_without_sync() -> None:
    hmp.convert()
    model = sharded()
    optimizer = adamw(model)
    for number in range(STEPS):
        model.set_requires_gradient_sync(False)
        backward(model, batch(dist.get_rank(), 2 * number))
        model.set_requires_gradient_sync(True)
        backward(model, batch(dist.get_rank(), 2 * number + 1))
        step(optimizer)
    assert_same(weights(model), train_by_hand(micro=2))


@needs_fully_shard
@on_two_ranks
def test_fully_sharded_in_bf16_is_the_same_as_weights_cast_by_hand() -> None:
    hmp.convert()
    model = sharded(mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=FP32))

    def cast_by_hand(model: nn.Module, of: Batch) -> None:
        lowered = {name: one.bfloat16() for name, one in model.named_parameters()}
        result = torch.func.functional_call(model, lowered, of[0].bfloat16())
        F.cross_entropy(result, of[1]).backward()

    train(model)
    assert_same(weights(model), train_by_hand(run=cast_by_hand))


@needs_fully_shard
@on_two_ranks
def test_state_of_a_fully_sharded_model_is_float32_and_loads_again() -> None:
    hmp.convert()
    model = sharded()
    train(model)
    shards = get_model_state_dict(model)
    assert all(isinstance(one, DTensor) and one.dtype is FP32 for one in shards.values())
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert_same(list(whole.values()), train_by_hand())
    again = sharded()
    set_model_state_dict(again, shards)
    assert_same(weights(again), weights(model))
    alone = network()
    alone.load_state_dict(whole)
    assert_same(weights(alone), weights(model))


@needs_fully_shard
@on_two_ranks
def test_clipping_the_gradients_of_a_fully_sharded_model_is_exact() -> None:
    hmp.convert()
    model, alone = sharded(), network()
    for one in (model, alone):
        backward(one, batch(0))
        with hmp.disable_casts():
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.1)
    found = [one.grad.full_tensor() for one in model.parameters()]
    torch.testing.assert_close(found, [one.grad for one in alone.parameters()])


def convert_with_views(folder: Path) -> None:
    """A list with an operation by which torch's own code makes and splits parameters."""
    hmp.convert(bf16_file_path=write_list(folder / f"{dist.get_rank()}.txt", ["linear", "view"]))


@needs_fully_shard
@pytest.mark.parametrize("convert_first", [True, False], ids=["convert-shard", "shard-convert"])
@on_two_ranks
def test_fully_sharded_training_with_views_in_the_list_is_the_same(convert_first: bool, tmp_path: Path) -> None:
    if convert_first:
        convert_with_views(tmp_path)
    model = sharded()
    assert {one.dtype for one in model.parameters()} == {FP32}
    convert_with_views(tmp_path)
    train(model)
    assert_same(weights(model), train_by_hand())


# ---- FullyShardedDataParallel --------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [False, True], ids=["default", "views"])
@pytest.mark.parametrize("use_orig_params", [True, False], ids=["orig_params", "flat"])
@on_two_ranks
def test_fsdp1_training_is_the_same(use_orig_params: bool, views: bool, tmp_path: Path) -> None:
    convert_with_views(tmp_path) if views else hmp.convert()
    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
    assert {one.dtype for one in model.parameters()} == {FP32}
    train(model)
    with FullyShardedDataParallel.summon_full_params(model):
        assert_same(weights(model), train_by_hand())


# ---- tensor parallelism --------------------------------------------------------------------------------------------


PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "columns and rows": lambda: {
        "0": ColwiseParallel(output_layouts=Replicate()),
        "3": ColwiseParallel(),
        "5": RowwiseParallel(),
    },
    "sequence": lambda: {
        "0": ColwiseParallel(output_layouts=Shard(0)),
        "1": SequenceParallel(sequence_dim=0),
        "2": PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Replicate()),
        "3": ColwiseParallel(),
        "5": RowwiseParallel(),
    },
}


@pytest.mark.parametrize("plan", PLANS)
@on_two_ranks
def test_tensor_parallel_training_agrees_with_one_process(plan: str) -> None:
    hmp.convert()
    model, alone = network(), network()
    parallelize_module(model, mesh(), PLANS[plan]())
    assert sum(isinstance(one, DTensor) for one in model.parameters()) >= 6
    assert_same(weights(model), weights(alone))
    # Adam would make a whole step of a gradient's last bit.
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, alone)]
    for number in range(STEPS):
        for one, optimizer in zip((model, alone), optimizers, strict=True):
            one.zero_grad()
            F.cross_entropy(one(batch(0, number)[0]), batch(0, number)[1]).backward()
            with hmp.disable_casts():
                optimizer.step()
        for one, other in zip(model.parameters(), alone.parameters(), strict=True):
            grad = one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad
            assert_near([grad], [other.grad], 0.03)
    assert_near(weights(model), weights(alone), 0.01)
    assert_ranks_agree(weights(model))


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("size", [8, 300])
@on_two_ranks
def test_distributed_tensors_are_cast_as_plain_ones(size: int, grad: bool) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(size, size), torch.randn(size, size)
    hmp.convert()
    results = []
    for placed in (None, [Replicate()], [Shard(0)]):
        one, other = x.clone(), w.clone()
        if placed is not None:
            one, other = distribute_tensor(one, mesh(), placed), distribute_tensor(other, mesh(), [Replicate()])
        other.requires_grad_(grad)
        with torch.set_grad_enabled(grad):
            product = torch.relu(one @ other)
            result = F.softmax(product, dim=-1)
        assert isinstance(result, DTensor) is (placed is not None)
        found = [product.detach(), result.detach()]
        if grad:
            with hmp.disable_casts():
                (result * result.detach()).sum().backward()
            found.append(other.grad)
        results.append([one.full_tensor() if isinstance(one, DTensor) else one for one in found])
    expected, replicated, sharded_rows = results
    assert [one.dtype for one in expected] == [BF16, FP32, FP32][: len(expected)]
    assert_same(replicated, expected)
    assert_same(sharded_rows[:2], expected[:2])
    assert_near(sharded_rows, expected)


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@on_two_ranks
def test_a_linear_split_by_rows_runs_in_bf16(bias: bool) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(8, 16), torch.randn(32, 16), torch.randn(32)
    hmp.convert()
    expected = F.linear(x, w, b if bias else None)
    split = [distribute_tensor(one, mesh(), [Shard(1)]) for one in (x, w)]
    result = F.linear(*split, distribute_tensor(b, mesh(), [Replicate()]) if bias else None)
    assert result.dtype is BF16
    assert_near([result.full_tensor()], [expected])


@on_two_ranks
def test_mixing_distributed_and_plain_tensors_is_torchs_error() -> None:
    plain = torch.ones(4, 4)
    placed = distribute_tensor(plain, mesh(), [Shard(0)])
    messages = []
    for convert in (hmp.restore, hmp.convert):
        convert()
        with pytest.raises(RuntimeError) as caught:
            torch.mm(placed, plain)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


# ---- weights that come from another rank -----------------------------------------------------------------------------


COLLECTIVES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "broadcast": lambda w, other: dist.broadcast(w if dist.get_rank() == 0 else other, 1),
    "broadcast of data": lambda w, other: dist.broadcast(w.data if dist.get_rank() == 0 else other, 1),
    "broadcast of a detached one": lambda w, other: dist.broadcast(w.detach() if dist.get_rank() == 0 else other, 1),
    "all_reduce": lambda w, other: dist.all_reduce(w.detach() if dist.get_rank() == 0 else other),
    "all_gather": lambda w, other: dist.all_gather([torch.empty_like(w), w.detach()], other),
    "scatter": lambda w, other: dist.scatter(w.detach(), [other, w] if dist.get_rank() == 1 else None, 1),
    "receive": lambda w, other: dist.recv(w.detach(), 1) if dist.get_rank() == 0 else dist.send(other, 0),
    "of the backend": lambda w, other: backend()
    .broadcast([w if dist.get_rank() == 0 else other], from_second())
    .wait(),
}


def backend() -> Any:
    return dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))


def from_second() -> dist.BroadcastOptions:
    options = dist.BroadcastOptions()
    options.rootRank = 1
    return options


@pytest.mark.parametrize("way", COLLECTIVES)
@on_two_ranks
def test_a_weight_that_a_collective_writes_is_seen_to_change(way: str) -> None:
    """Written past autograd, and in a single element."""
    hmp.convert()
    x = batch(0)[0]
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        torch.manual_seed(0)
        layer, other = nn.Linear(16, 16), torch.zeros(16, 16)
        with torch.no_grad():
            other.copy_(layer.weight)
            other[5, 6] += 1
        for _ in range(2):
            with mode():
                before = [layer(x) for _ in range(3)][-1]
            with torch.no_grad():
                COLLECTIVES[way](layer.weight, other)
            with mode():
                after = layer(x)
            with hmp.disable_casts():
                wanted = F.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
            assert torch.equal(after, wanted)
            if dist.get_rank() == 0:
                assert not torch.equal(after, before)
            other[5, 6] += 1


# ---- processes that share or inherit -------------------------------------------------------------------------------


def within(seconds: float, process: Any) -> None:
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        pytest.fail("the process did not end in time")
    assert process.exitcode == 0


def train_alone(numbers: Iterable[int] = range(STEPS)) -> list[torch.Tensor]:
    model = network()
    optimizer = adamw(model)
    for number in numbers:
        backward(model, batch(0, number))
        step(optimizer)
    return weights(model)


def _train_and_save(path: str) -> None:
    torch.set_num_threads(1)
    torch.save(train_alone(), path)


def test_a_forked_server_trains_as_its_parent(tmp_path: Path) -> None:
    hmp.convert()
    with one_thread():
        before = train_alone()
        process = multiprocessing.get_context("fork").Process(target=_train_and_save, args=(str(tmp_path / "w"),))
        process.start()
        after = train_alone()
        within(60, process)
    assert_same(before, after)
    assert_same(torch.load(tmp_path / "w"), before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A forked child may not use the parent's threads; and figures to be compared are summed in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train_together(model: nn.Module, convert: bool) -> None:
    torch.set_num_threads(1)
    if convert:
        hmp.convert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(20):
        backward(model, batch(0, number % 2))
        step(optimizer)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_that_share_their_weights_train_them_in_float32(start: str) -> None:
    model = network().share_memory()
    places = [one.data_ptr() for one in model.parameters()]
    x, y = batch(0)
    before = F.cross_entropy(model(x), y).item()
    hmp.convert()
    with one_thread():
        context = torch.multiprocessing.get_context(start)
        process = context.Process(target=_train_together, args=(model, start == "spawn"))
        process.start()
        _train_together(model, False)
        within(60, process)
    assert {one.dtype for one in model.parameters()} == {FP32}
    assert [one.data_ptr() for one in model.parameters()] == places
    hmp.restore()
    assert F.cross_entropy(model(x), y).item() < 0.8 * before


class Products(Dataset[Batch]):
    """Items that are computed by covered operations."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Batch:
        x, y = batch(0, index)
        return torch.mm(x, torch.eye(16)), y


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_training_from_workers_with_the_log_on_neither_blocks_nor_differs(start: str, tmp_path: Path) -> None:
    path = tmp_path / "casts.jsonl"
    hmp.convert(log=path)
    with one_thread():
        expected = train_alone([*range(STEPS)] * 2)
        workers = 2 if start == "fork" else 1
        loader = DataLoader(
            Products(), batch_size=None, num_workers=workers, multiprocessing_context=start, persistent_workers=True
        )
        model = network()
        optimizer = adamw(model)
        for _ in range(2):
            for items in loader:
                assert items[0].dtype is FP32
                backward(model, items)
                step(optimizer)
    assert_same(weights(model), expected)
    hmp.restore()
    assert all(json.loads(line) for line in path.read_text().splitlines())


#: Methods of ProcessGroup that write into no tensor that they are given.
HARMLESS = {
    *(
        "BackendType",
        "CUSTOM",
        "GLOO",
        "MPI",
        "NCCL",
        "UCC",
        "UNDEFINED",
        "XCCL",
        "Options",
        "abort",
        "barrier",
        "bound_device_id",
    ),
    *(
        "boxed",
        "get_group_store",
        "group_desc",
        "group_name",
        "merge_remote_group",
        "monitored_barrier",
        "name",
        "options",
        "rank",
    ),
    *("send", "set_timeout", "shutdown", "size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
    # of a backend
    *("Options", "allocate_tensor", "eager_connect_single_device", "mem_allocator", "memory_stats", "resume"),
    *("setUsePgForSymmMemRendezvous", "shrink", "supports_coalescing", "supports_shrinking", "supports_splitting"),
    *("supports_tensor_alloc", "supports_time_estimate", "suspend"),
    # torch 2.15; a window is for memory that others write to by themselves, on accelerators only
    *("get_backend", "get_reconfigure_handle", "reconfigure", "supports_reconfigure", "new_window", "supports_window"),
    *("register_abort_hook", "register_post_hook", "register_pre_hook", "supports_abort_hooks"),
    *("supports_completion_hooks", "unregister_abort_hook", "unregister_post_hook", "unregister_pre_hook"),
}


def test_every_collective_that_this_torch_has_is_watched() -> None:
    known = HARMLESS | set(_places._SILENT_COLLECTIVES)
    for group in (torch.distributed.ProcessGroup, torch._C._distributed_c10d.Backend):
        public = {name for name in dir(group) if not name.startswith("_")}
        assert public <= known, "does it write into its tensors?"
