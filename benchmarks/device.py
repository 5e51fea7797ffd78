"""Compares a device with the CPU in one table: decisions, results, training, saved weights and times.

    python benchmarks/device.py --device cuda [--short] [--only PART[,PART]] [--import MODULE]

The device may be any that torch supports: cpu, cuda, xpu, hpu, mps; or one that a module registers when it is imported,
as torch_npu does: --import torch_npu. The script makes each call of a list on the CPU and on the device, under the same
lists of operations. It compares the decisions, which it reads from the report, and it compares the results with those
of float32 on the CPU. It trains small networks in float32, under torch.autocast and under this package, saves them and
loads them. It times calls, steps and a decoder, in comparison with torch.autocast. It needs only torch and this
package. It takes several minutes, or less than one minute with ``--short``. The exit status is 1 if a verdict is
`WRONG`.

A verdict is `ok`, `other kernels` (the decisions differ since the devices have different kernels, rule 8), `not here`
(the device cannot do it without this package either), or `WRONG`.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import io
import math
import platform
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import habana_mp
from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAMES = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
#: The largest allowed error of a result in this precision, relative to its largest number: a few roundings.
TOLERANCE = {BF16: 4e-2, FP16: 5e-3, FP32: 2e-4}
#: Reasons that depend on the kernels of a device.
OF_KERNELS = {"no_kernel", "sums"}
#: Modules that are one kernel on a device: there a list cannot lower only the products inside, as on the CPU.
ONE_KERNEL = {"nn.GRU"}


@dataclass
class Table:
    """The rows that are printed at the end, and the number of wrong rows."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    wrong: int = 0

    def add(self, part: str, case: str, expected: object, found: object, verdict: str) -> None:
        self.rows.append((part, case, str(expected), str(found), verdict))
        self.wrong += verdict == "WRONG"

    def check(self, part: str, case: str, expected: object, found: object, *, holds: bool) -> None:
        self.add(part, case, expected, found, "ok" if holds else "WRONG")

    def show(self, title: list[str]) -> None:
        print("\n".join(title) + "\n")
        print("| part | case | expected | found | verdict |\n|---|---|---|---|---|")
        for row in self.rows:
            print("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |")
        print(f"\n{len(self.rows)} rows, {self.wrong} wrong")


# ---- the device ------------------------------------------------------------------------------------------------------


def module_of(device: torch.device) -> Any:
    """Returns torch.cuda, torch.xpu, ...: the module for the device's type."""
    return getattr(torch, device.type, None)


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work."""
    if device.type != "cpu":
        module_of(device).synchronize()


def name_of(device: torch.device) -> str:
    get_name = getattr(module_of(device), "get_device_name", None)
    if get_name is not None and device.type != "cpu":
        return str(get_name(device))
    if device.type == "cpu" and sys.platform == "linux":
        with open("/proc/cpuinfo") as info:
            models = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
        return models[0] if models else platform.machine()
    return platform.machine()


def precisions_of(device: torch.device) -> list[torch.dtype]:
    """Returns the lower precisions in which the device computes a product."""
    found = []
    for dtype in (BF16, FP16):
        try:
            torch.ones(8, 8, device=device, dtype=dtype) @ torch.ones(8, 8, device=device, dtype=dtype)
            synchronize(device)
        except (RuntimeError, TypeError):
            continue
        found.append(dtype)
    return found


def allocated(device: torch.device) -> int | None:
    """Returns the bytes of tensors on the device; None if torch does not count them."""
    count = getattr(module_of(device), "memory_allocated", None)
    return None if count is None or device.type == "cpu" else int(count())


@contextmanager
def exact_float32() -> Iterator[None]:
    """Switches off TF32 and reductions in lower precision, so that results can be compared."""
    settings = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        (torch.backends.cudnn, "allow_tf32"),
    ]
    before = [getattr(holder, name) for holder, name in settings]
    try:
        for holder, name in settings:
            setattr(holder, name, False)
        yield
    finally:
        for (holder, name), value in zip(settings, before, strict=True):
            setattr(holder, name, value)


@contextmanager
def converted(**options: Any) -> Iterator[None]:
    hmp.convert(**options)
    try:
        yield
    finally:
        hmp.restore()


# ---- the calls -------------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Returns the same numbers for every device, since the CPU's generator makes them."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass
class Call:
    """A function of tensors, which are moved to the device. With ``gradients``, the gradients are compared too."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    gradients: bool = True


def sequences() -> Tensor:
    return normal(2, 6, 16)


