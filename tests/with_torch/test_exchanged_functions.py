"""What torch keeps: weights that are initialised, reset, materialised or made of weights, statistics of observers,
learning rates. They are those of plain torch.

Needs the libraries of ``patches/libraries/``: botorch, compressai, gpytorch, opacus, peft, qpth, shap, tangermeme,
torchmetrics, torchvision, transformers, zuko.
"""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.pruning import WeightNormSparsifier
from torch.ao.quantization._equalize import equalize
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim import lr_scheduler, swa_utils

from habana_mp import hmp
from habana_mp.patches.all import EXCHANGES
from habana_mp.patches.libraries import exchanges
from habana_mp.patches.tools import named_functions
from helpers.comparing import assert_same, assert_unchanged, seeded, tensors
from helpers.each import each
from helpers.lists import Converter
from helpers.processes import run_script
from helpers.torchvision_here import import_torchvision

BF16, FP32 = torch.bfloat16, torch.float32


pytestmark = pytest.mark.usefixtures("alike")


def averaged(**options: Any) -> list[torch.Tensor]:
    model = nn.Linear(8, 8)
    average = swa_utils.AveragedModel(model, **options)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape))
        average.update_parameters(model)
    return list(average.module.parameters())


def fused_convolution() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    with torch.no_grad():
        for one in (*model[1].parameters(), *model[1].buffers()):
            if one.is_floating_point():
                one.uniform_(0.5, 2)
    fused = torch.nn.utils.fuse_conv_bn_eval(*model)
    return [*fused.parameters(), *quantization.fuse_modules(model, [["0", "1"]])[0].parameters()]


def fused_linear() -> list[torch.Tensor]:
    linear, norm = nn.Linear(3, 4).eval(), nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        for one in (*norm.parameters(), norm.running_mean, norm.running_var):
            one.uniform_(0.5, 2)
    return list(torch.nn.utils.fuse_linear_bn_eval(linear, norm).parameters())


def equalized() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    return list(equalize(model, [["0", "1"]], 1e-4, inplace=False).parameters())


