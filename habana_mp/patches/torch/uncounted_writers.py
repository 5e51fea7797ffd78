"""Functions that write into their tensors without incrementing the version counters, which reveal all other writes, or
that return tensors which share their memory but not their version counters."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket, _OpNamespace

from habana_mp.common.ledger import Assumption, holds
from habana_mp.ops.find import (
    METHODS_OF_C,
    UNCOUNTED_OPERATORS,
    UNCOUNTED_OVERLOADS,
    UNCOUNTED_STATISTICS,
    UNCOUNTED_WRITERS,
    namespaces,
)

WRITERS = Assumption(
    "torch.writers-of-weights",
    assumed="an operator of torch.ops has the builtin that it calls as `_op`; torch makes that when it looks the "
    "operator up; one that counts versions has a kernel for that, or is made of others; `torch._C.TensorBase` and "
    "`StorageBase` have the methods by which others get at a weight's memory",
    check="`torch.ops.aten._unsafe_view` and its overload have a builtin, and are looked up; `add_` and `chunk` have "
    "such kernels, and `_fused_sgd_` has none; each method is there, but those that older releases lack",
    otherwise="no casts of weights are cached",
)

#: Methods of torch.distributed's ProcessGroup, and of its backends, that write into their tensors without incrementing
#: the version counters. With a trailing underscore these are also operators of torch.ops.c10d.
UNCOUNTED_COLLECTIVES = (
    *("broadcast", "allreduce", "allreduce_coalesced", "reduce", "recv", "recv_anysource", "recv_any_source", "gather"),
    *("scatter", "allgather", "_allgather_base", "allgather_coalesced", "allgather_into_tensor_coalesced", "alltoall"),
    *("alltoall_base", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"),
    # In newer releases.
    *("all_to_all_single", "all_gather_single", "all_gather_single_coalesced", "reduce_scatter_single"),
    *("reduce_scatter_single_coalesced", "gather_single", "gather_into_tensor"),
)
#: Operators for the same, which functional collectives call.
_UNCOUNTED_FUNCTIONAL = (
    *("all_reduce_", "all_reduce_coalesced_", "broadcast_", "all_gather_into_tensor_out", "reduce_scatter_tensor_out"),
)


#: The prefixes of torch's own operators, which increment the version counters after they have written.
_OF_TORCH = ("aten::", "prims::", "prim::")


def uncounted_writers() -> Iterator[Any]:
    """Yields the builtins to tap that exist already. `operator_found` returns those that torch creates later."""
    # The first one replaces `.data` in Dynamo, the second one sets the bit for a tensor's sign.
    for place, name in (
        (torch._C._autograd, "_get_data_attr"),
        (torch._C, "_set_neg"),
        (torch._C, "_dispatch_call_boxed"),
    ):
        if hasattr(place, name):
            yield getattr(place, name)
    yield from METHODS_OF_C
    distributed = getattr(torch._C, "_distributed_c10d", None)
    for group in (getattr(distributed, "ProcessGroup", None), getattr(distributed, "Backend", None)):
        for name in UNCOUNTED_COLLECTIVES:
            method = getattr(group, name, None)
            if method is not None:
                yield getattr(method, "__func__", method)
    for _, namespace in (("torch", torch), *namespaces()):
        for name in (*UNCOUNTED_WRITERS, *UNCOUNTED_OPERATORS):
            if type(getattr(namespace, name, None)) is types.BuiltinFunctionType:
                yield getattr(namespace, name)
    if operators_have_builtins():
        yield from _of_operators_in_use()


def _of_operators_in_use() -> Iterator[Any]:
    """Yields the builtins to tap of the operators that torch.ops has looked up already."""
    for namespace in list(vars(torch.ops).values()):
        packets = vars(namespace).values() if isinstance(namespace, _OpNamespace) else ()
        for packet in [one for one in packets if isinstance(one, OpOverloadPacket)]:
            yield from _builtins_of(packet)


#: The builtins to tap of torch's own operators. Each has with it the operator's builtin, which torch replaces when an
#: overload is defined, and the number of the operator's attributes: it gets one more for each overload that is looked
#: up.
_of_packets: dict[str, tuple[Any, int, tuple[Any, ...]]] = {}


def _builtins_of(packet: OpOverloadPacket) -> tuple[Any, ...]:
    """Returns the builtins to tap of an operator and of those of its overloads that were looked up."""
    whole, builtin, attributes = packet._qualified_op_name, packet._op, vars(packet)
    size = len(attributes)
    known = _of_packets.get(whole)
    if known is not None and known[0] is builtin and known[1] == size:
        return known[2]
    found = operator_found((builtin, packet._overload_names), whole)
    for overload in [one for one in attributes.values() if isinstance(one, OpOverload)]:
        found += operator_found((overload._op, overload._op_dk, None), whole, overload._schema.overload_name)
    if whole.startswith(_OF_TORCH):
        _of_packets[whole] = builtin, size, found
    return found


def operator_found(found: Any, name: str, overload: str | None = None) -> tuple[Any, ...]:
    """Returns the builtins to tap among those that torch has looked up for an operator, or for one of its overloads.

    For an operator, torch returns a pair: the builtin that calls it, and the names of its overloads. For an overload it
    returns a triple: the builtin that calls it, one that calls a single kernel of it, and tags."""
    if found[0] is None or not operators_have_builtins():
        return ()
    if overload is None:
        wanted = found[:1] if any(_is_uncounted(name, one) for one in found[1]) else ()
    else:
        wanted = found[:2] if _is_uncounted(name, overload) else found[1:2] if _touches(name, overload) else ()
    # In newer releases some of them are not builtins.
    return tuple(one for one in wanted if type(one) is types.BuiltinFunctionType)


def _is_uncounted(name: str, overload: str) -> bool:
    """True if an overload touches its arguments, and torch has no kernel for it that handles the version counter.

    Such a kernel increments the counter, or shares it with a view. torch has one for each of its own operators that
    needs one, or composes the operator of others. A library's operator increments the counter before it writes, if at
    all. That is too early: another thread may cast a weight that is only partly written."""
    whole = f"{name}.{overload}" if overload else name
    if name in _UNCOUNTED_NAMES or whole in _UNCOUNTED_NAMES:
        return True
    if name.startswith(_OF_TORCH):
        return whole not in _counting() and _touches(name, overload)
    return _touches(name, overload) and (_touches(name, overload, only_writes=True) or not _has_counting_kernel(whole))


def _touches(name: str, overload: str, *, only_writes: bool = False) -> bool:
    """True if an overload writes into its arguments or, without ``only_writes``, returns views of them."""
    annotations = [one.alias_info for one in torch._C._get_schema(name, overload).arguments]
    return any(one is not None and (one.is_write or not only_writes) for one in annotations)


#: Kernels under these keys increment the version counter, or call operators that do.
_COUNTING = ("ADInplaceOrView", "CompositeImplicitAutograd")


@cache
def _counting() -> frozenset[str]:
    """Returns the overloads that have such a kernel. All of torch's own exist once torch has been imported."""
    return frozenset().union(*map(torch._C._dispatch_get_registrations_for_dispatch_key, _COUNTING))