def module_call(module: nn.Module) -> Callable[..., Any]:
    """Returns a function that calls a copy of the module on the device of its input."""

    def call(x: Tensor) -> Any:
        mine = copy.deepcopy(module).to(x.device)
        result = mine(x, x, x)[0] if isinstance(mine, nn.MultiheadAttention) else mine(x)
        return result[0] if isinstance(result, tuple) else result

    return call


def updated(change: Callable[..., object]) -> Callable[..., Tensor]:
    """Returns a function that changes a copy of its first input in place."""

    def call(x: Tensor, *others: Tensor) -> Tensor:
        target = x.clone()
        change(target, *others)
        return target

    return call


def calls() -> list[Call]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        modules = {
            "nn.Linear": (nn.Linear(16, 8), sequences()),
            "nn.LSTM": (nn.LSTM(16, 8, batch_first=True), sequences()),
            "nn.GRU": (nn.GRU(16, 8, batch_first=True), sequences()),
            "nn.MultiheadAttention": (nn.MultiheadAttention(16, 2, batch_first=True), sequences()),
            "nn.TransformerEncoderLayer": (nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), sequences()),
            "nn.BatchNorm2d": (nn.BatchNorm2d(4), normal(2, 4, 6, 6)),
            "nn.GroupNorm": (nn.GroupNorm(2, 4), normal(2, 4, 6, 6)),
        }
    images, kernel = normal(2, 4, 9, 9), normal(6, 4, 3, 3, seed=1)
    x, y, square = normal(8, 16), normal(16, 8, seed=1), normal(8, 8, seed=2)
    classes = torch.arange(8) % 5
    index = torch.tensor([0, 2, 2, 5])
    lowest = torch.finfo(FP32).min
    return [
        Call("linear", F.linear, (x, normal(8, 16, seed=1), normal(8, seed=2))),
        Call("matmul", torch.matmul, (x, y)),
        Call("x @ y", lambda a, b: a @ b, (x, y)),
        Call("mm", torch.mm, (x, y)),
        Call("bmm", torch.bmm, (normal(3, 4, 5), normal(3, 5, 6, seed=1))),
        Call("addmm", torch.addmm, (square, x, y)),
        Call("baddbmm", torch.baddbmm, (normal(3, 4, 6), normal(3, 4, 5), normal(3, 5, 6, seed=1))),
        Call("mv", torch.mv, (x, normal(16, seed=1))),
        Call("einsum", lambda a, b: torch.einsum("ij,jk->ik", a, b), (x, y)),
        Call("conv1d", F.conv1d, (normal(2, 4, 12), normal(6, 4, 3, seed=1))),
        Call("conv2d", F.conv2d, (images, kernel, normal(6, seed=2))),
        Call(
            "conv2d, channels last", lambda a, w: F.conv2d(a.to(memory_format=torch.channels_last), w), (images, kernel)
        ),
        Call("conv3d", F.conv3d, (normal(1, 2, 5, 5, 5), normal(3, 2, 3, 3, 3, seed=1))),
        Call("conv_transpose2d", F.conv_transpose2d, (images, normal(4, 3, 3, 3, seed=1))),
        Call("scaled_dot_product_attention", F.scaled_dot_product_attention, (normal(2, 2, 6, 8),) * 3),
        *(Call(name, module_call(module), (given,)) for name, (module, given) in modules.items()),
        Call("layer_norm", lambda a, w: F.layer_norm(a, (16,), w), (x, normal(16, seed=1))),
        Call("embedding", lambda i, w: F.embedding(i, w), (index, x)),
        Call("relu", torch.relu, (x,)),
        Call("gelu", F.gelu, (x,)),
        Call("silu", F.silu, (x,)),
        Call("softmax", lambda a: torch.softmax(a, -1), (x,)),
        Call("log_softmax", lambda a: torch.log_softmax(a, -1), (x,)),
        Call("exp", torch.exp, (x,)),
        Call("pow", lambda a: a**2, (x,)),
        Call("sum", torch.sum, (x,)),
        Call("mean", lambda a: torch.mean(a, 0), (x,)),
        Call("cumsum", lambda a: torch.cumsum(a, 0), (x,)),
        Call("norm", torch.norm, (x,)),
        Call("add, mixed", lambda a, b: torch.add(torch.mm(a, b), b[:8]), (x, y)),
        Call("cat, mixed", lambda a, b: torch.cat([torch.mm(a, b), b]), (x, y)),
        Call("where, mixed", lambda a, b: torch.where(b[:8] > 0, torch.mm(a, b), b[:8]), (x, y)),
        Call("addcmul, mixed", lambda a, b: torch.addcmul(torch.mm(a, b), b[:8], b[8:]), (x, y)),
        Call("add_", updated(lambda t, a, b: t.add_(torch.mm(a, b))), (square, x, y)),
        Call("mul_ of a lowered one", lambda a, b: torch.mm(a, b).mul_(b[:8]), (x, y)),
        Call("index_add", lambda t, i, s: torch.index_add(t, 0, i, s), (x, index, normal(4, 16, seed=1))),
        Call("scatter_add", lambda t, s: torch.scatter_add(t, 0, (s > 0).long(), s), (x, normal(4, 16, seed=1))),
        Call("masked_fill of the lowest", lambda a, b: torch.mm(a, b).masked_fill(b[:8] > 0, lowest), (x, y), False),
        Call("max_pool2d", lambda a: F.max_pool2d(a, 2), (images,)),
        Call("avg_pool2d", lambda a: F.avg_pool2d(a, 2), (images,)),
        Call("interpolate", lambda a: F.interpolate(a, scale_factor=2.0, mode="bilinear"), (images,)),
        Call("cross_entropy", lambda a, b: F.cross_entropy(torch.mm(a, b)[:, :5], classes.to(a.device)), (x, y)),
        Call("mse_loss", lambda a, b: F.mse_loss(torch.mm(a, b), b[:8]), (x, y)),
        Call("nll_loss", lambda a: F.nll_loss(torch.log_softmax(a[:, :5], -1), classes.to(a.device)), (x,)),
        Call("cosine_similarity", F.cosine_similarity, (x, normal(8, 16, seed=1))),
        Call("cdist", torch.cdist, (x, normal(8, 16, seed=1))),
        Call("rfft of a lowered one", lambda a, b: torch.fft.rfft(torch.mm(a, b)).abs(), (x, y)),
        Call(
            "inv of a lowered one",
            lambda a, b: torch.linalg.inv(torch.mm(a, b) + 9 * torch.eye(8, device=a.device)),
            (x, y),
        ),
        Call("topk", lambda a, b: torch.mm(a, b).topk(3)[0], (x, y)),
        Call("dtype= given", lambda a: torch.softmax(a, -1, dtype=FP32), (x,)),
        Call("out= given", lambda a, b: torch.mm(a, b, out=torch.empty(8, 8, device=a.device)), (x, y), False),
        Call("float64", lambda a, b: torch.mm(a, b), (x.double(), y.double())),
        Call("whole numbers", lambda a: a + a, (torch.arange(6),), False),
        Call("disable_casts", hmp.disable_casts()(lambda a, b: torch.mm(a, b)), (x, y)),
        Call("autocast(enabled=False)", off_by_torch, (x, y)),
        Call("op_wrap", hmp.op_wrap(lambda a, b: torch.mm(a, b), to="fp32"), (x, y)),
        Call("checkpoint", checkpointed, (x, y)),
        Call("func.vmap", lambda a, b: torch.func.vmap(lambda row: row @ b)(a), (x, y)),
    ]


