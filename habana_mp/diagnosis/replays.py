"""Runs a step several times from the same state, and leaves that state as it was.

What belongs to the state is found while the step runs for the first time: each outermost module whose forward begins,
with all modules inside it, is recorded before it runs.
"""

from __future__ import annotations

import random as random_of_python
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from habana_mp.diagnosis.exact import RandomState, apart, tensors_of
from habana_mp.diagnosis.observing import Observer
from habana_mp.diagnosis.outcomes import Outcome
from habana_mp.patches.torch import begun_backwards
from habana_mp.reporting.origins import Origin

Step = Callable[[], Any]

#: So many outputs of outermost modules are compared.
_MOST_OUTPUTS = 64


class _StepEnds(BaseException):
    """The optimizer's step begins, which a replay leaves out."""


class _AllRandomStates:
    """The states of all random numbers that a step may use."""

    def __init__(self) -> None:
        self._torch = RandomState()
        self._python = random_of_python.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else (numpy.random, numpy.random.get_state())

    def restore(self) -> None:
        self._torch.restore()
        random_of_python.setstate(self._python)
        if self._numpy is not None:
            self._numpy[0].set_state(self._numpy[1])


class _Tensor:
    """A tensor of a module: the object, and a copy of its values."""

    def __init__(self, holder: dict[str, Any], key: str, tensor: torch.Tensor, name: str) -> None:
        self.holder, self.key, self.tensor, self.name = holder, key, tensor, name
        self.memory = tensor.data_ptr()
        self.values = tensor.detach().clone()
        self.data = tensor.detach()

    def restore(self) -> None:
        self.holder[self.key] = self.tensor
        if self.tensor.data_ptr() != self.memory:  # `tensor.data = other`
            self.tensor.data = self.data
        if not torch.equal(self.tensor, self.values):
            self.tensor.copy_(self.values)

    def now(self) -> Any:
        return self.holder.get(self.key)


