"""Finding an operation by its name among torch's own objects: builtins, Python functions, operators.

What is known here of torch's private places and names is known nowhere else in ``ops``.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable, Iterator
from functools import cache, update_wrapper
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F

from habana_mp import _core

_T = TypeVar("_T")

# ---- names that torch has ------------------------------------------------------------------------------------------

#: The builtin that holds ``tensor[key] = value``; it follows the in-place rule.
ASSIGNMENT = "__setitem__"

#: The builtin that holds ``tensor[key]``.
SUBSCRIPT = "__getitem__"

#: What the qualified names of torch's own operators begin with.
ATEN = "aten::"

#: Operations that torch writes in Python under another name, and where.
_OTHERWISE_NAMED: dict[str, tuple[Any, str]] = {"__rtruediv__": (torch.Tensor, "__rdiv__")}

#: Operators of torch's own that are there only once a module of torch has been imported.
_DEFINED_BY = dict.fromkeys(
    (
        "torch_nn::_linear_cross_entropy_batch_chunked",
        "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
    ),
    "torch.nn.modules.linear_cross_entropy",
)

#: Methods of Tensor by which its memory gets into other hands, or that write without counting the version up.
HANDS_OUT_MEMORY = (
    *("untyped_storage", "numpy", "data_ptr", "const_data_ptr", "apply_", "map_", "map2_", "set_"),
    *("resize_", "resize_as_"),
)

#: Methods of Tensor that make tensors which share its memory and not its version. Lists may name them.
UNCOUNTED_METHODS = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_lazy_clone")

#: Functions that write into their tensors without counting the versions up.
SILENT_WRITERS = (
    *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    *("_amp_foreach_non_finite_check_and_unscale_", "resize_as_", "set_data"),
)

#: Operators that do one of three things without counting a version up, although their schemas or torch's kernels
#: promise otherwise: they write into an argument, they make a tensor that shares an argument's memory and not its
#: version, or they change how a tensor is stored. Functions of these names do the same.
#: `tests/weights/test_every_operator.py` finds further ones.
UNCOUNTED_OPERATORS = (
    *("set", "set_", "set_data", "data", "resize_", "kron", "_lazy_clone", "_unsafe_view", "_reinterpret_tensor"),
    *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_alloc_from_pool", "resize_storage_bytes_"),
    *("_cummax_helper", "_cummin_helper", "rrelu_with_noise", "rrelu_with_noise_"),
    *("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"),
    # The values of what they make share memory with an argument.
    *("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    *("sparse_compressed_tensor", "_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims_and_tensors"),
    *("_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_sparse_csc_tensor_unsafe"),
    *("_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe", "_sparse_compressed_tensor_with_dims"),
    *("_gather_sparse_backward",),
)

#: Overloads that make such a tensor in inference mode.
UNCOUNTED_OVERLOADS = ("view.dtype",)

#: Operators that write statistics without counting. Functions of these names are called too often to be watched.
UNCOUNTED_STATISTICS = (
    *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"),
    *("_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_update_stats", "instance_norm"),
    *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "_native_batch_norm_legit_functional"),
)

#: Functions and methods that stand among torch's operations and are none, are the casts themselves, or are watched.
NO_OPERATION = frozenset(
    (
        *("assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function_variadic"),
        *("bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "double", "float", "half", "int", "long", "short"),
        *("to", "type", "type_as", "cpu", "cuda", "ipu", "mtia", "xpu", "item", "new", "new_tensor", "tolist"),
        *("dim", "ndimension", "nelement", "numel", "size", "stride", "retain_grad"),
        *("__bool__", "__complex__", "__float__", "__index__", "__int__", "__len__"),
        *("_cummax_helper", "_cummin_helper", "_fix_weakref", "_is_view", "_use_count", "_view_func"),
        *("_view_func_unsafe", "_parse_to"),
        *(*HANDS_OUT_MEMORY, *SILENT_WRITERS, "_lazy_clone"),
    )
)

# ---- the search ----------------------------------------------------------------------------------------------------


class Builtin(NamedTuple):
    """One of torch's own objects: where it is reached, and the object."""

    place: str
    object: Any
    shown: Any = None
    """What the log shows for it, where that is another object."""


class CachedByName(Generic[_T]):
    """A function of a name. What it says of an operator is not kept: a library that is imported later may define one,
    or give it an overload."""

    def __init__(self, function: Callable[[str], _T]) -> None:
        self._function = function
        self._cached = cache(function)
        update_wrapper(self, function)

    def __call__(self, name: str) -> _T:
        return self._function(name) if "::" in name else self._cached(name)

    def cache_clear(self) -> None:
        self._cached.cache_clear()


def namespaces() -> Iterator[tuple[str, Any]]:
    """The places of torch that hold builtin functions."""
    c: Any = torch._C
    yield "torch", c._VariableFunctions
    for attribute in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested"):
        namespace = getattr(c, attribute, None)
        if namespace is not None:
            yield f"torch._C.{attribute}", namespace


