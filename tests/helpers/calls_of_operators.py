"""Finds out how a call of an operator changes a weight among its arguments, in torch and with cached casts."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from habana_mp import _core, hmp
from helpers import operators
from helpers.operators import Way, way_of
from helpers.search_operators import ways

Arguments = tuple[Any, dict[str, Any]]

#: The values that the core compares at each use of a weight.
COMPARED = 8
OTHER_VALUE = 77.0

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@dataclass
class Call:
    """An operator with a weight as one of its arguments."""

    name: str
    position: int
    #: Returns the weight, which is new each time and has the same values.
    subject: Callable[[], nn.Parameter]
    #: Returns all arguments, including the weight. The other arguments are new too.
    arguments: Callable[[nn.Parameter], Arguments]
    schema: Any

    def __str__(self) -> str:
        return f"{self.name} {self.schema.arguments[self.position].name}"

    def run(self, weight: nn.Parameter, *, by_packet: bool = False) -> list[torch.Tensor]:
        """Makes the call. Returns the tensors among its results and arguments, always in the same order."""
        torch.manual_seed(1)
        values, named = self.arguments(weight)
        operator = operators.operator_of(self.schema)
        result = (operator._overloadpacket if by_packet else operator)(*values, **named)
        return list(_tensors([result, values, named]))


@dataclass
class Effect:
    """The effect of a call on the weight in torch."""

    #: The changes for which the weight's version counter was not incremented.
    uncounted: set[str] = field(default_factory=set)
    #: True if the weight has other values in the same memory.
    wrote: bool = False
    #: The indices of the call's tensors that share the weight's memory.
    aliases: list[int] = field(default_factory=list)

    @property
    def touches(self) -> bool:
        return self.wrote or bool(self.aliases or self.uncounted)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        if value.layout is torch.sparse_coo:
            yield value._values()
        elif value.layout in _COMPRESSED:
            yield value.values()
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


#: "schema" and "other values": calls with arguments made from the schemas. "samples": calls of torch's samples.
Kind = Literal["schema", "other values", "samples"]


@cache
def calls_of(kind: Kind) -> list[Call]:
    return list({"schema": calls_of_ways, "other values": other_calls_of_ways, "samples": calls_of_samples}[kind]())


# ---- the calls -------------------------------------------------------------------------------------------------------


def calls_of_ways() -> Iterator[Call]:
    """Yields the calls with arguments made from the schemas."""
    yield from (call for number, call in _numbered() if number == 0)


def other_calls_of_ways() -> Iterator[Call]:
    """Yields calls of operators that write or return views, with other shapes, sizes and memory formats."""
    yield from (call for number, call in _numbered() if number > 0)


def _numbered() -> Iterator[tuple[int, Call]]:
    known = ways()
    for schema in operators.schemas():
        name = operators.name_of(schema)
        positions = operators.tensor_arguments(schema)
        for position, several in zip(positions, known.get(name, ()), strict=name in known):
            for number, way in enumerate(several.split(",") if several != "-" else ()):
                yield number, _call_of_way(name, schema, position, way_of(way))


def _call_of_way(name: str, schema: Any, position: int, way: Way) -> Call:
    def subject() -> nn.Parameter:
        torch.manual_seed(0)
        return operators.subject_of(way)

    return Call(name, position, subject, lambda weight: operators.arguments(schema, position, way, weight), schema)


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, Arguments] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        if function.name() not in self.seen:
            self.seen[function.name()] = tree_map(_copied, given)
        return function(*args, **given[1])


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) and value.layout is torch.strided else value


def calls_of_samples(samples: int = 3) -> Iterator[Call]:
    """Yields the calls that torch makes for the samples of its own database of operations."""
    from helpers.operation_database import entries

    recorder = _Recorder()
    for one in entries():
        try:
            for sample in itertools.islice(one.sample_inputs("cpu", torch.float32, requires_grad=False), samples):
                with warnings.catch_warnings(), torch.no_grad(), recorder:
                    warnings.simplefilter("ignore")
                    one.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # samples that fail in torch itself are skipped
            continue
    for schema in operators.schemas():
        if given := recorder.seen.get(operators.name_of(schema)):
            for position in operators.tensor_arguments(schema):
                values = [*given[0], *([None] * len(schema.arguments))]
                value = given[1].get(schema.arguments[position].name, values[position])
                value = value[0] if isinstance(value, (list, tuple)) and value else value
                if isinstance(value, torch.Tensor) and _may_be_weight(value):
                    yield _call_of_sample(schema, position, given, value)


def _may_be_weight(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and tensor.dtype is torch.float32
    return is_dense and tensor.numel() > COMPARED + 1 and tensor.is_contiguous()


def _call_of_sample(schema: Any, position: int, given: Arguments, value: torch.Tensor) -> Call:
    name = schema.arguments[position].name

    def arguments(weight: nn.Parameter) -> Arguments:
        def exchanged(former: Any) -> Any:
            return [weight, *former[1:]] if isinstance(former, (list, tuple)) else weight

        values, named = tree_map(_copied, given)
        values = [exchanged(one) if i == position else one for i, one in enumerate(values)]
        return values, {key: exchanged(one) if key == name else one for key, one in named.items()}

    return Call(
        operators.name_of(schema),
        position,
        lambda: nn.Parameter(value.detach().clone(), requires_grad=False),
        arguments,
        schema,
    )


# ---- in torch --------------------------------------------------------------------------------------------------------


def effect_of(call: Call) -> Effect:
    """Finds out in torch, without casts, what a call does to a new weight.

    Raises:
        Exception: whatever the operator raises.
    """
    with torch.inference_mode(False):
        weight = call.subject()
    before, memory, version, lies = weight.detach().clone(), _memory(weight), weight._version, _geometry(weight)
    tensors = call.run(weight)
    effect = Effect()
    is_counted = weight._version != version
    if _memory(weight) != memory:
        # The weight has other memory now, which the core notices. Another tensor may share that memory.
        return effect
    if _geometry(weight) != lies:
        effect.uncounted |= set() if is_counted else {"layout"}
        return effect
    effect.wrote = not torch.equal(weight.nan_to_num(), before.nan_to_num())
    if effect.wrote and not is_counted:
        effect.uncounted.add("values")
    for i, tensor in enumerate(tensors):
        if tensor is not weight and _memory(tensor) == memory:
            effect.aliases.append(i)
            if not _share_version(weight, tensor):
                effect.uncounted.add("alias")
    return effect


def _memory(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a tensor without a storage
        return (0, 0)
    return storage._cdata, storage.data_ptr()


def _geometry(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _share_version(weight: torch.Tensor, alias: torch.Tensor) -> bool:
    version = weight._version
    try:
        torch.autograd.graph.increment_version(alias)
    except RuntimeError:  # an alias that was made in inference mode has no version counter
        return False
    return weight._version != version


# ---- with casts ------------------------------------------------------------------------------------------------------


class Prepared:
    """A weight that is made before casts are switched on, so that its memory can be written without torch."""

    def __init__(self, call: Call, effect: Effect) -> None:
        self.call, self.effect = call, effect
        self.weight = call.subject()
        size = self.weight.numel()
        self._values = (ctypes.c_float * size).from_address(self.weight.data_ptr())
        last = COMPARED - 1
        self._compared = [(size - 1) // last * i + (size - 1) % last * i // last for i in range(COMPARED)]

    def problem(self, *, by_packet: bool = False) -> str:
        """Returns a description of the fault of the weight's cast after the call, or an empty string."""
        for _ in range(2):
            hits = _core.weights_statistics()["hits"]
            self._use()
        if _core.weights_statistics()["hits"] == hits:
            return "its cast is not kept before the call"
        compared = [self._values[i] for i in self._compared]
        tensors = self.call.run(self.weight, by_packet=by_packet)
        if self.effect.wrote:
            # Restores these values, as if the call had written all values except these.
            for i, value in zip(self._compared, compared, strict=True):
                self._values[i] = value
        for i in self.effect.aliases:
            self._write(tensors[i])
        del tensors
        if self.weight.dim() == 0 or self.weight.numel() == 0:
            return ""
        result = self._use()
        with hmp.disable_casts():
            expected = self._use(self.weight.detach().clone().bfloat16())
        return (
            "" if torch.equal(result.nan_to_num(), expected.nan_to_num()) else "its kept cast is not that of its values"
        )

    def _use(self, weight: torch.Tensor | None = None) -> torch.Tensor:
        weight = self.weight if weight is None else weight
        return torch.matmul(weight, torch.linspace(0.5, 1, weight.shape[-1]).to(torch.bfloat16)).float()

    def _write(self, alias: torch.Tensor) -> None:
        """Writes into one element that is not compared."""
        if alias.dtype not in (torch.float32, torch.int32):
            return
        for index in itertools.product(*map(range, alias.shape)):
            place = alias.storage_offset() + sum(i * stride for i, stride in zip(index, alias.stride(), strict=True))
            if place not in self._compared and place < len(self._values):
                with suppress(RuntimeError):  # torch refuses writes into some aliases
                    alias[index] = OTHER_VALUE if alias.dtype is torch.float32 else 0x42800000
                return
