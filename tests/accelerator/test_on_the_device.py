"""What the package does, on a device whose memory the host cannot touch."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from habana_mp import HmpWarning, hmp
from helpers.pretended.processes import on_the_device, on_two_devices

DEVICE = "pretended"


@contextmanager
def converted(**options: Any) -> Iterator[None]:
    hmp.reset_report()
    hmp.convert(**options)
    try:
        yield
    finally:
        hmp.restore()


class Network(nn.Module):
    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 160), nn.GELU(), nn.LayerNorm(160), nn.Dropout(0.1))
        self.head = nn.Linear(160, 8)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        body: Tensor = checkpoint(self.body, x, use_reentrant=False) if self.checkpointed else self.body(x)
        found: Tensor = self.head(body)
        return found


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


def network(device: str = DEVICE, **options: Any) -> Network:
    torch.manual_seed(0)
    return Network(**options).to(device)


def batches(device: str = DEVICE, count: int = 4) -> list[Tensor]:
    return [torch.randn(16, 128, generator=torch.Generator().manual_seed(i)).to(device) for i in range(count)]


def train(model: nn.Module, given: list[Tensor], scaler: Any = None, after: Callable[[], object] = lambda: None) -> Any:
    """Returns the losses of a training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    torch.manual_seed(1)
    for x in given:
        loss = model(x).float().square().mean()
        (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
        after()
    return [one.item() for one in losses]


@on_the_device
def test_a_training_has_the_bits_of_torch_autocast() -> None:
    expected, found = network(), network()
    wrapped = torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False)(expected.forward)
    expected.forward = wrapped  # type: ignore[method-assign]  # replaced for this test
    losses = train(expected, batches())
    with converted(preset="torch-cuda"):
        assert train(found, batches()) == losses
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        assert torch.equal(one.cpu(), other.cpu())


@on_the_device
def test_a_step_waits_for_nothing() -> None:
    model, given, counts = network(), batches(), []
    with converted(report="lines"):
        train(model, given, after=lambda: counts.append(torch.pretended.synchronizations()))
    assert len(set(counts)) == 1


@on_the_device
def test_a_checkpointed_block_is_recomputed_in_its_precision() -> None:
    with converted():
        plain = train(network(), batches())
        assert train(network(checkpointed=True), batches()) == plain


@on_the_device
def test_float16_with_a_scaler() -> None:
    model, scaler = network(), torch.amp.GradScaler(DEVICE)
    with converted(preset="torch-cuda", dtype=torch.float16):
        losses = train(model, batches(count=12), scaler)
    assert losses[-1] < losses[0]
    assert all(one.dtype == torch.float32 and bool(one.isfinite().all()) for one in model.parameters())
    assert scaler.get_scale() == 65536.0
    assert ("linear", "fp16") in {(row.operation, row.precision) for row in hmp.report(show=False)}


@on_the_device
def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    model, scaler = nn.Linear(8, 8, device=DEVICE), torch.amp.GradScaler(DEVICE)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with converted(preset="torch-cuda", dtype=torch.float16):
        scaler.scale(model(torch.full((2, 8), 6e4, device=DEVICE)).float().square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 32768.0
    assert all(torch.equal(one.cpu(), before[name].cpu()) for name, one in model.state_dict().items())


@on_the_device
def test_a_compiled_model_decides_as_the_eager_one() -> None:
    model, x = network().eval(), batches()[0]
    with converted(preset="torch-cuda"), torch.no_grad():
        eager = model(x)
        compiled = torch.compile(model, backend="aot_eager")(x)
    assert compiled.dtype == eager.dtype
    assert torch.equal(compiled.cpu(), eager.cpu())


@on_the_device
def test_saving_and_loading(folder: str) -> None:
    model, x = network().eval(), batches()[0]
    with converted(), torch.no_grad():
        found = model(x).cpu()
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        other = network("cpu").eval()
        other.load_state_dict(torch.load(Path(folder) / "model.pt", map_location="cpu"))
        assert all(one.dtype == torch.float32 for one in other.parameters())
        other.to(DEVICE)
        assert torch.equal(other(x).cpu(), found)
        assert torch.equal(copy.deepcopy(model)(x).cpu(), found)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x).cpu(), found)