def pruned(method: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
    module = nn.Linear(8, 8)
    method(module)
    module(torch.randn(2, 8))
    kept = [module.weight_mask.clone(), module.weight_orig.detach().clone()]
    prune.remove(module, "weight")
    return [*kept, module.weight]


def sparsified() -> list[torch.Tensor]:
    model = nn.Sequential(nn.Linear(64, 64))
    sparsifier = WeightNormSparsifier(sparsity_level=0.5, sparse_block_shape=(1, 4), zeros_per_block=4)
    sparsifier.prepare(model, [{"tensor_fqn": "0.weight"}])
    sparsifier.step()
    return [model[0].parametrizations.weight[0].mask.clone()]


class Twice(nn.Module):
    """A parametrization that would be lowered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5


def parametrized() -> list[torch.Tensor]:
    module = nn.Linear(8, 8)
    parametrize.register_parametrization(module, "weight", Twice())
    module.weight = torch.randn(8, 8)
    made = [module.parametrizations.weight.original.detach().clone()]
    parametrize.remove_parametrizations(module, "weight")
    return [*made, module.weight]


def normalised(method: Callable[[nn.Module], nn.Module], remove: Callable[[nn.Module, str], Any]) -> list[torch.Tensor]:
    module = method(nn.Linear(8, 8))
    for _ in range(3):
        module(torch.randn(3, 8))
    state = [value.clone() for value in module.state_dict().values()]
    remove(module, "weight")
    return [*state, module.weight]


def assigned_orthogonal() -> list[torch.Tensor]:
    module = parametrizations.orthogonal(nn.Linear(8, 8))
    module.weight = torch.linalg.qr(torch.randn(8, 8))[0]
    return list(module.state_dict().values())


def scheduled(make: Callable[[torch.optim.Optimizer], Any]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=torch.tensor(1e-3))
    scheduler = make(optimizer)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    return [optimizer.param_groups[0]["lr"]]


def clipped(**options: Any) -> list[torch.Tensor]:
    parameters = list(nn.Linear(8, 8).parameters())
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    total = nn.utils.clip_grad_norm_(parameters, 1.0, **options)
    totals = [total]
    if hasattr(nn.utils, "get_total_norm"):  # one of the two halves of the above, in newer releases
        totals.append(nn.utils.get_total_norm([parameter.grad for parameter in parameters]))
        nn.utils.clip_grads_with_norm_(parameters, 0.5, totals[1].mul_(3))
    nn.utils.clip_grad_value_(parameters, 0.1)
    return [*totals, *(parameter.grad for parameter in parameters)]


def scaled() -> list[torch.Tensor]:
    scaler, weight = torch.amp.GradScaler("cpu", init_scale=3000.0), nn.Parameter(torch.randn(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    loss = scaler.scale(weight.pow(2).sum())
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return [loss, weight.grad, weight]


def as_one_vector() -> list[torch.Tensor]:
    parameters = list(nn.Linear(8, 8).parameters())
    vector = nn.utils.parameters_to_vector(parameters)
    nn.utils.vector_to_parameters(vector.detach().neg(), parameters)
    return [vector, *parameters]


def initialised() -> list[torch.Tensor]:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            with torch.no_grad():
                module.weight.copy_(torch.randn(8, 8) * 0.02)

    return list(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).apply(initialise).parameters())


def transferred() -> list[torch.Tensor]:
    class Halved(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 0.3

    source = nn.Linear(8, 8)
    parametrize.register_parametrization(source, "weight", Halved())
    for target in (made := [nn.Linear(8, 8), nn.Identity()]):
        parametrize.transfer_parametrizations_and_params(source, target, "weight")
    return [parameter for one in made for parameter in one.parameters()]


def filled(initialise: Callable[[torch.Tensor], Any]) -> list[torch.Tensor]:
    return [initialise(torch.empty(shape)) for shape in ((9, 9), (3, 9), (9, 3))]


def reset(module: Any) -> list[torch.Tensor]:
    made = copy.deepcopy(module)
    for one in made.modules():
        getattr(one, "reset_parameters", getattr(one, "_reset_parameters", lambda: None))()
    return list(made.state_dict().values())


def made_without_memory() -> list[torch.Tensor]:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4))
    assert model[0](torch.ones(2, 4, device="meta")).is_meta
    model = model.to_empty(device="cpu")
    for module in model:
        module.reset_parameters()
    skipped = nn.utils.skip_init(nn.Linear, 3, 4)
    return [*model.parameters(), nn.init.normal_(skipped.weight)]


INITIALISERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "uniform": nn.init.uniform_,
    "trunc_normal": nn.init.trunc_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "kaiming_normal": nn.init.kaiming_normal_,
    "orthogonal": lambda x: nn.init.orthogonal_(x, gain=1.7),
    "sparse": lambda x: nn.init.sparse_(x, 0.3),
    "eye": nn.init.eye_,
}
RESET = [
    nn.LSTM(3, 4),
    nn.Bilinear(3, 3, 3),
    nn.Embedding(4, 5, padding_idx=1),
    nn.Conv2d(3, 3, 3),
    nn.MultiheadAttention(8, 2),
    nn.BatchNorm1d(4),
]
EXACT: dict[str, Callable[[], Any]] = {
    "average": averaged,
    "average by a function": lambda: averaged(avg_fn=swa_utils.get_ema_avg_fn(0.9)),
    "fused convolution": fused_convolution,
    "fused linear": fused_linear,
    "equalized": equalized,
    "pruned by size": lambda: pruned(lambda one: prune.l1_unstructured(one, "weight", 0.5)),
    "pruned by a mask": lambda: pruned(lambda one: prune.custom_from_mask(one, "weight", torch.eye(8))),
    "sparsified": sparsified,
    "parametrized": parametrized,
    "weight norm": lambda: normalised(parametrizations.weight_norm, parametrize.remove_parametrizations),
    "spectral norm": lambda: normalised(parametrizations.spectral_norm, parametrize.remove_parametrizations),
    "orthogonal": lambda: normalised(parametrizations.orthogonal, parametrize.remove_parametrizations),
    "transferred": transferred,
    "assigned orthogonal": assigned_orthogonal,
    "old weight norm": lambda: normalised(nn.utils.weight_norm, nn.utils.remove_weight_norm),
    "old spectral norm": lambda: normalised(nn.utils.spectral_norm, nn.utils.remove_spectral_norm),
    "exponential schedule": lambda: scheduled(lambda one: lr_scheduler.ExponentialLR(one, 0.999)),
    "clipped": clipped,
    "scaled": scaled,
    "one vector": as_one_vector,
    "initialised": initialised,
    **{name: functools.partial(filled, initialise) for name, initialise in INITIALISERS.items()},
    **{str(module): functools.partial(reset, module) for module in RESET},
    "made without memory": made_without_memory,
}


@each("name", EXACT)
def test_what_makes_weights_of_weights_is_exact(name: str) -> None:
    assert_unchanged(EXACT[name])


#: What clip_grad_norm_ consists of in newer releases; transformers has maybe_autocast since its release 5.
HALVES = ("_clip_grads_with_norm_", "_get_total_norm")


def test_the_functions_that_make_state_exist_in_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import_torchvision()  # which compressai imports
    monkeypatch.setitem(sys.modules, "cvxpy", types.ModuleType("cvxpy"))  # of qpth, for a solver that is not used
    for name, functions in itertools.chain(*(one.table.items() for one in (*EXCHANGES, *exchanges()))):
        # All modules of torchvision are asked for the same, and none has all of it.
        if name.startswith("torchvision."):
            assert list(named_functions.functions_of(import_torchvision(name), functions)), name
            continue
        module = importlib.import_module(name)
        for one in functions:
            if one in (*HALVES, "maybe_autocast") and not hasattr(module, one):
                continue
            assert list(named_functions.functions_of(module, (one,))), f"{name}.{one}"


def test_functions_of_a_module_imported_later_keep_their_code_after_restore() -> None:
    script = (
        "import sys, torch\nfrom habana_mp import hmp\n"
        "assert 'torch.nn.utils.prune' not in sys.modules\n"
        "hmp.convert()\nimport torch.nn.utils.prune as prune\n"
        "code = prune.BasePruningMethod.remove.__code__\nhmp.restore()\n"
        "print(code is prune.BasePruningMethod.remove.__code__)"
    )
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize("given", [FP32, BF16], ids=str)
def test_lazy_modules_are_materialised_exactly(given: torch.dtype) -> None:
    def run(dtype: torch.dtype) -> list[torch.Tensor]:
        model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
        model(torch.ones(2, 3, 6, 6).to(dtype))
        return list(model.parameters())

    expected = seeded(lambda: run(FP32))
    hmp.convert()
    assert_same(seeded(lambda: run(given)), expected)


OBSERVERS = [
    "MinMaxObserver",
    "PerChannelMinMaxObserver",
    "HistogramObserver",
    "FusedMovingAvgObsFakeQuantize",
]


@each("name", OBSERVERS)
@each("given", [FP32, BF16])
def test_what_an_observer_has_seen_is_exact(name: str, given: torch.dtype) -> None:
    def run(dtype: torch.dtype) -> list[Any]:
        observer = getattr(quantization, name)()
        for _ in range(3):
            observer(torch.randn(4, 6).to(given).to(dtype))
        return [value for value in observer.state_dict().values() if value is not None] + [observer.calculate_qparams()]

    # The fused one has a kernel for float32 only.
    expected = seeded(lambda: run(FP32 if name.startswith("Fused") else given))
    hmp.convert()
    assert_same(seeded(lambda: run(given)), expected)


class Small(nn.Module):
    """What can be quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = quantization.QuantStub(), quantization.DeQuantStub()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.leave(self.body(self.enter(x)))


def test_weights_quantized_after_training_are_exact() -> None:
    def run() -> list[torch.Tensor]:
        model = quantization.fuse_modules(Small().eval(), [["body.0", "body.1", "body.2"]])
        model.qconfig = quantization.get_default_qconfig("fbgemm")
        quantization.prepare(model, inplace=True)
        model(torch.randn(2, 3, 8, 8))
        quantization.convert(model, inplace=True)
        model(torch.randn(2, 3, 8, 8))
        return [model.body[0].weight().dequantize(), model.body[4].weight().dequantize()]

    assert_unchanged(run)


DYNAMIC: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 8), (3, 8)),
    "LSTM": (lambda: nn.LSTM(8, 8), (2, 3, 8)),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_dynamically_quantized_model_takes_what_was_lowered(name: str) -> None:
    make, shape = DYNAMIC[name]
    inner = make()
    model = quantization.quantize_dynamic(nn.Sequential(nn.ReLU(), inner), {type(inner)})
    x = torch.randn(shape)
    expected = model(x)
    hmp.convert()
    for one, other in zip(tensors(model(x)), tensors(expected), strict=True):
        assert (one.float() - other).norm() <= 0.02 * (other.norm() + 1)
    with hmp.disable_casts():
        assert_same(model(x), expected)


def test_a_scaler_that_is_off_leaves_a_closure_its_casts(converted: Converter) -> None:
    weight, seen = nn.Parameter(torch.ones(4, 4)), []

    def closure() -> torch.Tensor:
        result = torch.mm(weight, weight)
        seen.append(result.dtype)
        return result.float().sum()

    converted(bf16=["mm"])
    torch.amp.GradScaler("cpu", enabled=False).step(torch.optim.SGD([weight], lr=0.1), closure)
    assert seen == [torch.bfloat16]
