"""The texts of the warnings of the guard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from habana_mp import _core, ops
from habana_mp.reporting.judging import Call, Worst, tensors_in
from habana_mp.reporting.origins import Origin, here
from habana_mp.reporting.records import LARGEST_FLOAT16, line_of_range, shares_of_range

#: What the guard of this process named, with its rank. A report takes it from here.
named: dict[str, tuple[int, ...]] = {}

_MADE = {Worst.INFINITIES: "an infinity", Worst.NANS: "a NaN"}


def results_of(call: Call) -> Iterator[torch.Tensor]:
    return tensors_in(call.result)


def _finite_inputs(call: Call, worst: Worst) -> str:
    inputs = call.worst_input()
    return "of inputs without a NaN" if worst is Worst.NANS and inputs is Worst.INFINITIES else "of finite inputs"


class Lowered(NamedTuple):
    """An operation whose result is in lower precision though an input was not, or that makes a product in it."""

    operation: str
    dtype: str
    origin: Origin


def lowered_by(call: Call) -> Lowered | None:
    """Returns the operation of a call if it lowered its values."""
    lower = [one.dtype for one in results_of(call) if one.dtype in (torch.bfloat16, torch.float16)]
    if not lower:
        return None
    is_wider = any(one.dtype is torch.float32 for one in call.inputs())
    if not is_wider and not ops.row_of(call.operation).is_product:
        return None
    return Lowered(call.operation, _in_words(lower[0]), here())


def _in_words(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def made(call: Call, worst: Worst, origin: Origin, lowered: Lowered | None) -> str:
    dtypes = {_in_words(one.dtype) for one in results_of(call)}
    how = f" in {', '.join(sorted(dtypes))}" if dtypes else ""
    where = "in the backward, " if _core.computes_gradient() else ""
    return (
        f"`{call.operation}` made {_MADE[worst]}{how} {_finite_inputs(call, worst)}, {where}{origin}"
        f"{_beyond_range(call)}{_from(call, lowered)}"
    )


def _from(call: Call, lowered: Lowered | None) -> str:
    """Names the lowered operation that the values come from, unless the call multiplies matrices itself."""
    if lowered is None or ops.row_of(call.operation).is_product:
        return ""
    return f". These values come from `{lowered.operation}` in {lowered.dtype}, {lowered.origin}"


def _beyond_range(call: Call) -> str:
    """Says that an input does not fit into float16."""
    if call.before is not None or not any(one.dtype == torch.float16 for one in results_of(call)):
        return ""
    wide = [one for one in call.inputs() if one.dtype in (torch.float32, torch.bfloat16) and one.numel()]
    largest = max((float(one.detach().abs().max()) for one in wide), default=0.0)
    if largest <= LARGEST_FLOAT16:
        return ""
    return f". An input has the value {largest:.3g}, and the largest of float16 is {LARGEST_FLOAT16:.0f}"


def made_gradient(operation: str, worst: Worst, origin: Origin) -> str:
    return f"the backward of `{operation}` made {_MADE[worst]} of finite gradients; the operation ran {origin}"


def received(call: Call, origin: Origin) -> str:
    return (
        f"`{call.operation}` was the first to receive {_MADE[call.worst_input()]}, {origin}: the input was not finite "
        f"from the start, no "
        f"operation made it. Check the data"
    )


def weight_in(origin: Origin, weight: torch.Tensor, worst: Worst) -> str:
    return f". A weight of shape {tuple(weight.shape)} has {_MADE[worst]} already; it is used {origin}"


def passed(seen: str, origin: Origin | None, weight: str = "", *, checks_all: bool) -> str:
    where = "" if origin is None else f", {origin}"
    text = f"values that are not finite were seen in {seen}{where}{weight}. "
    if checks_all:
        return text + "No operation that the guard sees made them of finite values"
    return (
        f"{text}The operation that made them ran before all calls were checked, and no other one has done so since. To "
        f"find it, use `guard=1.0`, which checks all calls from the start"
    )


def of_infinity(call: Call, origin: Origin) -> str:
    return (
        f". `{call.operation}` made a NaN of an infinity, {origin}: a number of the code, or a cast such as "
        "`.to(torch.float16)`, may have made that"
    )


def range_of_float16() -> str:
    """Says how near the values came to the end of the range, if there were any in float16."""
    line = line_of_range(shares_of_range(_core.guarded_largest()))
    return f". {line}" if line else ""


def rank_and_device(rank: int | None, device: torch.device | None) -> str:
    """Names the rank of this process if it has one, and the device if it is known."""
    return "" if rank is None else f". This is rank {rank}" + (f", on {device}" if device is not None else "")