@on_the_device
def test_regions_and_places_without_casts() -> None:
    x = torch.ones(4, 4, device=DEVICE)
    with hmp.autocast(DEVICE, dtype=torch.bfloat16, preset="torch-cuda"):
        assert torch.mm(x, x).dtype == torch.bfloat16
        assert torch.mm(x.cpu(), x.cpu()).dtype == torch.float32
        with hmp.disable_casts():
            assert torch.mm(x, x).dtype == torch.float32
    assert torch.mm(x, x).dtype == torch.float32
    with converted(), torch.autocast(DEVICE, enabled=False):
        assert torch.mm(x, x).dtype == torch.float32


@on_the_device
def test_state_stays_in_float32() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(DEVICE)
    average = torch.zeros(4, device=DEVICE)
    with converted():
        out = model(torch.randn(2, 3, 8, 8, device=DEVICE))
        average.mul_(0.9).add_(out.mean((0, 2, 3)).detach(), alpha=0.1)
    assert {one.dtype for one in model.state_dict().values()} == {torch.float32, torch.int64}
    assert average.dtype == torch.float32


def add_up(x: Tensor, y: Tensor) -> Tensor:
    lines = torch.zeros(len(x), dtype=torch.long, device=x.device)
    return torch.mm(x, y).index_put((lines,), torch.mm(x, y), accumulate=True)


def fill_with_a_number(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y).masked_fill(x > 0, torch.tensor(1e6, device=x.device))


def run_a_lstm(x: Tensor, y: Tensor) -> Tensor:
    model = nn.LSTM(x.shape[1], 16)
    for one in model.parameters():
        nn.init.constant_(one, 0.1)
    model.to(x.device)
    model(x[:, None])[0].sum().backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


#: Calls for which the package has ways of its own on the CPU, with the sizes of their inputs.
WAYS_OF_THE_CPU: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (F.linear, (8, 128), (160, 128)),
    "mm": (torch.mm, (8, 8), (8, 8)),
    "rows at uneven distances": (lambda x, y: F.linear(x.transpose(0, 1), y), (6, 4, 128), (160, 128)),
    "images": (lambda x, y: F.conv2d(x, y, None, (1, 1), (0, 0), (1, 1), 1), (2, 32, 8, 8), (32, 32, 3, 3)),
    "a large cast": (lambda x, y: torch.mm(x, y).sum(0), (1 << 17, 128), (128, 8)),
    "a number in a tensor": (fill_with_a_number, (8, 8), (8, 8)),
    "a sum of many": (add_up, (8, 8), (8, 8)),
    "lstm": (run_a_lstm, (4, 64), (1,)),
}


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("call", WAYS_OF_THE_CPU)
@on_the_device
def test_devices_take_turns(call: str, watched: bool) -> None:
    function, *sizes = WAYS_OF_THE_CPU[call]
    x, y = (torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in sizes)
    trained = call == "lstm"
    options = {"preset": "recommended", "weight_cache": False} if trained else {"preset": "torch-cuda"}
    results = []
    with converted(**options, report="lines" if watched else "operations"), torch.set_grad_enabled(trained):
        for device in ("cpu", "cpu", DEVICE, DEVICE, "cpu"):
            weight = nn.Parameter(y.to(device), requires_grad=False)
            results.append(function(x.to(device), weight).float().cpu())
    assert all(torch.allclose(one, results[0], rtol=2e-2, atol=2e-2) for one in results)


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
@on_the_device
def test_a_number_on_the_device_is_brought_into_range_there(lower: torch.dtype) -> None:
    x, graph = torch.ones(2, 2, device=DEVICE), torch.pretended.Graph()
    given = [-3.4e38, 3.4e38, 2.0, float("inf"), float("-inf"), float("nan")]
    expected = torch.tensor([torch.finfo(lower).min, torch.finfo(lower).max, *given[2:]], dtype=lower)
    numbers = torch.tensor(given, device=DEVICE, requires_grad=True)

    def fill() -> Tensor:
        return torch.stack([torch.mm(x, x).masked_fill(x > 0, one)[0, 0] for one in numbers.unbind()])

    with converted(preset="torch-cuda", dtype=lower):
        before = torch.pretended.synchronizations()
        found = fill()
        assert torch.pretended.synchronizations() == before
        found[2].backward()
        with torch.pretended.graph(graph), torch.no_grad():
            captured = fill()
    graph.replay()
    for one in (found, captured):
        assert torch.equal(one.detach().cpu().nan_to_num(7, 8, 9), expected.nan_to_num(7, 8, 9))
    assert numbers.grad.cpu().tolist() == [0, 0, 1, 0, 0, 0]


