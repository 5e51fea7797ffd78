"""An audit names each planted loss of precision, and finds nothing in a healthy training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from transformers import LlamaConfig, LlamaForCausalLM

from habana_mp import hmp

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
Made = tuple[nn.Module, torch.optim.Optimizer | None]
AdamW = torch.optim.AdamW


def network(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), *more)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 2) -> Made:
    """Trains for some steps, and runs the backward of the next one. Each part gets inputs in its own precision."""
    for part in model.modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.is_floating_point():
            part.register_forward_pre_hook(lambda part, inputs: tuple(one.to(part.weight.dtype) for one in inputs))
    for number in range(count):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 16)).float(), torch.randint(0, 8, (8,))).backward()
        if number + 1 < count:
            optimizer.step()
    return model, optimizer


def trained(model: nn.Module, make: Callable[..., torch.optim.Optimizer] = AdamW, **options: Any) -> Made:
    return steps(model, make(model.parameters(), lr=1e-3, **options))


def untrained(model: nn.Module) -> Made:
    return model, AdamW(model.parameters())


# ---- planted --------------------------------------------------------------------------------------------------------


def loaded_in_bfloat16(folder: Any) -> Made:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes)).bfloat16().save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder)
    assert model.dtype is BF16
    words = torch.arange(8)[None]
    model(words, labels=words).loss.backward()
    return model, AdamW(model.parameters())


def lower_optimizer_state(_: Any) -> Made:
    model, optimizer = trained(network().bfloat16())
    model.float()
    return model, optimizer


def running_statistics(_: Any) -> Made:
    model = network(nn.BatchNorm1d(8))
    model[3].running_mean = model[3].running_mean.half()
    return untrained(model)


def updated_statistics_of_a_frozen_model(_: Any) -> Made:
    return network(nn.BatchNorm1d(8)).bfloat16().requires_grad_(False), None


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.words.weight


def tied_in_two_precisions(_: Any) -> Made:
    model = Tied()
    model.head.weight = nn.Parameter(model.words.weight.detach().half())
    return model, None


def one_layer_in_half(_: Any) -> Made:
    model = network()
    model[2].half()
    return trained(model)


def averaged(_: Any) -> Made:
    return AveragedModel(network()).bfloat16(), None


def lower_gradients(_: Any) -> Made:
    model = network()
    model[0].weight.grad_dtype = BF16
    model[0].weight.grad = torch.ones(32, 16, dtype=BF16)
    return untrained(model)


class SavesLower(nn.Sequential):
    """Trains in float32, and saves bfloat16."""

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        return {name: one.bfloat16() for name, one in super().state_dict(*arguments, **keywords).items()}


def adapters_in_bfloat16(_: Any) -> Made:
    model = network(nn.Linear(8, 8)).bfloat16()
    model[0].requires_grad_(False)
    return trained(model)


BUFFERS_IN_FLOAT32 = (
    "`for one in model.buffers(): one.data = one.data.float() if one.is_floating_point() else one.data`"
)

PLANTED: dict[str, tuple[Callable[[Any], Made], tuple[str, str, str], str]] = {
    "loaded in bfloat16, AdamW": (
        loaded_in_bfloat16,
        ("lower weights", "", "bfloat16"),
        "`from_pretrained(..., dtype=torch.float32)`",
    ),
    "trained in bfloat16": (
        lambda _: trained(network().bfloat16(), torch.optim.SGD, momentum=0.9),
        ("lower weights", "", "bfloat16"),
        "`model.float()`",
    ),
    "trained in float16": (
        lambda _: trained(network().half(), torch.optim.SGD),
        ("lower weights", "", "float16"),
        "`model.float()`",
    ),
    "float16 with GradScaler": (
        lambda _: trained(network().half(), torch.optim.SGD),
        ("refused by GradScaler", "0.weight", "float16"),
        "`hmp.convert(dtype=torch.float16)`",
    ),
    "a layer in half": (
        one_layer_in_half,
        ("lower weights", "2", "float16"),
        "`model.get_submodule('2').float()`",
    ),
    "adapters in bfloat16": (
        adapters_in_bfloat16,
        ("lower weights", "", "bfloat16"),
        "`for one in model.parameters(): one.data = one.data.float() if one.requires_grad else one.data`",
    ),
    "optimizer state in bfloat16": (
        lower_optimizer_state,
        ("lower optimizer state", "0.weight exp_avg", "bfloat16"),
        "`optimizer.load_state_dict(optimizer.state_dict())`",
    ),
    "a buffer in float16": (
        running_statistics,
        ("lower buffer", "3.running_mean", "float16"),
        BUFFERS_IN_FLOAT32,
    ),
    "updated statistics of a frozen model": (
        updated_statistics_of_a_frozen_model,
        ("lower buffer", "3.running_mean", "bfloat16"),
        BUFFERS_IN_FLOAT32,
    ),
    "tied in two precisions": (
        tied_in_two_precisions,
        ("tied in two precisions", "head.weight", "float16"),
        "`model.get_submodule('head').weight = model.get_parameter('words.weight')`",
    ),
    "averaged in bfloat16": (
        averaged,
        ("lower average", "module.0.weight", "bfloat16"),
        "`AveragedModel(model).float()`",
    ),
    "gradients in bfloat16": (
        lower_gradients,
        ("lower gradients", "0.weight", "bfloat16"),
        "`for one in model.parameters(): one.grad_dtype = one.dtype`",
    ),
    "saved in bfloat16": (
        lambda _: trained(SavesLower(*network())),
        ("saved in lower precision", "0.weight", "bfloat16"),
        "`torch.save({**model.state_dict(), **dict(model.named_parameters())}, path)`",
    ),
    "without an optimizer, in train mode": (
        lambda _: (network().bfloat16(), None),
        ("lower weights", "", "bfloat16"),
        "`model.float()`",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.parametrize("is_converted", [False, True], ids=["", "converted"])
def test_a_planted_loss_is_found_with_the_line_that_mends_it(name: str, is_converted: bool, tmp_path: Any) -> None:
    make, expected, line = PLANTED[name]
    model, optimizer = make(tmp_path)
    if is_converted:
        hmp.convert()
    found = hmp.audit(model, optimizer)
    assert not found.healthy
    ends = {(one.kind, one.name, one.dtype): one.text for one in found.findings}
    assert expected in ends
    assert ends[expected].endswith(line)
    # Trained float16 weights have a finding for each of their two consequences.
    others = {"lower weights", "refused by GradScaler"} if expected[2] == "float16" else set()
    assert {one.kind for one in found.findings} - others <= {expected[0]}


def optimizer_state_is_mended(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def gradients_are_mended(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    for one in model.parameters():
        one.grad_dtype = one.dtype


def buffers_are_mended(model: nn.Module, _: object) -> None:
    for one in model.buffers():
        one.data = one.data.float() if one.is_floating_point() else one.data


def tied_is_mended(model: nn.Module, _: object) -> None:
    model.get_submodule("head").weight = model.get_parameter("words.weight")


@pytest.mark.parametrize(
    ("name", "mend"),
    [
        ("optimizer state in bfloat16", optimizer_state_is_mended),
        ("gradients in bfloat16", gradients_are_mended),
        ("tied in two precisions", tied_is_mended),
        ("a buffer in float16", buffers_are_mended),
        ("averaged in bfloat16", lambda model, _: model.float()),
        ("without an optimizer, in train mode", lambda model, _: model.float()),
    ],
)
def test_the_line_of_a_finding_mends_it(name: str, mend: Callable[..., Any], tmp_path: Any) -> None:
    model, optimizer = PLANTED[name][0](tmp_path)
    mend(model, optimizer)
    assert hmp.audit(model, optimizer).healthy


def test_grad_scaler_refuses_what_the_audit_says_it_refuses() -> None:
    _, optimizer = trained(network().half(), torch.optim.SGD)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)


# ---- healthy --------------------------------------------------------------------------------------------------------


def with_float32_copies(*, lists_them: bool) -> Made:
    model = network().bfloat16()
    copies = [nn.Parameter(one.detach().float()) for one in model.parameters()]
    if lists_them:
        return model, AdamW(copies)
    optimizer = AdamW(model.parameters())
    steps(model, optimizer)
    optimizer.step()
    for one in model.parameters():
        optimizer.state[one]["master"] = one.detach().float() * (1 + 2**-10)
    return model, optimizer


def lora() -> Made:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(network().bfloat16(), LoraConfig(target_modules=["0", "2"]))
    assert {one.dtype for one in model.parameters() if one.requires_grad} == {FP32}
    return untrained(model)


def odd_buffers() -> Made:
    model = network()
    model.register_buffer("angles", torch.ones(4, dtype=torch.complex64))
    model.register_buffer("codes", torch.ones(4, dtype=torch.int8))
    model.register_buffer("quantized", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
    return untrained(model.append(nn.LazyLinear(4)))


def teacher_and_student() -> Made:
    model = network()
    return nn.ModuleDict({"teacher": copy.deepcopy(model).bfloat16().requires_grad_(False), "student": model}), None


def on_meta() -> Made:
    with torch.device("meta"):
        return untrained(network())


def with_gradient_scaler() -> Made:
    model = network()
    optimizer, scaler = AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", FP16):
        loss = F.cross_entropy(model(torch.randn(8, 16)), torch.arange(8))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    return model, optimizer


def trained_after_convert() -> Made:
    hmp.convert()
    return trained(network(nn.LayerNorm(8)))


HEALTHY: dict[str, Callable[[], Made]] = {
    "frozen in bfloat16": lambda: (network().bfloat16().requires_grad_(False), None),
    "bfloat16 in eval mode": lambda: (network(nn.BatchNorm1d(8)).bfloat16().eval(), None),
    "AdamW": lambda: trained(network()),
    "fused AdamW": lambda: trained(network(), fused=True),
    "SGD": lambda: trained(network(), torch.optim.SGD, momentum=0.9),
    "Adagrad": lambda: trained(network(), torch.optim.Adagrad),
    "converted": trained_after_convert,
    "float32 copies in the optimizer": lambda: with_float32_copies(lists_them=True),
    "float32 copies in the state": lambda: with_float32_copies(lists_them=False),
    "LoRA on a frozen bfloat16 model": lora,
    "BatchNorm": lambda: trained(network(nn.BatchNorm1d(8))),
    "complex, int, quantized and uninitialized": odd_buffers,
    "float64": lambda: untrained(network().double()),
    "meta": on_meta,
    "without parameters": lambda: (nn.ReLU(), None),
    "GradScaler on float32": with_gradient_scaler,
    "averaged in float32": lambda: (AveragedModel(network()), None),
    "a teacher in bfloat16": teacher_and_student,
    "tied": lambda: untrained(Tied()),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_training_has_no_finding(name: str) -> None:
    found = hmp.audit(*HEALTHY[name]())
    assert found.findings == ()
    assert found.healthy
    assert str(found).startswith("Healthy: ")


@pytest.mark.parametrize("given", [(network, None), (nn.ReLU(), nn.ReLU())], ids=["model", "optimizer"])
def test_wrong_arguments_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"`(model|optimizer)` must be a torch\.(nn\.Module|optim\.Optimizer)"):
        hmp.audit(*given)