@CachedByName
def builtins_named(name: str) -> tuple[Builtin, ...]:
    """Every builtin function and Tensor method of that name."""
    found: list[Builtin] = []
    if name.removeprefix(ATEN) in NO_OPERATION:
        return ()
    if "::" in name:
        return tuple(_of_operator(name))
    is_operator = name.startswith("__") and name.endswith("__")
    # A namespace's own operators are Python's, not operations.
    for place, namespace in () if is_operator else namespaces():
        candidate = getattr(namespace, name, None)
        if isinstance(candidate, types.BuiltinFunctionType) and _core.can_cover(candidate):
            found.append(Builtin(f"{place}.{name}", candidate))
    method = torch._C.TensorBase.__dict__.get(name)
    if name in (ASSIGNMENT, SUBSCRIPT) or (isinstance(method, types.MethodDescriptorType) and _core.can_cover(method)):
        found.append(Builtin(f"Tensor.{name}", method))
    return tuple(found)


def makers_of_indexes() -> Iterator[Builtin]:
    """The methods that make an index of a tensor. For lists they are no operations."""
    for name in ("int", "long"):
        method = torch._C.TensorBase.__dict__.get(name)
        if isinstance(method, types.MethodDescriptorType) and _core.can_cover(method):
            yield Builtin(f"Tensor.{name}", method)


def _operator(name: str) -> Any:
    """The operator of torch.ops that is called ``namespace::name``; None where there is none."""
    if name in _DEFINED_BY and importlib.util.find_spec(_DEFINED_BY[name]):
        importlib.import_module(_DEFINED_BY[name])
    if not torch._C._jit_get_schemas_for_operator(name):
        return None
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)


def schemas(name: str) -> list[Any]:
    """What the overloads of such an operator take; nothing where there is none."""
    operator = _operator(name)
    return [] if operator is None else [getattr(operator, overload)._schema for overload in operator.overloads()]


def _of_operator(name: str) -> Iterator[Builtin]:
    """The builtins behind ``torch.ops.namespace.name`` and its overloads."""
    operator = _operator(name)
    if operator is None:
        return
    place = f"torch.ops.{name.replace('::', '.')}"
    yield Builtin(place, operator._op, operator)
    # ATen's overloads are torch's own way from one layer to the next; nobody else calls them.
    for overload_name in () if name.startswith(ATEN) else operator.overloads():
        overload = getattr(operator, overload_name)
        yield Builtin(f"{place}.{overload_name}", overload._op, overload)
        # Where torch 2.15 has something shorter for an operator written in Python, this is called at times.
        dispatched = getattr(overload, "_cpp_dispatch_handle", overload._op)
        if dispatched is not overload._op:
            yield Builtin(f"{place}.{overload_name}", dispatched, overload)


@CachedByName
def composite_named(name: str) -> Builtin | None:
    """The Python function of torch of that name, where no builtin stands for it."""
    if name in _OTHERWISE_NAMED:
        owner, attribute = _OTHERWISE_NAMED[name]
        return Builtin(f"Tensor.{attribute}", getattr(owner, attribute))
    # Private functions are parts of operations, or no operations.
    if name in NO_OPERATION or name.startswith("_"):
        return None
    for place, namespace, names in (
        ("torch.nn.functional", F, vars(F)),
        ("torch", torch.functional, torch.functional.__all__),
    ):
        function = getattr(namespace, name, None) if name in names else None
        if isinstance(function, types.FunctionType) and function.__module__.startswith("torch"):
            return Builtin(f"{place}.{name}", function)
    return None


def without_overload(name: str) -> str:
    """``pow.Tensor_Scalar`` is ``pow``: an overload has no function of its own in Python."""
    head, dot, _ = name.partition(".")
    return head if dot and head else name


def has_overload(name: str) -> bool:
    """Is there such an overload of ATen's, where the name has one?"""
    base = without_overload(name)
    if base == name:
        return "." not in name
    operator = _operator(base if "::" in base else ATEN + base)
    return operator is not None and name[len(base) + 1 :] in operator.overloads()


def exists(name: str) -> bool:
    """Has this torch an operation of that name?"""
    return bool(builtins_named(name)) or composite_named(name) is not None


def public_names() -> Iterator[str]:
    """The names of torch's builtin functions, but for private ones."""
    for _, namespace in namespaces():
        for name in dir(namespace):
            if not name.startswith("_") and isinstance(getattr(namespace, name), types.BuiltinFunctionType):
                yield name


def _builtins_of_methods() -> Iterator[Any]:
    """Yields the builtins of methods that call an operator without those of its kernels that count, and that run a
    script, in which `.data` and `set_` cannot be watched."""
    methods = (
        ("_DispatchOperatorHandle", "redispatch_boxed"),
        ("ScriptFunction", "__call__"),
        ("ScriptMethod", "__call__"),
    )
    for kind, name in methods:
        method = getattr(getattr(getattr(torch._C, kind, None), name, None), "__func__", None)
        if type(method) is types.BuiltinFunctionType:
            yield method


#: Found at import: torch's own helpers for tests put Python functions around some of these methods later.
METHODS_OF_C = tuple(_builtins_of_methods())