@on_the_device
def test_the_report_has_the_times_of_the_device() -> None:
    model, x = network(), batches()[0]
    with converted(report="lines"):
        before = torch.pretended.synchronizations()
        model(x).float().sum().backward()
        assert torch.pretended.synchronizations() == before
        report = hmp.report(show=False)
    linear = [row for row in report if row.operation == "linear"]
    assert {row.module for row in linear} == {"Network.body.0", "Network.head"}
    assert all(0 < (row.cast_seconds or 0) <= (row.seconds or 0) < 1 for row in linear)
    assert all(row.seconds is not None for row in report)


@on_the_device
def test_the_guard_names_the_operation_and_the_device() -> None:
    x = torch.full((2, 2), -1.0, device=DEVICE, requires_grad=True)
    with converted(guard=1.0), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HmpWarning)
        torch.sqrt(torch.mm(x, x) - 9.0).sum().backward()
        torch.mm(x, x).sum().backward()
    assert any("`sqrt` made a NaN" in str(one.message) for one in caught)


class Waves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(0.1, 1.0, 16))
        self.body = nn.Linear(16, 8)

    def forward(self, t: Tensor) -> Tensor:
        angles = t[:, None] * self.scale  # planted
        found: Tensor = self.body(angles.float().sin())
        return found


@on_the_device
def test_a_diagnosis_names_the_line() -> None:
    torch.manual_seed(0)
    model, t, y = Waves().to(DEVICE), 1000 * torch.rand(128).to(DEVICE), torch.randn(128, 8).to(DEVICE)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    with converted(preset="recommended", within="everywhere", rules={"mul": "lower"}):
        diagnosis = hmp.diagnose(lambda: F.mse_loss(model(t).float(), y))
    assert [one.line for one in diagnosis.findings] == [Waves.forward.__code__.co_firstlineno + 1]
    assert all(torch.equal(one.cpu(), state[name].cpu()) for name, one in model.state_dict().items())


@pytest.mark.parametrize("wrapped", ["DDP", "FSDP2"])
@on_two_devices
def test_two_ranks(wrapped: str) -> None:
    rank = torch.distributed.get_rank()
    given = [batch[rank * 8 : rank * 8 + 8] for batch in batches("cpu")]
    alone, model = network("cpu").eval(), network(f"{DEVICE}:{rank}").eval()
    device = f"{DEVICE}:{rank}"
    if wrapped == "DDP":
        trained: nn.Module = DistributedDataParallel(model, device_ids=[rank])
    else:
        mesh = torch.distributed.init_device_mesh(DEVICE, (2,))
        trained = fully_shard(model, mesh=mesh)  # type: ignore[assignment]  # another class
    with converted(preset="torch-cuda"):
        train(trained, [one.to(device) for one in given])
        train(alone, batches("cpu"))
    for one, other in zip(trained.parameters(), alone.parameters(), strict=True):
        whole = one.full_tensor() if wrapped == "FSDP2" else one  # type: ignore[operator]  # of a DTensor
        assert whole.dtype == torch.float32
        assert torch.allclose(whole.detach().cpu(), other.detach(), atol=2e-2)


@on_the_device
def test_a_float32_result_is_the_sum_of_rounded_operands() -> None:
    model, x = network(), batches(count=1)[0]
    with converted(preset="torch-cuda", dtype="bf16", results="as computed", rules={"linear": "bf16 -> fp32"}):
        made = F.linear(x, model.head.weight[:, :128], model.head.bias)
        made.square().sum().backward()
    rounded, weight = (one.detach().cpu().bfloat16().double() for one in (x, model.head.weight[:, :128]))
    wanted = rounded @ weight.t() + model.head.bias.detach().cpu().double()
    gradient = (2 * made.detach().cpu()).bfloat16().double()
    assert made.dtype is torch.float32
    torch.testing.assert_close(made.detach().cpu().double(), wanted, rtol=1e-5, atol=1e-5)
    assert model.head.weight.grad is not None
    torch.testing.assert_close(
        model.head.weight.grad[:, :128].cpu().double(), gradient.t() @ rounded, rtol=1e-5, atol=1e-4
    )
