"""No operator of ``torch.ops`` changes a weight, or gives away its memory, without the next call seeing it.

Each line of ``operators.txt`` is a call with a weight, ``W``, as one of the operator's tensors. Torch shows what the
call does to the weight. Then the same is done to a weight whose cast is cached, and a value is written through each
tensor that shares the weight's memory. The values that the core compares stay as they were. All calls run in a process
of their own, since some operators change the state of the process or write files.
"""

from __future__ import annotations

import ctypes
import itertools
import re
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from habana_mp import _core, hmp
from habana_mp.ops import find
from helpers.processes import run_script

FILE = Path(__file__).with_name("operators.txt")
MODES = {"no_grad": torch.no_grad, "inference": torch.inference_mode}

#: What torch 2.13 does to a weight without counting its version up: it writes values, makes an alias with a version of
#: its own, or changes how the weight is stored.
UNCOUNTED = {
    "values": {
        *("aten::_cummax_helper values", "aten::_cummin_helper values"),
        *("aten::_fused_sgd_ self", "aten::_fused_sgd_ grads", "aten::_fused_sgd_ momentum_buffer_list"),
        *("aten::_fused_sgd_.tensor_lr self", "aten::_fused_sgd_.tensor_lr momentum_buffer_list"),
        *("aten::rrelu_with_noise noise", "aten::rrelu_with_noise.out noise", "aten::rrelu_with_noise_ noise"),
    },
    "layout": {"aten::resize_ self", "aten::resize_as_ self"},
    "alias": {
        *("aten::_unsafe_view self", "aten::data self", "prim::data a", "aten::set_data new_data"),
        *("aten::set.source_Tensor source", "aten::set_.source_Tensor source"),
        "aten::set_.source_Tensor_storage_offset source",
        *("aten::unsafe_chunk self", "aten::unsafe_split.Tensor self", "aten::unsafe_split_with_sizes self"),
        *("inductor::_alloc_from_pool self", "inductor::_reinterpret_tensor self"),
        # in inference mode
        *("aten::view.dtype self", "prims::view_of_dtype a"),
        # of sparse layouts
        "aten::_gather_sparse_backward grad",
        *(f"aten::_sparse_{layout}_tensor_unsafe values" for layout in ("bsc", "bsr", "csc", "csr")),
        "aten::sparse_coo_tensor.indices values",
        *(f"aten::sparse_{layout}_tensor.ccol_row_value values" for layout in ("bsc", "csc")),
        *(f"aten::sparse_{layout}_tensor.ccol_row_value_size values" for layout in ("bsc", "csc")),
        *(f"aten::sparse_{layout}_tensor.crow_col_value values" for layout in ("bsr", "csr")),
        *(f"aten::sparse_{layout}_tensor.crow_col_value_size values" for layout in ("bsr", "csr")),
    },
}
KNOWN = {(what, argument) for what, arguments in UNCOUNTED.items() for argument in arguments}

#: The operators that the package itself knows to be uncounted.
TABLES = {
    *(*find.UNCOUNTED_WRITERS, *find.UNCOUNTED_OPERATORS, *find.UNCOUNTED_STATISTICS),
    *(argument.split()[0].split("::")[1].split(".")[0] for _, argument in KNOWN),
}