def off_by_torch(a: Tensor, b: Tensor) -> Tensor:
    with torch.autocast(a.device.type, enabled=False):
        return torch.mm(a, b)


def checkpointed(a: Tensor, b: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda one, other: torch.relu(one @ other), a, b, use_reentrant=False)


#: The decisions of one call: operation, precision, reason and count.
Decisions = list[tuple[str, str, str, int]]


def on(device: torch.device, call: Call) -> tuple[list[Tensor], Decisions]:
    """Makes the call on the device; returns the result and the gradients on the CPU, and the decisions."""
    inputs = [one.clone().to(device) for one in call.inputs]
    records = call.gradients and any(one.is_floating_point() for one in inputs)
    if records:
        inputs = [one.requires_grad_() if one.is_floating_point() else one for one in inputs]
    hmp.reset_report()
    result = call.function(*inputs)
    found = [result]
    if records:
        # Every element has another weight, since the gradient of a plain sum of normalized values is zero except for
        # rounding.
        of_total = torch.float32 if device.type == "mps" else torch.float64
        total = (result.to(of_total) * normal(*result.shape, seed=9).to(device, of_total)).sum()
        wanted = [one for one in inputs if one.requires_grad]
        found += [one for one in torch.autograd.grad(total, wanted, allow_unused=True) if one is not None]
    decisions = [(row.operation, row.precision, row.reason, row.calls) for row in hmp.report(show=False)]
    synchronize(device)
    return [one.detach().cpu() for one in found], sorted(decisions)


def error_of(one: Tensor, exact: Tensor) -> float:
    """Returns the largest difference, relative to the largest number; infinite if only one tensor is not finite."""
    one, exact = one.double(), exact.double()
    finite = exact.isfinite() & (exact.abs() < 1e30)
    if not bool(((one.isfinite() & (one.abs() < 1e30)) == finite).all()):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    return ((one - exact)[finite].abs().max() / exact[finite].abs().max().clamp(min=1e-6)).item()