def _has_counting_kernel(whole: str) -> bool:
    try:
        return any(map(partial(torch._C._dispatch_has_kernel_for_dispatch_key, whole), _COUNTING))
    except RuntimeError:  # the dispatcher does not know the overload
        return False


#: Operators and overloads that increment no version counter, although their schemas and kernels promise otherwise.
_UNCOUNTED_NAMES = frozenset(
    (
        *(f"{namespace}::{name}" for namespace in ("aten", "prim", "inductor") for name in UNCOUNTED_OPERATORS),
        *(f"aten::{name}" for name in (*UNCOUNTED_OVERLOADS, *UNCOUNTED_STATISTICS)),
        *(f"aten::{name}" for name in UNCOUNTED_WRITERS),
        *(f"c10d::{name}_" for name in UNCOUNTED_COLLECTIVES),
        *(f"_c10d_functional::{name}" for name in _UNCOUNTED_FUNCTIONAL),
    )
)


def operators_have_builtins() -> bool:
    """True if the builtin of an operator can be found."""
    return holds(WRITERS, _has_builtins)


def _has_builtins() -> bool:
    operator = torch.ops.aten._unsafe_view
    if any(type(one._op) is not types.BuiltinFunctionType for one in (operator, operator.default)):
        return False
    _, overloads = torch._C._jit_get_operation("aten::_unsafe_view")
    found = torch._C._get_operation_overload("aten::_unsafe_view", "")
    counts = [_has_counting_kernel(name) for name in ("aten::add_.Tensor", "aten::chunk", "aten::_fused_sgd_")]
    return "" in overloads and len(found) == 3 and counts == [True, True, False] and "aten::add_.Tensor" in _counting()
