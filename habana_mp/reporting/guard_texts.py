"""The texts of the warnings of the guard."""

from __future__ import annotations

from typing import NamedTuple

import torch

from habana_mp import _core, ops
from habana_mp.reporting.judging import Call, Worst
from habana_mp.reporting.origins import Origin, here
from habana_mp.reporting.records import LARGEST_FLOAT16, line_of_range, shares_of_range

#: What the guard of this process named, with its rank. A report takes it from here.
named: dict[str, tuple[int, ...]] = {}

_MADE = {Worst.INFINITIES: "an infinity", Worst.NANS: "a NaN"}


class Lowered(NamedTuple):
    """An operation whose result is in lower precision though an input was not, or that makes a product in it."""

    operation: str
    dtype: torch.dtype
    origin: Origin


def lowered_by(call: Call) -> Lowered | None:
    """Returns the operation of a call if it lowered its values."""
    lower = [one.dtype for one in call.results() if one.dtype in (torch.bfloat16, torch.float16)]
    is_wider = any(one.dtype is torch.float32 for one in call.inputs())
    if lower and (is_wider or ops.row_of(call.operation).is_product):
        return Lowered(call.operation, lower[0], here())
    return None


def _in_words(*dtypes: torch.dtype) -> str:
    return ", ".join(sorted({str(one).removeprefix("torch.") for one in dtypes}))


def made(call: Call, worst: Worst, origin: Origin, lowered: Lowered | None) -> str:
    dtypes = _in_words(*(one.dtype for one in call.results()))
    is_of_infinity = worst is Worst.NANS and call.worst_input() is Worst.INFINITIES
    text = (
        f"`{call.operation}` made {_MADE[worst]}{dtypes and f' in {dtypes}'} "
        f"of {'inputs without a NaN' if is_of_infinity else 'finite inputs'}, "
        f"{'in the backward, ' if _core.computes_gradient() else ''}{origin}{_beyond_range(call)}"
    )
    if lowered is None or ops.row_of(call.operation).is_product:
        return text
    return f"{text}. These values come from `{lowered.operation}` in {_in_words(lowered.dtype)}, {lowered.origin}"


def _beyond_range(call: Call) -> str:
    """Says that an input does not fit into float16."""
    if call.before is not None or not any(one.dtype == torch.float16 for one in call.results()):
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
        "from the start, no operation made it. Check the data"
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


def ending(rank: int | None, device: torch.device | None) -> str:
    """Names the rank of this process if it has one, and the device if it is known. Says how near the values came to the
    end of the range, if there were any in float16."""
    text = "" if rank is None else f". This is rank {rank}" + (f", on {device}" if device is not None else "")
    line = line_of_range(shares_of_range(_core.guarded_largest()))
    return f"{text}. {line}" if line else text