def words(decisions: Decisions) -> str:
    return ", ".join(f"{name} {to} ({why})" + (f" x{n}" if n > 1 else "") for name, to, why, n in decisions) or "none"


def compare_calls(table: Table, device: torch.device, dtype: torch.dtype, options: dict[str, Any]) -> None:
    part = f"calls, {NAMES[dtype]}, {options.get('preset', 'default lists')}"
    cpu = torch.device("cpu")
    for call in calls():
        try:
            exact = on(cpu, call)[0]
            plain = on(device, call)[0]
        except Exception as error:
            table.add(part, call.name, "", first_line(error), "not here")
            continue
        with converted(dtype=dtype, **options):
            try:
                there, decided = on(device, call)
            except Exception as error:
                table.add(part, call.name, "as without casts", first_line(error), "WRONG")
                continue
            try:
                beside, expected = on(cpu, call)
            except Exception as error:  # the CPU has no kernel, so there is nothing to compare with
                table.add(part, call.name, f"on the CPU: {first_line(error)}", words(decided), "other kernels")
                beside, expected = there, decided
        lowered = any(to == NAMES[dtype] for _, to, _, _ in decided)
        bound = TOLERANCE[dtype if lowered else FP32]
        far = max(map(error_of, there, exact), default=0.0)
        # A cancelled sum may be far from its exact value on the CPU and without casts too.
        bound = max(
            bound, 3 * max(map(error_of, beside, exact), default=0.0), 3 * max(map(error_of, plain, exact), default=0.0)
        )
        of_kernels = call.name in ONE_KERNEL or any(why in OF_KERNELS for *_, why, _ in decided + expected)
        same = decided == expected and [one.dtype for one in there] == [one.dtype for one in beside]
        if far > bound:
            verdict = "WRONG"
        elif same:
            verdict = "ok"
        else:
            verdict = "other kernels" if of_kernels else "WRONG"
        seen = words(decided) if decided != expected else "the same"
        table.add(part, call.name, words(expected), f"{seen}; {there[0].dtype}, off by {far:.1e}", verdict)


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"


# ---- regions, streams, graphs ----------------------------------------------------------------------------------------


