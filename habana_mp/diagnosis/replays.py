"""Runs a step several times from the same state, and restores that state.

The first run of the step shows what belongs to the state. When a module is called or one of its tensors is used, the
outermost module that holds it is recorded, with copies of all its tensors. Other threads are left alone.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from habana_mp import _core
from habana_mp.diagnosis.exact import RandomState, apart
from habana_mp.diagnosis.observing import InFloat32, Observer, observer_of
from habana_mp.diagnosis.outcomes import Run, RunMode
from habana_mp.diagnosis.sites import Locator
from habana_mp.patches.tools.dispatch_modes import seeing_uses
from habana_mp.patches.tools.exchange import Exchanged
from habana_mp.patches.torch import begun_backwards
from habana_mp.patches.torch.compiled_runs import can_compile, noting_compiled_calls
from habana_mp.patches.torch.module_holders import all_modules
from habana_mp.patches.torch.module_paths import holders, path_in
from habana_mp.patches.torch.repeated_steps import ddp_only_calls_its_module, scalers_end_steps
from habana_mp.reporting import counting
from habana_mp.reporting.guard import unguarded
from habana_mp.reporting.judging import memory_of, tensors_in
from habana_mp.reporting.origins import Origin
from habana_mp.reporting.watch import unwatched

Step = Callable[[], Any]

#: The contents of containers of these classes and modules are restored.
_CONTAINERS = (list, dict, set, deque)
_OF_PYTHON = ("builtins", "collections")
#: Attributes of every module that hold its parts.
_OF_TORCH = frozenset(vars(torch.nn.Module()))

#: At most this many outputs of outermost modules are compared.
_MOST_OUTPUTS = 64


class _StepThreads:
    """The threads of a step: the one that runs it, and those that it starts."""

    def __init__(self) -> None:
        self._first = threading.get_ident()
        self._started: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def has_this(self) -> bool:
        """True if this thread belongs to the step. Threads that Python did not start are those of torch's backward."""
        own = threading.get_ident()
        if own == self._first:
            return True
        this = next((one for one in threading.enumerate() if one.ident == own), None)
        return _core.computes_gradient() if this is None else this in self._started

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block in which threads that the step starts belong to it."""
        former = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            if self.has_this():
                self._started.add(thread)
            former(thread)

        with Exchanged() as exchanged:
            exchanged.exchange(threading.Thread, "start", start)
            yield


class _StepEnds(BaseException):
    """Raised when the optimizer's step begins, since a replay does not run it."""


class _Tensor:
    """A tensor of a module: the object, and a copy of its values."""

    def __init__(self, holder: dict[str, Any], key: str, tensor: torch.Tensor, name: str) -> None:
        self.holder, self.key, self.tensor, self.name = holder, key, tensor, name
        self.memory = tensor.data_ptr()
        self.values = tensor.detach().clone()
        self.data = tensor.detach()

    def restore(self) -> None:
        if self.tensor.data_ptr() != self.memory:  # `tensor.data = other`
            self.tensor.data = self.data
        if not torch.equal(self.tensor, self.values):
            self.tensor.copy_(self.values)

    def now(self) -> Any:
        return self.holder.get(self.key) if self.key else self.tensor