class Replays:
    """The replays of one step."""

    def __init__(self, step: Step, *, skipped: int = 0, compares_outputs: bool = False) -> None:
        """``skipped``: so many steps of optimizers are run as they are before the look begins. ``compares_outputs``:
        what the outermost modules return is compared if there is no backward."""
        self._step = step
        self._skipped = skipped
        self._compares_outputs = compares_outputs
        self._is_looking = False
        self._random = _AllRandomStates()
        self._known: set[int] = set()
        #: Held, so that no other object gets the identity of one.
        self._modules: list[torch.nn.Module] = []
        self._weights: dict[str, torch.Tensor] = {}
        self._gradients: dict[str, torch.Tensor | None] = {}
        self._tensors: list[_Tensor] = []
        self._values: list[tuple[dict[str, Any], str, Any]] = []
        self._loss: torch.Tensor | None = None
        self._has_gradient = False
        self._roots: set[int] = set()
        self._outputs: list[torch.Tensor] = []

    @property
    def has_looked(self) -> bool:
        """True if the last run came to the step that is looked at."""
        return self._is_looking

    @contextmanager
    def from_same_state(self) -> Iterator[None]:
        """A block after which everything is as before it."""
        try:
            yield
        finally:
            self._restore()
            for name, weight in self._weights.items():
                weight.grad = self._gradients[name]

    def run(self, observer: Observer) -> Outcome:
        """Runs the step once."""
        self._restore()
        self._loss, self._has_gradient, self._outputs = None, False, []
        self._is_looking = self._skipped == 0
        left = self._skipped
        returned: Any = None

        def optimizer_begins(*_: Any) -> None:
            if self._is_looking:
                raise _StepEnds

        def optimizer_ended(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._is_looking = True
                observer.is_on = True

        observer.is_on = self._is_looking
        hooks = [
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends),
            register_optimizer_step_pre_hook(optimizer_begins),
            register_optimizer_step_post_hook(optimizer_ended),
        ]
        begun_backwards.listen(self._backward_begins)
        try:
            with observer.observing():
                try:
                    returned = self._step()
                    self._run_backward(returned)
                except _StepEnds:
                    pass
            with observer.paused(), apart():
                return self._outcome(returned)
        finally:
            begun_backwards.stop_listening(self._backward_begins)
            for hook in hooks:
                hook.remove()
            self._loss = None
            for weight in self._weights.values():
                weight.grad = None

    # ---- the backward ------------------------------------------------------------------------------------------------

    def _backward_begins(self, loss: torch.Tensor) -> None:
        if not self._is_looking:
            return
        if self._loss is None or not self._has_gradient:
            self._loss = loss.detach()
        self._has_gradient = True

    def _run_backward(self, returned: Any) -> None:
        """Runs the backward of the loss that the step returned, if the step has not."""
        if self._has_gradient:
            return
        loss = _loss_in(returned)
        if loss is None:
            return
        self._loss = loss.detach()
        if loss.requires_grad:
            loss.backward()  # type: ignore[no-untyped-call]  # torch's has no types

    # ---- the state ---------------------------------------------------------------------------------------------------

    def _module_begins(self, module: torch.nn.Module, _: Any) -> None:
        if id(module) in self._known or not self._is_looking:
            return
        self._roots.add(id(module))
        with apart():
            root = Origin("", 0, (module,)).module
            for path, one in module.named_modules():
                if id(one) not in self._known:
                    self._known.add(id(one))
                    self._modules.append(one)
                    self._record(".".join(part for part in (root, path) if part), one)

    def _record(self, path: str, module: torch.nn.Module) -> None:
        for key, weight in module._parameters.items():
            if weight is None or any(weight is one for one in self._weights.values()):
                continue
            name = f"{path}.{key}"
            if weight.requires_grad:
                self._weights[name], self._gradients[name] = weight, weight.grad
                weight.grad = None
            else:
                self._tensors.append(_Tensor(module._parameters, key, weight, name))
        for holder in (module._buffers, vars(module)):
            for key, value in holder.items():
                if isinstance(value, torch.Tensor) and not _is_lazy(value):
                    self._tensors.append(_Tensor(holder, key, value, f"{path}.{key}"))
                elif isinstance(value, bool | int | float | str | type(None)):
                    self._values.append((holder, key, value))

    def _module_ends(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if not self._compares_outputs or id(module) not in self._roots or len(self._outputs) >= _MOST_OUTPUTS:
            return
        with apart():
            self._outputs += [one.detach() for one in tensors_of(output)]

    def _restore(self) -> None:
        self._random.restore()
        with apart():
            for one in self._tensors:
                one.restore()
        for holder, key, value in self._values:
            if key not in holder or holder[key] is not value:
                holder[key] = value

    # ---- the outcome -------------------------------------------------------------------------------------------------

    def _outcome(self, returned: Any) -> Outcome:
        found = Outcome()
        if self._loss is not None and self._loss.numel() == 1:
            found.loss = float(self._loss)
        for name, weight in self._weights.items():
            found.add_gradient(name, weight)
        for one in self._tensors:
            now = one.now()
            if isinstance(now, torch.Tensor):
                found.add_state(one.name, one.values, now.detach())
        loss = _loss_in(returned)
        found.add_returned([one for one in tensors_of(returned) if one is not loss])
        if not self._has_gradient:
            found.add_returned(self._outputs)
        return found


def _loss_in(returned: Any) -> torch.Tensor | None:
    """Returns the loss among what a step returned: the first tensor with one floating value."""
    loss = returned.get("loss") if isinstance(returned, dict) else getattr(returned, "loss", None)
    candidates = [loss] if isinstance(loss, torch.Tensor) else tensors_of(returned)
    return next((one for one in candidates if one.numel() == 1 and one.is_floating_point()), None)


def _is_lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, torch.nn.UninitializedParameter | torch.nn.UninitializedBuffer)