def region(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Returns a region with the lists of the device; with those of the CPU if it has none of its own."""
    preset = None if device.type in ("cpu", "cuda", "xpu", "hpu") else lists_of(device)
    return hmp.autocast(device.type, dtype=dtype, preset=preset)


def compare_regions(table: Table, device: torch.device, dtype: torch.dtype) -> None:
    part = f"regions, {NAMES[dtype]}"
    x, y = normal(8, 16), normal(16, 8, seed=1)
    there = x.to(device), y.to(device)
    with region(device, dtype):
        table.check(part, "a product on the device", dtype, found := torch.mm(*there).dtype, holds=found is dtype)
        with hmp.disable_casts():
            found = torch.mm(*there).dtype
        table.check(part, "under disable_casts", FP32, found, holds=found is FP32)
        if device.type != "cpu":
            found = torch.mm(x, y).dtype
            table.check(part, "a product on the CPU in the device's region", FP32, found, holds=found is FP32)
    if device.type != "cpu":
        with hmp.autocast("cpu", dtype=dtype):
            found = torch.mm(*there).dtype
        table.check(part, "a product on the device in the CPU's region", FP32, found, holds=found is FP32)
    with converted(dtype=dtype):
        found = torch.mm(*there).dtype
        moved = torch.mm(x, y).to(device).dtype
        if device.type != "cpu":
            compare_transfer(table, part, device, x)
    table.check(
        part,
        "after convert, on the device; moved there",
        f"{dtype}, {dtype}",
        f"{found}, {moved}",
        holds=(found, moved) == (dtype, dtype),
    )
    found = torch.mm(*there).dtype
    table.check(part, "after restore", FP32, found, holds=found is FP32)


def compare_transfer(table: Table, part: str, device: torch.device, x: Tensor) -> None:
    """Moves pinned memory to the device without waiting."""
    try:
        moved = x.pin_memory().to(device, non_blocking=True)
    except (RuntimeError, NotImplementedError) as error:
        table.add(part, "from pinned memory", "", first_line(error), "not here")
        return
    product = moved @ moved.t()
    synchronize(device)
    holds = torch.equal(moved.cpu(), x) and error_of(product.cpu(), x @ x.t()) < TOLERANCE[BF16]
    table.check(part, "from pinned memory", "the same numbers", "the same" if holds else "others", holds=holds)


def again(device: torch.device) -> float:
    """Returns the largest allowed error of a repeated computation, since a device other than the CPU may choose another
    kernel."""
    return 0.0 if device.type == "cpu" else 1e-2


def chain(weights: list[Tensor], x: Tensor) -> Tensor:
    """Computes products in the lower precision, each from a float32 result: many casts, which may reuse memory."""
    for _ in range(10):
        for weight in weights:
            x = torch.tanh(x.float() @ weight)
    return x


def compare_streams(table: Table, device: torch.device, dtype: torch.dtype) -> None:
    part = f"streams, {NAMES[dtype]}"
    module = module_of(device)
    if not hasattr(module, "Stream") or not hasattr(module, "stream"):
        table.add(part, "two streams at once", "", f"torch.{device.type} has no streams", "not here")
        return
    weights = [normal(256, 256, seed=i).to(device) / 16 for i in range(8)]
    inputs = [normal(256, 256, seed=20 + i).to(device) for i in range(2)]
    with converted(dtype=dtype), torch.no_grad():
        expected = [chain(weights, x) for x in inputs]
        synchronize(device)
        streams = [module.Stream() for _ in inputs]
        found = []
        for stream, x in zip(streams, inputs, strict=True):
            with module.stream(stream):
                found.append(chain(weights, x))
        synchronize(device)
    far = max(error_of(one.cpu(), other.cpu()) for one, other in zip(found, expected, strict=True))
    table.check(part, "two streams at once", "as one stream", f"off by {far:.1e}", holds=far <= again(device))


def graph_of(device: torch.device) -> Callable[[], Any] | None:
    """Returns the class of the device's graphs; None if it captures none."""
    module = module_of(device)
    return next((getattr(module, name) for name in ("CUDAGraph", "XPUGraph", "Graph") if hasattr(module, name)), None)


def captured(device: torch.device, call: Callable[[], Tensor]) -> tuple[Any, Tensor]:
    """Captures a call, after some calls on another stream. Returns the graph, and the tensor that a replay fills."""
    module, made = module_of(device), graph_of(device)
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        for _ in range(3):
            call()
    module.current_stream().wait_stream(side)
    graph = made()
    with module.graph(graph):
        found = call()
    return graph, found


def compare_graphs(table: Table, device: torch.device, dtype: torch.dtype) -> None:
    part = f"graphs, {NAMES[dtype]}"
    if graph_of(device) is None:
        table.add(part, "a captured graph", "", f"torch.{device.type} captures no graphs", "not here")
        return
    model = attention_network().to(device).eval()
    static, new = (batch[0].to(device) for batch in (words_batch(0), words_batch(1)))
    with converted(dtype=dtype), torch.no_grad():
        graph, out = captured(device, lambda: model(static))
        static.copy_(new)
        for name, change in {"new inputs": lambda: None, "weights changed in place": lambda: halve(model)}.items():
            change()
            graph.replay()
            expected = model(new)
            synchronize(device)
            far = error_of(out.cpu(), expected.cpu())
            table.check(part, f"a captured graph, {name}", "as the model itself", f"off by {far:.1e}", holds=far < 1e-3)


def halve(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)


# ---- training --------------------------------------------------------------------------------------------------------


class AttentionNetwork(nn.Module):
    """Finds the first word of a sequence by attention."""

    def __init__(self, words: int = 8, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(12, width) * 0.5)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(x) + self.places)[:, -1])


def attention_network() -> nn.Module:
    torch.manual_seed(0)
    return AttentionNetwork()


def words_batch(step: int) -> tuple[Tensor, Tensor]:
    words = torch.randint(0, 8, (64, 12), generator=torch.Generator().manual_seed(step))
    return words, words[:, 0].clone()


def convolution_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(512, 5),
    )  # fmt: skip


def images_batch(step: int) -> tuple[Tensor, Tensor]:
    """Returns images of one of five patterns, under noise."""
    classes = torch.randint(0, 5, (64,), generator=torch.Generator().manual_seed(step))
    patterns = normal(5, 1, 16, 16, seed=99)
    return patterns[classes] + 1.5 * normal(64, 1, 16, 16, seed=step), classes


Batch = Callable[[int], tuple[Tensor, Tensor]]
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Batch]] = {
    "attention": (attention_network, words_batch),
    "convolution": (convolution_network, images_batch),
}


@dataclass
class Way:
    """A way to train: the state of the whole training, the state of each forward, and true if losses are scaled."""

    all_the_while: Callable[[], AbstractContextManager[Any]] = nullcontext
    forward: Callable[[], AbstractContextManager[Any]] = nullcontext
    scales: bool = False


