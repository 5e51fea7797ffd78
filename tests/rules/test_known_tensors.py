"""A tensor of a module is known while it lives, whatever other tensors have its memory, and however the module got it
(rule 11)."""

from __future__ import annotations

import copy
import io
from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from habana_mp import hmp

BF16, FP32 = torch.bfloat16, torch.float32


class State(nn.Module):
    """A module with a buffer, a weight and a plain attribute."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(4, 4))
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.plain = torch.ones(4, 4)

    def forward(self) -> torch.Tensor:
        return self.average * 0.999


def stays_exact(tensor: torch.Tensor) -> bool:
    """True if a moving average is as in plain torch: one that is lowered stays where it began."""
    with torch.no_grad():
        tensor.fill_(1)
        for _ in range(300):
            tensor.copy_(tensor * 0.999)
    return abs(tensor.mean().item() - 0.999**300) < 1e-3


# ---- other tensors with its memory -----------------------------------------------------------------------------------


def _attribute(module: Any) -> None:
    module.now = module.average[:1]
    module.now = module.weight.data[1:]
    module.now = None


def _embedding(module: State) -> None:
    nn.Embedding.from_pretrained(module.average)
    nn.Embedding.from_pretrained(module.weight.data)
    nn.Embedding.from_pretrained(module.plain.detach())


def _other_model(module: Any) -> None:
    other = State()
    other.load_state_dict(module.state_dict(), assign=True)
    other.plain = module.plain.detach()


def _many(module: State) -> None:
    for _ in range(300):
        _attribute(module)
        _other_model(module)


def _vector(module: State) -> None:
    vector_to_parameters(parameters_to_vector(module.parameters()), module.parameters())
    module.head = nn.Parameter(module.weight.data[:1])
    del module.head


@pytest.mark.parametrize("name", ["average", "weight", "plain"])
@pytest.mark.parametrize("alias", [_attribute, _embedding, _other_model, _many, _vector])
def test_a_tensor_stays_known_when_another_one_with_its_memory_dies(alias: Callable[[State], None], name: str) -> None:
    hmp.convert()
    module = State()
    tensor = getattr(module, name)
    alias(module)
    assert stays_exact(tensor.data)


def test_many_tensors_with_one_memory_are_all_known_while_they_live() -> None:
    hmp.convert()
    memory = torch.ones(1000)
    modules: list[Any] = []
    for i in range(1000):
        modules.append(nn.Module())
        modules[-1].one = memory[i : i + 1]
    del modules[1:]
    assert stays_exact(memory)


# ---- modules that get their tensors otherwise ------------------------------------------------------------------------


class CopiesItself(State):
    def __deepcopy__(self, memo: dict[int, Any]) -> CopiesItself:
        copied = CopiesItself.__new__(CopiesItself)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied


class MovesItself(State):
    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        for name, buffer in self._buffers.items():
            self._buffers[name] = fn(buffer)
        return self


def _in_dictionary() -> torch.Tensor:
    module = State()
    module._buffers["average"] = torch.ones(4, 4)
    return module.average


def _in_mapping() -> torch.Tensor:
    module = State()
    module.__dict__["_buffers"] = UserDict(average=torch.ones(4, 4))
    return module.average


def _scripted() -> torch.Tensor:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.BatchNorm1d(3)), file)
    file.seek(0)
    return torch.jit.load(file).running_mean


def _weight_of_scripted() -> torch.Tensor:
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(3, 3)), file)
    file.seek(0)
    return next(torch.jit.load(file).parameters())


def _weight_of_copied_script() -> torch.Tensor:
    return next(copy.deepcopy(torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3))).parameters())


def _swapped() -> torch.Tensor:
    module = State()
    torch.utils.swap_tensors(module.average, torch.ones(4, 4))
    return module.average


def _swapped_attribute() -> torch.Tensor:
    module = State()
    torch.utils.swap_tensors(module.plain, torch.ones(4, 4))
    return module.plain


def _loaded_by_swapping() -> torch.Tensor:
    module = State()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        module.load_state_dict(State().state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return next(module.buffers())


def _set() -> torch.Tensor:
    module = State()
    module.average.set_(torch.ones(4, 4))
    return module.average


def _without_parametrization() -> torch.Tensor:
    module = nn.Linear(4, 4)
    held.append(module)
    spectral_norm(module)
    remove_parametrizations(module, "weight")
    return module.state_dict()["weight"]


def _parametrized() -> torch.Tensor:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
            return x / 2

    module: Any = nn.Linear(4, 4)
    held.append(module)
    register_parametrization(module, "weight", Doubled())
    return module.state_dict()["parametrizations.weight.original"]


def _copied_with_parametrization(name: str) -> torch.Tensor:
    module = copy.deepcopy(weight_norm(State()))
    held.append(module)
    found: torch.Tensor = vars(module)[name] if name == "plain" else dict(module.named_buffers())[name]
    return found


def _parameter_with_other_memory() -> torch.Tensor:
    module = State()
    held.append(module)
    with torch.no_grad():
        module.weight.set_(torch.ones(4, 4))
    return module.weight.detach()


held: list[nn.Module] = []

MADE: dict[str, Callable[[], torch.Tensor]] = {
    "copied by its class": lambda: copy.deepcopy(CopiesItself()).average,
    "moved by its class": lambda: MovesItself().to(torch.float64).to(FP32).average,
    "put into the dictionary": _in_dictionary,
    "in a mapping": _in_mapping,
    "scripted": _scripted,
    "a scripted weight": _weight_of_scripted,
    "a copied script's weight": _weight_of_copied_script,
    "swapped": _swapped,
    "a swapped attribute": _swapped_attribute,
    "loaded by swapping": _loaded_by_swapping,
    "set": _set,
    "a Parameter that was set": _parameter_with_other_memory,
    "without its parametrization": _without_parametrization,
    "below a parametrization": _parametrized,
    "a buffer copied with a parametrization": lambda: _copied_with_parametrization("average"),
    "an attribute copied with a parametrization": lambda: _copied_with_parametrization("plain"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_tensor_is_known_however_the_module_got_it(made: Callable[[], torch.Tensor]) -> None:
    hmp.convert()
    assert stays_exact(made())


def test_the_buffers_of_functional_calls_are_known() -> None:
    hmp.convert()
    with torch.no_grad():
        found = functional_call(State(), {"average": torch.full((4, 4), 1.0)}, ())
    assert found.dtype is FP32


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_tensors_of_scripts_that_were_made_before_are_known() -> None:
    scripted: Any = torch.jit.script(nn.BatchNorm1d(3))
    hmp.convert()
    assert stays_exact(scripted.running_mean)


def test_a_tensor_that_was_swapped_out_is_no_longer_one_of_a_module() -> None:
    hmp.convert()
    module, other = State(), torch.ones(4, 4)
    torch.utils.swap_tensors(module.average, other)
    assert (other * 0.999).dtype is BF16


def test_a_failed_swap_changes_nothing() -> None:
    hmp.convert()
    module = State()
    held = module.average.view(-1)
    with pytest.raises(RuntimeError):  # a view holds it
        torch.utils.swap_tensors(module.average, torch.ones(4, 4))
    assert stays_exact(module.average)
    assert held.numel() == 16


def test_modules_with_unusual_containers_are_followed() -> None:
    module = State()
    module.__dict__["_buffers"] = OrderedDict(average=module.average)
    hmp.convert(rules={"mm @ other": "fp32"})
    assert stays_exact(module.average)