@pytest.mark.parametrize("one_of", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_no_operator_changes_a_weight_without_the_next_call_seeing_it(one_of: int, tmp_path: Path) -> None:
    code = "import sys; sys.path[:0] = sys.argv[2:]; import test_every_operator as it; it.main(int(sys.argv[1]))"
    done = run_script(code, str(one_of), str(FILE.parent), str(FILE.parents[1]), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout[-5000:] + done.stderr[-2000:]


def main(one_of: int) -> None:
    """Makes the calls of every so many operators, and of those in ``TABLES``. Prints each fault."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    calls = [call for call in map(call_of, FILE.read_text().splitlines()) if call.is_one_of(one_of)]
    assert len(calls) > 4000 // one_of
    uncounted = set()
    for mode, entered in MODES.items():
        effects = []
        for call in calls:
            try:
                with entered():
                    effects.append((call, effect_of(call)))
            except AttributeError:  # another release may lack the operator
                continue
            except Exception as error:  # some do not run in inference mode
                if mode == "no_grad":
                    print(f"{call}: {type(error).__name__}: {error}")
        uncounted |= {(what, str(call)) for call, effect in effects for what in effect.uncounted}
        for by_packet in (False, True):  # or without naming an overload
            prepared = [Prepared(call, effect) for call, effect in effects if effect.touches or not by_packet]
            hmp.convert()
            with entered():
                for one in prepared:
                    if problem := one.problem(by_packet=by_packet):
                        print(f"{one.call}, {mode}: {problem}")
            hmp.restore()
    # A new one is seen where torch has no kernel for it that counts. Else it must be named in ``ops/find.py``.
    for difference in sorted(uncounted ^ KNOWN):
        print("uncounted, or no longer:", *difference)
    print("done")


# ---- the calls -------------------------------------------------------------------------------------------------------


def f(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape) + 0.5


SHAPES = {"A": (12, 12), "B": (2, 4, 6, 6), "C": (12,), "D": (2, 12, 12), "E": (2, 4, 4, 6, 6)}
NAMES = {
    **vars(torch),
    **SHAPES,
    "f": f,
    "i": lambda shape: torch.ones(shape, dtype=torch.int64),
    "b": lambda shape: torch.ones(shape, dtype=torch.bool),
    "storage": lambda size: torch.rand(size).untyped_storage(),
    "call": lambda *values, **named: (values, named),
}


@dataclass
class Call:
    """An operator with a weight as one of its arguments."""

    name: str
    argument: str
    shape: tuple[int, ...]
    arguments: str

    def __str__(self) -> str:
        return f"{self.name} {self.argument}"

    def is_one_of(self, one_of: int) -> bool:
        return zlib.crc32(self.name.encode()) % one_of == 0 or re.split("::|[.]", self.name)[1] in TABLES

    def weight(self) -> nn.Parameter:
        """Returns the weight, which is new each time and has the same values."""
        torch.manual_seed(0)
        return nn.Parameter(f(self.shape), requires_grad=False)

    def run(self, weight: nn.Parameter, *, by_packet: bool = False) -> list[torch.Tensor]:
        """Makes the call. Returns the tensors among its results and arguments, always in the same order."""
        torch.manual_seed(1)
        values, named = eval(f"call({self.arguments})", {**NAMES, "W": weight})
        namespace, operator, overload, *_ = [*re.split("::|[.]", self.name), "default"]
        packet = getattr(getattr(torch.ops, namespace), operator)
        result = (packet if by_packet else getattr(packet, overload))(*values, **named)
        return list(tensors_of([result, values, named]))


def call_of(line: str) -> Call:
    place, shape, arguments = line.split(": ", 2)
    return Call(*place.split(), eval(shape, SHAPES), arguments)  # type: ignore[arg-type]  # two words


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    for one in tree_leaves(value):
        if isinstance(one, torch.Tensor):
            yield one
            if one.layout is torch.sparse_coo:
                yield one._values()
            elif one.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
                yield one.values()


# ---- in torch --------------------------------------------------------------------------------------------------------


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


def effect_of(call: Call) -> Effect:
    """Finds out in torch, without casts, what a call does to a new weight."""
    with torch.inference_mode(False):
        weight = call.weight()
    before, memory, version, lies = weight.detach().clone(), memory_of(weight), weight._version, geometry(weight)
    tensors = call.run(weight)
    effect = Effect()
    is_counted = weight._version != version
    if memory_of(weight) != memory:
        # The weight has other memory now, which the core notices. Another tensor may share that memory.
        return effect
    if geometry(weight) != lies:
        effect.uncounted |= set() if is_counted else {"layout"}
        return effect
    effect.wrote = not torch.equal(weight.nan_to_num(), before.nan_to_num())
    if effect.wrote and not is_counted:
        effect.uncounted.add("values")
    for i, tensor in enumerate(tensors):
        if tensor is not weight and memory_of(tensor) == memory:
            effect.aliases.append(i)
            if not share_version(weight, tensor):
                effect.uncounted.add("alias")
    return effect


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # a tensor without a storage
        return (0, 0)
    return storage._cdata, storage.data_ptr()


def geometry(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def share_version(weight: torch.Tensor, alias: torch.Tensor) -> bool:
    version = weight._version
    try:
        torch.autograd.graph.increment_version(alias)
    except RuntimeError:  # an alias that was made in inference mode has no version counter
        return False
    return weight._version != version


# ---- with casts ------------------------------------------------------------------------------------------------------

#: The values that the core compares at each use of a weight.
COMPARED = 8


class Prepared:
    """A weight that is made before casts are switched on, so that its memory can be written without torch."""

    def __init__(self, call: Call, effect: Effect) -> None:
        self.call, self.effect, self.weight = call, effect, call.weight()
        size = self.weight.numel()
        self.values = (ctypes.c_float * size).from_address(self.weight.data_ptr())
        last = COMPARED - 1
        self.compared = [(size - 1) // last * i + (size - 1) % last * i // last for i in range(COMPARED)]

    def problem(self, *, by_packet: bool) -> str:
        """Returns a description of the fault of the weight's cast after the call, or an empty string."""
        for _ in range(2):
            hits = _core.weights_statistics()["hits"]
            self.use(self.weight)
        if _core.weights_statistics()["hits"] == hits:
            return "its cast is not cached before the call"
        compared = [self.values[i] for i in self.compared]
        tensors = self.call.run(self.weight, by_packet=by_packet)
        if self.effect.wrote:
            # Restores these values, as if the call had written all values except these.
            for i, value in zip(self.compared, compared, strict=True):
                self.values[i] = value
        for i in self.effect.aliases:
            self.write(tensors[i])
        del tensors
        if self.weight.dim() == 0 or self.weight.numel() == 0:
            return ""
        result = self.use(self.weight)
        with hmp.disable_casts():
            expected = self.use(self.weight.detach().clone().bfloat16())
        is_right = torch.equal(result.nan_to_num(), expected.nan_to_num())
        if self.weight.untyped_storage().nbytes() < self.weight.nbytes:  # other objects use the memory behind it
            return ""
        return "" if is_right else "its cached cast is not that of its values"

    def use(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.matmul(weight, torch.linspace(0.5, 1, weight.shape[-1]).to(torch.bfloat16)).float()

    def write(self, alias: torch.Tensor) -> None:
        """Writes into one element that is not compared."""
        if alias.dtype not in (torch.float32, torch.int32):
            return
        for index in itertools.product(*map(range, alias.shape)):
            place = alias.storage_offset() + sum(i * stride for i, stride in zip(index, alias.stride(), strict=True))
            if place not in self.compared and place < len(self.values):
                with suppress(RuntimeError):  # torch refuses writes into some aliases
                    alias[index] = 77.0 if alias.dtype is torch.float32 else 0x42800000
                return