def lists_of(device: torch.device) -> str:
    """Returns the preset with the lists of torch.autocast on the device."""
    return {"cuda": "torch-cuda", "xpu": "torch-xpu"}.get(device.type, "torch-cpu")


def ways(device: torch.device, dtype: torch.dtype) -> dict[str, Way]:
    """Returns torch.autocast, and this package with its default lists and with the lists of autocast."""
    name, scales = NAMES[dtype], dtype is FP16
    return {
        f"autocast, {name}": Way(forward=lambda: torch.autocast(device.type, dtype=dtype), scales=scales),
        f"hmp, {name}": Way(lambda: converted(dtype=dtype, within="modules"), scales=scales),
        f"hmp, {name}, autocast's lists": Way(lambda: converted(dtype=dtype, preset=lists_of(device)), scales=scales),
        f"hmp.autocast, {name}": Way(forward=lambda: region(device, dtype), scales=scales),
    }


class Training:
    """A network, its optimizer and a way to train it."""

    def __init__(self, device: torch.device, model: nn.Module, batch: Batch, way: Way) -> None:
        self.device, self.model, self.batch, self.way = device, model.to(device).train(), batch, way
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.scaler = torch.amp.GradScaler(device.type, enabled=way.scales)
        self.losses: list[Tensor] = []

    def step(self, number: int) -> None:
        x, y = (one.to(self.device) for one in self.batch(number))
        self.optimizer.zero_grad()
        with self.way.forward():
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(loss.detach())

    def loss(self) -> float:
        """Returns the mean loss of the last tenth of the steps."""
        last = self.losses[-max(1, len(self.losses) // 10) :]
        return statistics.fmean(one.float().item() for one in last)


def trained(device: torch.device, network: str, way: Way, steps: int) -> Training:
    make, batch = NETWORKS[network]
    training = Training(device, make(), batch, way)
    with way.all_the_while():
        for number in range(steps):
            training.step(number)
    synchronize(device)
    return training


def compare_training(table: Table, device: torch.device, dtypes: list[torch.dtype], steps: int) -> None:
    for network in NETWORKS:
        part = f"training, {network}, {steps} steps"
        begin = trained(device, network, Way(), 1).loss()
        exact = trained(device, network, Way(), steps).loss()
        table.add(part, "float32", f"loss before {begin:.3f}", f"loss {exact:.4f}", "ok" if exact < begin else "WRONG")
        for name, way in {name: way for dtype in dtypes for name, way in ways(device, dtype).items()}.items():
            try:
                training = trained(device, network, way, steps)
            except Exception as error:
                verdict = "WRONG" if "hmp" in name else "not here"
                table.add(part, name, f"loss {exact:.4f}", first_line(error), verdict)
                continue
            loss = training.loss()
            near = loss <= 1.25 * exact + 0.05 * begin
            if "hmp" in name or near:
                table.check(part, name, f"loss {exact:.4f}", f"loss {loss:.4f}", holds=near)
            else:
                table.add(part, name, f"loss {exact:.4f}", f"loss {loss:.4f}", "not here")
            if "hmp" in name:
                state = [
                    one for of in training.optimizer.state.values() for one in of.values() if isinstance(one, Tensor)
                ]
                tensors = [*training.model.state_dict().values(), *state]
                tensors += [one.grad for one in training.model.parameters() if one.grad is not None]
                found = {one.dtype for one in tensors if one.is_floating_point()}
                table.check(
                    part, f"{name}: weights, gradients, optimizer's state", {FP32}, found, holds=found == {FP32}
                )


# ---- files, weights that change --------------------------------------------------------------------------------------


def compare_weights(table: Table, device: torch.device, dtype: torch.dtype, steps: int) -> None:
    """Saves and loads weights, and changes them in several ways. The casts must change with them."""
    part = f"weights, {NAMES[dtype]}"
    way = Way(lambda: converted(dtype=dtype), scales=dtype is FP16)
    x = words_batch(0)[0].to(device)
    model = trained(device, "attention", way, steps).model.eval()
    with way.all_the_while(), torch.no_grad():
        for _ in range(3):
            before = model(x)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        state = torch.load(file, map_location=device, weights_only=True)
        found = {one.dtype for one in state.values()}
        table.check(part, "dtypes in a saved state_dict", {FP32}, found, holds=found == {FP32})
        far = error_of(model(x).cpu(), before.cpu())
        table.check(part, "the model after saving", "as before", f"off by {far:.1e}", holds=far <= again(device))
        fresh = attention_network().to(device).eval()
        fresh(x)
        fresh.load_state_dict(state)
        far = error_of(fresh(x).cpu(), before.cpu())
        table.check(part, "loaded into a model that ran", "as before", f"off by {far:.1e}", holds=far <= again(device))

        def by_data(one: Tensor) -> None:
            one.data.mul_(0.75)

        def by_copy(one: Tensor) -> None:
            one.copy_(one * 1.25)

        def by_new_data(one: Tensor) -> None:
            one.data = one.detach() * 0.5

        def by_foreach(one: Tensor) -> None:
            torch._foreach_mul_([one], 1.5)

        for change in (by_data, by_copy, by_new_data, by_foreach):
            for parameter in model.parameters():
                change(parameter)
            far = error_of(model(x).cpu(), copy.deepcopy(model)(x).cpu())
            case = f"weights changed {change.__name__}"
            table.check(part, case, "as a fresh copy", f"off by {far:.1e}", holds=far <= again(device))
        mine = allocated(device)
        weights = hmp.report(show=False).weights
        table.check(part, "cached casts", "some", weights, holds=weights.weights > 0)
    if mine is not None:
        del model, fresh, before, state, parameter
        after = allocated(device)
        table.add(
            part, "bytes on the device with and without the models", mine, after, "ok" if after < mine else "WRONG"
        )


def compare_compiled(table: Table, device: torch.device, dtype: torch.dtype) -> None:
    part = f"compiled, {NAMES[dtype]}"
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(device)
    x = normal(16, 32).to(device)
    try:
        expected = torch.compile(model)(x)
        synchronize(device)
    except Exception as error:
        table.add(part, "torch.compile", "", first_line(error), "not here")
        return
    torch._dynamo.reset()
    with converted(dtype=dtype):
        eager, compiled = model(x), torch.compile(model)(x)
        synchronize(device)
    far = error_of(compiled.detach().cpu(), expected.detach().cpu())
    holds = compiled.dtype is eager.dtype and far < TOLERANCE[dtype]
    table.check(part, "torch.compile", f"{eager.dtype}", f"{compiled.dtype}, off by {far:.1e}", holds=holds)
    torch._dynamo.reset()


# ---- times -----------------------------------------------------------------------------------------------------------


def seconds_of(call: Callable[[], object], device: torch.device, repeat: int) -> float:
    """Returns the mean seconds of ``repeat`` calls. It waits for the device before and after them."""
    call()
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(repeat):
        call()
    synchronize(device)
    return (time.perf_counter() - begin) / repeat


@dataclass
class Timed:
    """A contender: its state, its call, and the seconds of each round."""

    all_the_while: Callable[[], AbstractContextManager[Any]]
    call: Callable[[], object]
    seconds: list[float] = field(default_factory=list)


def timed(contenders: dict[str, Timed], device: torch.device, rounds: int, budget: float) -> None:
    """Times all contenders in turn, round after round. Each timing takes about ``budget`` seconds."""
    repeats = {}
    for name, one in contenders.items():
        with one.all_the_while():
            seconds_of(one.call, device, 1)
            repeats[name] = max(1, int(budget / max(seconds_of(one.call, device, 2), 1e-7)))
    for _ in range(rounds):
        for name, one in contenders.items():
            with one.all_the_while():
                for _ in range(min(4, repeats[name])):  # fills the cache of weights' casts
                    one.call()
                one.seconds.append(seconds_of(one.call, device, repeats[name]))


def kinds_of_call(device: torch.device, *, short: bool) -> dict[str, Callable[[Way], Callable[[], object]]]:
    """Returns the calls that are timed. Each value makes the call for a way."""
    from networks import Llama

    def one_call(rows: int, size: int, *, records: bool) -> Callable[[Way], Callable[[], object]]:
        layer, x = nn.Linear(size, size).to(device), normal(rows, size).to(device)

        def make(way: Way) -> Callable[[], object]:
            def call() -> object:
                with torch.set_grad_enabled(records), way.forward():
                    return layer(x)

            return call

        return make

    def step(network: str) -> Callable[[Way], Callable[[], object]]:
        def make(way: Way) -> Callable[[], object]:
            network_made, batch = NETWORKS[network]
            given = tuple(one.to(device) for one in batch(0))
            training = Training(device, network_made(), lambda number: given, way)

            def call() -> object:
                training.losses.clear()
                return training.step(0)

            return call

        return make

    def decoding(way: Way) -> Callable[[], object]:
        torch.manual_seed(0)
        width = 128 if short else 512
        decoder = Llama(hidden=width, layers=2 if short else 8, heads=8, intermediate=2 * width, words=1000)
        decoder.to(device).eval()
        with torch.no_grad():
            pasts = decoder(torch.arange(32, device=device)[None])[1]
        word = torch.zeros(1, 1, dtype=torch.long, device=device)

        def call() -> object:
            with torch.no_grad(), way.forward():
                return decoder(word, pasts)

        return call

    def replaying(way: Way) -> Callable[[], object]:
        call, graphs = decoding(way), []

        def replay() -> None:
            if not graphs:
                graphs.append(captured(device, lambda: call()[0])[0])
            graphs[0].replay()

        return replay

    graphs = {} if graph_of(device) is None else {"decoding, one word, a captured graph": replaying}
    return {
        "linear 4x16": one_call(4, 16, records=False),
        "linear 4x16, recorded": one_call(4, 16, records=True),
        f"linear {256 if short else 1024}": one_call(128, 256 if short else 1024, records=False),
        "training step, attention": step("attention"),
        "training step, convolution": step("convolution"),
        "decoding, one word": decoding,
        **graphs,
    }


def time_all(table: Table, device: torch.device, dtypes: list[torch.dtype], *, short: bool) -> None:
    for dtype in dtypes[:1] if short else dtypes:
        # Training in float16 needs a scaler, which waits for the device in each step, with every contender.
        here = {"float32": Way(), **ways(device, dtype)}
        for kind, make in kinds_of_call(device, short=short).items():
            contenders = {}
            for name, way in here.items():
                contenders[name] = Timed(way.all_the_while, make(way))
            try:
                timed(contenders, device, rounds=2 if short else 7, budget=0.01 if short else 0.15)
            except Exception as error:
                table.add(f"times, {NAMES[dtype]}", kind, "", first_line(error), "not here")
                continue
            medians = {name: statistics.median(one.seconds) for name, one in contenders.items()}
            autocast = medians[f"autocast, {NAMES[dtype]}"]
            for name, median in medians.items():
                beside = f"{median * 1e6:,.1f} us, {autocast / median:.2f} times as fast"
                peer = f"autocast {autocast * 1e6:,.1f} us"
                table.add(f"times, {NAMES[dtype]}", f"{kind}: {name}", peer, beside, "ok")


# ---- all of it -------------------------------------------------------------------------------------------------------

PARTS = ("calls", "regions", "training", "weights", "compiled", "times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, xpu, hpu, mps, ...")
    parser.add_argument(
        "--import", dest="module", metavar="MODULE", help="a module that registers the device with torch"
    )
    parser.add_argument("--short", action="store_true", help="fewer steps and rounds, smaller networks, no compiler")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART[,PART]", help=", ".join(PARTS))
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}; got {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")  # the table shows all problems
    if options.module:
        importlib.import_module(options.module)
    device = torch.device(options.device)
    if device.type == "hpu":
        importlib.import_module("habana_frameworks.torch")  # registers the device with torch
    torch.empty(0, device=device)  # raises torch's own error if the device is missing
    if device.index is not None:
        module_of(device).set_device(device)
    begin = time.perf_counter()
    table, dtypes, steps = Table(), precisions_of(device), 8 if options.short else 200
    for dtype in {BF16, FP16}.difference(dtypes):
        table.add("device", f"products in {NAMES[dtype]}", "", "torch refuses them", "not here")

    def run(part: str, compare: Callable[..., None], *arguments: Any, **keywords: Any) -> None:
        """Runs a part if it is selected. An error becomes a row, so that the other parts still run."""
        if part not in parts:
            return
        print(f"{time.perf_counter() - begin:6.0f} s  {compare.__name__} {arguments}", file=sys.stderr, flush=True)
        try:
            compare(table, device, *arguments, **keywords)
            synchronize(device)
        except Exception as error:
            traceback.print_exc()
            table.add(part, f"{compare.__name__} {arguments}", "no error", first_line(error), "WRONG")
            hmp.restore()

    for dtype in dtypes:
        with exact_float32():
            run("calls", compare_calls, dtype, {})
            run("calls", compare_calls, dtype, {"preset": lists_of(device)})
            run("regions", compare_regions, dtype)
            run("regions", compare_streams, dtype)
            run("regions", compare_graphs, dtype)
            run("weights", compare_weights, dtype, 4)
        if not options.short:
            run("compiled", compare_compiled, dtype)
    run("training", compare_training, dtypes, steps)
    run("times", time_all, dtypes, short=options.short)
    table.show([
        f"## {name_of(device)} ({device})",
        "",
        f"- command: `python benchmarks/device.py {' '.join(sys.argv[1:])}`",
        f"- torch {torch.__version__}, habana_mp {habana_mp.__version__}, Python {platform.python_version()}, "
        f"{platform.platform()}, {torch.get_num_threads()} threads on the CPU",
        f"- took {time.perf_counter() - begin:.0f} s",
    ])  # fmt: skip
    return int(table.wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
