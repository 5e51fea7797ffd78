"""Reads torch's own database of operations, and gives the effect of the rules on each of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch

from habana_mp import ops
from habana_mp.ops.find import builtins_named
from habana_mp.ops.operation import Castable
from habana_mp.policy.rules import ruling_without_list

BF16, FP32 = torch.bfloat16, torch.float32
#: The number of samples that are used from each entry. Some entries have hundreds.
SAMPLES = 16


def name_of(op: Any) -> str:
    """Returns the database's name of an entry."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@dataclass(frozen=True)
class Call:
    """The arguments of one call: the input, the other positional arguments, and the keyword arguments."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def mapped(self, change: Callable[[torch.Tensor, int | str], torch.Tensor]) -> Call:
        """Returns the call with ``change(tensor, position or keyword)`` for each float32 or bfloat16 tensor."""

        def walk(value: Any, where: int | str) -> Any:
            if isinstance(value, torch.Tensor):
                return change(value, where) if value.dtype in (FP32, BF16) else value
            if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
                return type(value)(walk(item, where) for item in value)
            return value

        arguments = tuple(walk(value, position) for position, value in enumerate(self.arguments))
        return Call(arguments, {name: walk(value, name) for name, value in self.keywords.items()})

    def tensors(self) -> list[tuple[torch.Tensor, int | str]]:
        """Returns its float32 and bfloat16 tensors in order, each with its position or keyword."""
        found: list[tuple[torch.Tensor, int | str]] = []

        def note(tensor: torch.Tensor, where: int | str) -> torch.Tensor:
            found.append((tensor, where))
            return tensor

        self.mapped(note)
        return found

    def copied(self) -> Call:
        """Returns the call with copies of its tensors, into which a function may write."""
        return self.mapped(lambda tensor, _: tensor.detach().clone())

    def run(self, function: Callable[..., Any]) -> Any:
        """Returns the function's result, made with the same random numbers each time."""
        torch.manual_seed(0)
        return function(*self.arguments, **self.keywords)


def calls_of(op: Any, limit: int, requires_grad: bool = False) -> Iterator[Call]:
    """Yields the first samples of an entry."""
    torch.manual_seed(0)
    # sample_inputs searches the whole stack each time, to say where a test failed, so this calls sample_inputs_func.
    for sample in islice(op.sample_inputs_func(op, torch.device("cpu"), FP32, requires_grad), limit):
        yield Call((sample.input, *sample.args), dict(sample.kwargs))


def supports(op: Any, *dtypes: torch.dtype) -> bool:
    return all(dtype in op.dtypes for dtype in dtypes)


def several_inputs(op: Any) -> bool:
    """True if the operation takes two or more float tensors and has kernels for float32 and bfloat16."""
    return supports(op, FP32, BF16) and any(len(call.tensors()) > 1 for call in calls_of(op, SAMPLES))