class _Contents:
    """What a module has when the diagnosis begins: its tensors, its other attributes, and copies of its containers."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.holders = [(one, dict(one)) for one in (module._parameters, module._buffers, vars(module))]
        self.containers: list[tuple[Any, Any]] = []
        #: The tensors in containers and tuples, with their names.
        self.inner: list[tuple[str, torch.Tensor]] = []
        for _, former in self.holders:
            for key, value in former.items():
                if key not in _OF_TORCH:
                    self._keep(value, key, frozenset())

    def _keep(self, value: Any, name: str, inside: frozenset[int]) -> None:
        if id(value) in inside or not (_is_container(value) or isinstance(value, tuple)):
            return
        if not isinstance(value, tuple):
            self.containers.append((value, copy.copy(value)))
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(one, torch.Tensor):
                self.inner.append((f"{name}[{key!r}]", one))
            else:
                self._keep(one, f"{name}[{key!r}]", inside | {id(value)})

    def memory(self) -> Iterator[int]:
        """Yields the addresses of the tensors."""
        own = [one for _, former in self.holders for one in former.values() if isinstance(one, torch.Tensor)]
        for one in (*own, *(tensor for _, tensor in self.inner)):
            yield memory_of(one)

    def differs(self) -> bool:
        """True if an attribute or a container has something else now."""
        pairs = [*self.holders, *self.containers]
        return any(not _is_same(one, former) for one, former in pairs)


def _is_container(value: Any) -> bool:
    return isinstance(value, _CONTAINERS) and type(value).__module__ in _OF_PYTHON


def _is_same(one: Any, former: Any) -> bool:
    """True if two containers hold the same objects."""
    if len(one) != len(former):
        return False
    if isinstance(one, set):
        return {*map(id, one)} == {*map(id, former)}
    if isinstance(one, dict):
        return all(key in one and one[key] is value for key, value in former.items())
    return all(a is b for a, b in zip(one, former, strict=True))


class Replays:
    """The replays of one step."""

    def __init__(self, step: Step, *, skipped: int = 0, compares_outputs: bool = False) -> None:
        """``skipped``: the number of optimizers' steps that run unchanged before the examined step.
        ``compares_outputs``: if true and there is no backward, the results of the outermost modules are compared."""
        self._step = step
        self._skipped = skipped
        self._compares_outputs = compares_outputs
        self._is_looking = False
        self._threads = _StepThreads()
        self._random = RandomState()
        #: The recorded modules, and the weights that get gradients with their names, by identity. They are held so that
        #: no other object gets the same identity.
        self._modules: dict[int, torch.nn.Module] = {}
        self._weights: dict[int, tuple[str, torch.Tensor]] = {}
        #: The contents of all modules when the diagnosis begins, by identity, and the modules by the memory of their
        #: tensors.
        self._before: dict[int, tuple[torch.nn.Module, _Contents]] = {}
        self._by_memory: dict[int, torch.nn.Module] = {}
        #: The memory of tensors that the step has made, and of those of no module that it wrote to.
        self._step_made: set[int] = set()
        #: The modules that other threads call, by identity.
        self._of_others: set[int] = set()
        #: The weights of the step, by identity, with their gradients and copies of the gradients' values.
        self._gradients: dict[int, tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]] = {}
        self._tensors: list[_Tensor] = []
        #: The attributes, weights and buffers of modules, and the containers in them, with what they had.
        self._holders: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._loss: torch.Tensor | None = None
        self._has_gradient = False
        self._roots: set[int] = set()
        self._outputs: list[torch.Tensor] = []

    @property
    def has_looked(self) -> bool:
        """True if the last run reached the step that is examined."""
        return self._is_looking

    @contextmanager
    def from_same_state(self) -> Iterator[None]:
        """A block that restores the state at its end. The report leaves it out, and the guard checks nothing in it."""
        with unwatched, unguarded, counting.left_out(), self._state_restored():
            yield

    @contextmanager
    def _state_restored(self) -> Iterator[None]:
        for module in all_modules():
            if _is_lazy(module):
                continue
            contents = _Contents(module)
            self._before[id(module)] = module, contents
            self._by_memory.update(dict.fromkeys(contents.memory(), module))
        try:
            with self._gradients_kept():
                yield
        finally:
            for weight, gradient, values in self._gradients.values():
                weight.grad = gradient
                if gradient is not None and values is not None and not torch.equal(gradient, values):
                    gradient.copy_(values)
            self._restore()
            for known in (self._before, self._by_memory, self._gradients):
                known.clear()

    @contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        """A block in which gradients are kept before the step clears them: it may do so before it calls a module. Those
        of other threads' weights are not even read, since torch cannot read a gradient while it is set."""
        keep = self._keep_gradient
        has_this = self._threads.has_this
        zero_grad, named_parameters = torch.optim.Optimizer.zero_grad, torch.nn.Module.named_parameters

        def zero_grad_and_keep(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            if has_this():
                for weight in (one for group in self.param_groups for one in group["params"]):
                    keep(weight)
            zero_grad(self, *args, **kwargs)

        def named_parameters_kept(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
            for name, weight in named_parameters(self, *args, **kwargs):
                if has_this():
                    keep(weight)
                yield name, weight

        with Exchanged() as exchanged:
            exchanged.exchange(torch.optim.Optimizer, "zero_grad", zero_grad_and_keep)
            exchanged.exchange(torch.nn.Module, "named_parameters", named_parameters_kept)
            yield

    def find_state(self, observer: Observer) -> None:
        """Runs the step once to find what it uses: modules that it does not call, too."""
        self._run(observer, seeing_uses(self._tensor_is_used, self._tensor_is_written, self._tensor_is_made))
        changed = [one for one, contents in self._before.values() if contents.differs()]
        for module in changed:
            if id(module) not in self._of_others:
                self._module_is_used(module)

    def run(self, observer: Observer) -> Run:
        """Runs the step once."""
        return self._run(observer, nullcontext())

    def _run(self, observer: Observer, uses: AbstractContextManager[Any]) -> Run:
        self._restore()
        self._loss, self._has_gradient, self._outputs = None, False, []
        self._is_looking = self._skipped == 0
        left = self._skipped
        returned: Any = None

        def optimizer_begins(*_: Any) -> None:
            if self._is_looking and self._threads.has_this():
                raise _StepEnds

        def optimizer_ended(*_: Any) -> None:
            nonlocal left
            if not self._threads.has_this():
                return
            left -= 1
            if left == 0:
                self._is_looking = True
                observer.is_on = True

        observer.is_on = self._is_looking
        observer.leaf_is_used = self._leaf_is_used
        observer.belongs = self._threads.has_this
        hooks: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
            (register_optimizer_step_pre_hook, optimizer_begins),
            (register_optimizer_step_post_hook, optimizer_ended),
        ]
        if observer.hooks_modules:
            hooks += [
                (register_module_forward_pre_hook, self._module_begins),
                (register_module_forward_hook, self._module_ends),
            ]
        handles: list[Any] = []
        try:
            for register, hook in hooks:
                handles.append(register(hook))
            begun_backwards.listen(self._backward_begins, self._loss_is_scaled)
            with (
                observer.observing(),
                scalers_end_steps(self._is_looking_here, _StepEnds),
                ddp_only_calls_its_module(self._is_looking_here),
                self._threads.followed(),
            ):
                try:
                    with uses:
                        returned = self._step()
                        self._run_backward(returned)
                except _StepEnds:
                    pass
            with apart():
                self._add_values(observer.run, returned)
            return observer.run
        finally:
            begun_backwards.stop_listening(self._backward_begins)
            for one in handles:
                one.remove()
            self._loss = None
            for weight, _, _ in self._gradients.values():
                weight.grad = None

    # ---- the backward ------------------------------------------------------------------------------------------------

    def _is_looking_here(self) -> bool:
        return self._is_looking and self._threads.has_this()

    def _backward_begins(self, loss: torch.Tensor) -> None:
        if not self._is_looking_here():
            return
        if self._loss is None:
            self._loss = loss.detach()
        self._has_gradient = True

    def _loss_is_scaled(self, loss: torch.Tensor) -> None:
        if self._is_looking_here() and self._loss is None:
            self._loss = loss.detach()

    def _run_backward(self, returned: Any) -> None:
        """Runs the backward of the loss that the step returned, if the step has not done so."""
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
        if not self._threads.has_this():
            for outermost in holders.outermost(module) or [module]:
                self._of_others.update(map(id, outermost.modules()))
        elif id(module) not in self._modules and self._is_looking:
            self._roots.add(id(module))
            self._module_is_used(module)

    def _tensor_is_used(self, tensor: torch.Tensor) -> None:
        module = self._by_memory.get(memory_of(tensor))
        if module is not None and id(module) not in self._modules:
            self._module_is_used(module)
        if tensor.requires_grad and tensor.is_leaf:
            self._leaf_is_used(tensor, is_written=False)

    def _tensor_is_written(self, tensor: torch.Tensor) -> None:
        memory = memory_of(tensor)
        if memory not in self._by_memory and memory not in self._step_made:
            self._step_made.add(memory)
            with apart():
                self._keep({}, "", tensor, f"a tensor of shape {tuple(tensor.shape)} (number {len(self._tensors)})")

    def _tensor_is_made(self, tensor: torch.Tensor) -> None:
        self._step_made.add(memory_of(tensor))

    def _module_is_used(self, module: torch.nn.Module) -> None:
        with apart():
            for outermost in holders.outermost(module) or [module]:
                root = Origin("", 0, (outermost,)).module
                for path, one in outermost.named_modules():
                    if id(one) not in self._modules:
                        self._modules[id(one)] = one
                        self._record(".".join((root, *path_in(outermost, path))), one)

    def _record(self, path: str, module: torch.nn.Module) -> None:
        if _is_lazy(module):
            return
        contents = self._before[id(module)][1] if id(module) in self._before else _Contents(module)
        self._holders += contents.holders
        self._containers += contents.containers
        for holder, former in contents.holders:
            for key, value in former.items():
                if not isinstance(value, torch.Tensor) or (holder is module._parameters and not value.is_leaf):
                    continue
                if holder is module._parameters and value.requires_grad:  # first, since copying a weight uses it
                    self._note_weight(f"{path}.{key}", value)
                self._keep(holder, key, value, f"{path}.{key}")
        for name, tensor in contents.inner:
            self._keep({}, "", tensor, f"{path}.{name}")

    def _keep(self, holder: dict[str, Any], key: str, tensor: torch.Tensor, name: str) -> None:
        """Stores a copy of a tensor, unless its class has no memory into which it could be copied back."""
        if tensor.device.type != "meta":
            with suppress(RuntimeError, NotImplementedError, TypeError):
                self._tensors.append(_Tensor(holder, key, tensor, name))

    def _note_weight(self, name: str, weight: torch.Tensor) -> None:
        if id(weight) not in self._weights:
            self._weights[id(weight)] = name, weight
            self._keep_gradient(weight)
            weight.grad = None

    def _keep_gradient(self, weight: torch.Tensor) -> None:
        """Notes the gradient that a weight has when the step first uses it. It is restored in the end."""
        if id(weight) in self._gradients:
            return
        with apart():
            gradient = weight.grad
            values = None if gradient is None else gradient.detach().clone()
        self._gradients[id(weight)] = weight, gradient, values

    def _leaf_is_used(self, tensor: torch.Tensor, is_written: bool) -> None:
        """Records a weight that belongs to a module that was not called, or to no module."""
        if not self._is_looking or id(tensor) in self._weights:
            return
        module = self._by_memory.get(memory_of(tensor))
        if is_written and module is None:  # a new tensor that has no values yet
            return
        if module is not None:
            self._module_begins(module, None)
        if id(tensor) not in self._weights:
            with apart():
                name = f"a tensor of shape {tuple(tensor.shape)} (weight {len(self._weights) + 1})"
                self._keep({}, "", tensor, name)
                self._note_weight(name, tensor)

    def _module_ends(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        if not self._compares_outputs or id(module) not in self._roots or len(self._outputs) >= _MOST_OUTPUTS:
            return
        with apart():
            self._outputs += [one.detach() for one in tensors_in(output)]

    def _restore(self) -> None:
        self._random.restore()
        with apart():
            for one in self._tensors:
                one.restore()
        for holder, former in self._holders:
            for key in holder.keys() - former.keys():
                del holder[key]
            for key, value in former.items():
                if key not in holder or holder[key] is not value:
                    holder[key] = value
        for container, items in self._containers:
            container.clear()
            (container.update if isinstance(container, dict | set) else container.extend)(items)

    # ---- the outcome -------------------------------------------------------------------------------------------------

    def _add_values(self, run: Run, returned: Any) -> None:
        if self._loss is not None and self._loss.numel() == 1:
            run.loss = float(self._loss)
        for name, weight in self._weights.values():
            run.add_gradient(name, weight.grad)
        for one in self._tensors:
            now = one.now()
            if isinstance(now, torch.Tensor):
                run.add_state(one.name, one.values, now.detach())
        loss = _loss_in(returned)
        run.add_returned([one for one in tensors_in(returned) if one is not loss])
        if not self._has_gradient:
            run.add_returned(self._outputs)


def _loss_in(returned: Any) -> torch.Tensor | None:
    """Returns the loss among what a step returned: the first tensor with one floating value."""
    loss = returned.get("loss") if isinstance(returned, dict) else getattr(returned, "loss", None)
    candidates = [loss] if isinstance(loss, torch.Tensor) else tensors_in(returned)
    scalars = [one for one in candidates if one.numel() == 1 and one.is_floating_point()]
    return next((one for one in scalars if one.requires_grad), next(iter(scalars), None))


def _is_lazy(module: torch.nn.Module) -> bool:
    """True for a module whose weights its first forward makes."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(one is not None and torch.nn.parameter.is_lazy(one) for one in tensors)


class RunsHere:
    """Runs of a step in this process."""

    advice = (
        "take the batch outside of it (`batch = next(batches)`, then `diagnose(lambda: loss_of(model(batch)))`), and "
        "set counters and generators of random numbers of its own anew in it"
    )

    def __init__(self, replays: Replays) -> None:
        self.compiles = False
        self._replays, self._locator = replays, Locator()

    def find_state(self) -> None:
        """Finds what the step uses, before anything is compared."""
        with noting_compiled_calls() as calls:
            self._replays.find_state(InFloat32(RunMode(), self._locator))
        self.compiles = bool(calls) and can_compile()

    def run(self, mode: RunMode) -> Run:
        return self._replays.run(observer_of(mode, self._locator))
