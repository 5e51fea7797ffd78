"""Functions that write into their tensors without counting the versions up, by which a write is noticed elsewhere."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from habana_mp._ledger import Assumption, holds
from habana_mp.ops.find import SILENT_WRITERS

_BUILTINS = Assumption(
    "torch.operator-builtins",
    assumed="an operator of torch.ops has the builtin that it calls as `_op`",
    check="`torch.ops.aten._unsafe_view` and its overload have one",
    otherwise="no casts of weights are kept",
)

#: Methods of torch.distributed's ProcessGroup, and of a backend behind it, that write into their tensors without
#: counting the versions up; with an underscore at the end, operators of torch.ops.c10d.
SILENT_COLLECTIVES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "recv", "recv_anysource", "recv_any_source", "gather"),
    *("scatter", "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall"),
    *("alltoall_base", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    # newer releases
    *("all_to_all_single", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "gather_single", "gather_into_tensor"),
)
#: Operators for the same, which functional collectives consist of.
_SILENT_FUNCTIONAL = (
    *("all_reduce_", "all_reduce_coalesced_", "broadcast_", "all_gather_into_tensor_out", "reduce_scatter_tensor_out"),
)


def silent_writers() -> Iterator[Any]:
    # What Dynamo has in the place of `.data`; and what turns a tensor's sign.
    for place, name in ((torch._C._autograd, "_get_data_attr"), (torch._C, "_set_neg")):
        if hasattr(place, name):
            yield getattr(place, name)
    collectives = [f"{name}_" for name in SILENT_COLLECTIVES]
    for operators, names in ((torch.ops.c10d, collectives), (torch.ops._c10d_functional, _SILENT_FUNCTIONAL)):
        for name in names:
            if hasattr(operators, name):
                yield from _of_operator(getattr(operators, name))
    distributed = getattr(torch._C, "_distributed_c10d", None)
    for group in (getattr(distributed, "ProcessGroup", None), getattr(distributed, "Backend", None)):
        for name in SILENT_COLLECTIVES:
            method = getattr(group, name, None)
            if method is not None:
                yield getattr(method, "__func__", method)
    for name in SILENT_WRITERS:
        if hasattr(torch, name):
            yield getattr(torch, name)
        if hasattr(torch.ops.aten, name):
            yield from _of_operator(getattr(torch.ops.aten, name))


def operators_have_builtins() -> bool:
    """Can the builtin of an operator be found?"""
    return holds(_BUILTINS, _has_builtins)


def _has_builtins() -> bool:
    operator = torch.ops.aten._unsafe_view
    return all(type(one._op) is types.BuiltinFunctionType for one in (operator, operator.default))


def _of_operator(operator: Any) -> Iterator[Any]:
    if not operators_have_builtins():
        return
    yield operator._op
    yield from (getattr(operator, overload)._op for overload in operator.overloads())