@cache
def entries() -> list[Any]:
    """Returns the entries with a kernel for float32 on a CPU. The first call takes seconds, so no module does it."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    # For messages that are not used here, torch looks through all frames and their source files each time it makes
    # samples. That takes most of a test's time.
    for module in (common_utils, core):
        vars(module)["extract_test_fn"] = lambda: None
    # jiterator's operations run on a GPU only.
    return [op for op in op_db if not op.name.startswith("jiterator") and supports(op, FP32)]


@cache
def entries_of_several_inputs() -> list[Any]:
    return [op for op in entries() if several_inputs(op)]


def operation_of(op: Any) -> str | None:
    """Returns the package's operation for an entry. Returns None for an operation that torch composes in Python from
    others, and for one whose inputs are swapped."""
    if op.name.startswith(("__r", "masked.")):
        return None
    last = op.name.rpartition(".")[2]
    for name in (op.name.replace(".", "_"), last, f"aten::{last}"):
        resolved = ops.resolve(name)
        if resolved is not None and builtins_named(resolved.exact[0]):
            return resolved.exact[0]
    return None


def castable_of(op: Any) -> Castable | None:
    """Returns the arguments of the entry that may be cast."""
    castable = ops.arguments_of(operation_of(op) or "")
    if castable is not None and op.name in ("nn.functional.batch_norm", "nn.functional.instance_norm"):
        # The statistics precede the weights in these operations.
        castable = castable._replace(positions=(0, 3, 4), raised=(3, 4))
    return castable


def mixtures(op: Any, limit: int) -> Iterator[tuple[Call, Call]]:
    """Yields calls in float32, and the same calls with alternating bfloat16 and float32 inputs, each of the two first
    once.

    Running statistics and similar buffers stay in float32, as in a model. Convolutions that torch gets wrong (rule 8)
    are left out.
    """
    castable = castable_of(op)
    row = ops.rows().get(operation_of(op) or "")
    is_wrong = None if row is None else row.wrong_in_bf16
    for call in calls_of(op, SAMPLES):
        if is_wrong is not None and is_wrong(*call.arguments, **call.keywords):
            continue
        changed = [where for _, where in call.tensors() if castable is None or _may_be_cast(castable, where)]
        if len(changed) < 2:
            continue
        for first in (0, 1):
            count = 0

            def lower(tensor: torch.Tensor, where: int | str, first: int = first) -> torch.Tensor:
                nonlocal count
                if castable is not None and not _may_be_cast(castable, where):
                    return tensor.detach().clone()
                count += 1
                return tensor.detach().to(BF16 if count % 2 == first else FP32, copy=True)

            yield call, call.mapped(lower)
        limit -= 1
        if limit == 0:
            return


def _may_be_cast(castable: Castable, where: int | str) -> bool:
    return where in castable.positions if isinstance(where, int) else where not in castable.kept_keywords


def _may_stay_float32(castable: Castable, where: int | str) -> bool:
    return where in (*castable.raised, *castable.off_cpu, *castable.raised_keywords, *castable.off_cpu_keywords)


def _is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided


def cast_by_hand(op: Any, call: Call) -> Call:
    """Returns the call with the casts that the rules make if no list names the operation."""
    operation = operation_of(op)
    assert operation is not None
    ruling = ruling_without_list(operation)
    castable = castable_of(op)
    eligible = [
        (tensor, where) for tensor, where in call.tensors() if castable is None or _may_be_cast(castable, where)
    ]
    dtypes = [tensor.dtype for tensor, _ in eligible]
    if not dtypes or ruling.action in ("none", "scalars"):
        return call
    # A tensor without dimensions does not widen those with dimensions, unless the operation gives it some.
    row = ops.row_of(operation)
    kinds = {tensor.dtype for tensor, _ in eligible if row.gives_dimensions or tensor.dim()} or set(dtypes)
    leaves_numbers = ruling.action == "widest" and row.promotes and len(kinds) == 1
    if ruling.action == "widest":
        target = FP32 if FP32 in kinds else BF16
    elif ruling.action == "precision" or (
        ops.row_of(operation).is_product and any(_is_sparse(one) for one, _ in eligible)
    ):
        target = FP32
    else:
        target = dtypes[0]
    keeps = [where for _, where in eligible if castable is not None and _may_stay_float32(castable, where)]
    deciding = [tensor for tensor, where in eligible if where in keeps]
    if castable is not None and castable.off_cpu:
        # On a CPU the weight of a norm determines the precision of its bias too.
        deciding = [
            tensor for tensor, where in eligible if where in (castable.off_cpu[0], castable.off_cpu_keywords[0])
        ]
    one_keeps = target is BF16 and any(tensor.dtype is FP32 for tensor in deciding)

    def cast(tensor: torch.Tensor, where: int | str) -> torch.Tensor:
        if castable is not None and not _may_be_cast(castable, where):
            return tensor
        if leaves_numbers and any(one.dim() for one, _ in eligible) and not tensor.dim():
            return tensor
        return tensor.to(FP32 if one_keeps and where in keeps else target)

    return call.mapped(cast)
