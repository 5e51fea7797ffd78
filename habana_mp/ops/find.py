"""Finds an operation by its name among torch's own objects: builtins, Python functions, operators.

In ``ops``, only this file contains private names and paths of torch.
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

# ---- names in torch ------------------------------------------------------------------------------------------------

#: The builtin behind ``tensor[key] = value``; it follows the in-place rule.
ASSIGNMENT = "__setitem__"

#: The builtin behind ``tensor[key]``.
SUBSCRIPT = "__getitem__"

#: The prefix of the qualified names of torch's own operators.
ATEN = "aten::"

#: The module of torch that defines the operators of the namespace `torch_nn`.
_DEFINES_TORCH_NN = "torch.nn.modules.linear_cross_entropy"

#: Methods of Tensor that give other code access to its memory, or write without incrementing the version counter.
HANDS_OUT_MEMORY = (
    *("untyped_storage", "numpy", "data_ptr", "const_data_ptr", "apply_", "map_", "map2_", "set_"),
    *("resize_", "resize_as_"),
)

#: Methods of Tensor whose results share its memory but not its version counter. Lists may name them.
UNCOUNTED_METHODS = ("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_lazy_clone")

#: Functions that write into their tensors without incrementing the version counters.
UNCOUNTED_WRITERS = (
    *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    *("_amp_foreach_non_finite_check_and_unscale_", "resize_as_", "set_data"),
)

#: Operators that do one of three things without incrementing a version counter, although their schemas or torch's
#: kernels promise otherwise: they write into an argument, they return a tensor that shares an argument's memory but not
#: its version counter, or they change how a tensor is stored. Functions with these names do the same.
#: `tests/weights/test_every_operator.py` finds further ones.
UNCOUNTED_OPERATORS = (
    *("set", "set_", "set_data", "data", "resize_", "kron", "_lazy_clone", "_unsafe_view", "_reinterpret_tensor"),
    *("unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "_alloc_from_pool", "resize_storage_bytes_"),
    *("_cummax_helper", "_cummin_helper", "rrelu_with_noise", "rrelu_with_noise_"),
    *("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"),
    # The values of their results share memory with an argument.
    *("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor", "sparse_bsr_tensor", "sparse_bsc_tensor"),
    *("sparse_compressed_tensor", "_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims_and_tensors"),
    *("_sparse_compressed_tensor_unsafe", "_sparse_csr_tensor_unsafe", "_sparse_csc_tensor_unsafe"),
    *("_sparse_bsr_tensor_unsafe", "_sparse_bsc_tensor_unsafe", "_sparse_compressed_tensor_with_dims"),
    *("_gather_sparse_backward",),
)

#: Overloads that, in inference mode, return a tensor that shares the memory but not the version.
UNCOUNTED_OVERLOADS = ("view.dtype",)

#: Operators that write statistics without incrementing the version counters. Functions with these names are called too
#: often to be watched.
UNCOUNTED_STATISTICS = (
    *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"),
    *("_native_batch_norm_legit", "_batch_norm_with_update", "batch_norm_update_stats", "instance_norm"),
    *("batch_norm_gather_stats", "batch_norm_gather_stats_with_counts", "_native_batch_norm_legit_functional"),
)

#: Functions and methods among torch's operations that compute nothing, that are the casts themselves, or are watched.
NO_OPERATION = frozenset(
    (
        *("assert_int_or_pair", "boolean_dispatch", "handle_torch_function", "has_torch_function_variadic"),
        *("bfloat16", "bool", "byte", "cdouble", "cfloat", "char", "double", "float", "half", "int", "long", "short"),
        *("to", "type", "type_as", "cpu", "cuda", "ipu", "mtia", "xpu", "item", "new", "new_tensor", "tolist"),
        *("dim", "ndimension", "nelement", "numel", "size", "stride", "retain_grad"),
        *("__bool__", "__complex__", "__float__", "__index__", "__int__", "__len__"),
        *("_cummax_helper", "_cummin_helper", "_fix_weakref", "_is_view", "_use_count", "_view_func"),
        *("_view_func_unsafe", "_parse_to"),
        *(*HANDS_OUT_MEMORY, *UNCOUNTED_WRITERS, "_lazy_clone"),
    )
)

# ---- the search ----------------------------------------------------------------------------------------------------


class Builtin(NamedTuple):
    """One of torch's own objects, and its path in torch."""

    place: str
    object: Any
    shown: Any = None
    """The object that the log shows instead, if any."""


class CachedByName(Generic[_T]):
    """Caches a function of a name. Results for operators (``namespace::name``) are not cached: a library that is
    imported later may define the operator, or add an overload."""

    def __init__(self, function: Callable[[str], _T]) -> None:
        self._function = function
        self._cached = cache(function)
        update_wrapper(self, function)

    def __call__(self, name: str) -> _T:
        return self._function(name) if "::" in name else self._cached(name)

    def cache_clear(self) -> None:
        self._cached.cache_clear()


def namespaces() -> Iterator[tuple[str, Any]]:
    """Yields the namespaces of torch that hold builtin functions, with their paths."""
    c: Any = torch._C
    yield "torch", c._VariableFunctions
    for attribute in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested"):
        namespace = getattr(c, attribute, None)
        if namespace is not None:
            yield f"torch._C.{attribute}", namespace


@CachedByName
def builtins_named(name: str) -> tuple[Builtin, ...]:
    """Returns all builtin functions and Tensor methods with this name."""
    found: list[Builtin] = []
    if name.removeprefix(ATEN) in NO_OPERATION:
        return ()
    if "::" in name:
        return tuple(_of_operator(name))
    is_special_method = name.startswith("__") and name.endswith("__")
    # Those of a namespace are methods of any Python object, not operations.
    for place, namespace in () if is_special_method else namespaces():
        candidate = getattr(namespace, name, None)
        if isinstance(candidate, types.BuiltinFunctionType) and _core.can_cover(candidate):
            found.append(Builtin(f"{place}.{name}", candidate))
    return (*found, *_methods(name))


def _methods(*names: str) -> Iterator[Builtin]:
    for name in names:
        method = torch._C.TensorBase.__dict__.get(name)
        can_cover = isinstance(method, types.MethodDescriptorType) and _core.can_cover(method)
        if can_cover or name in (ASSIGNMENT, SUBSCRIPT):
            yield Builtin(f"Tensor.{name}", method)


def makers_of_indexes() -> Iterator[Builtin]:
    """Yields the methods that turn a tensor into an index. For lists they are not operations."""
    return _methods("int", "long")


def _operator(name: str) -> Any:
    """Returns the operator of torch.ops with the name ``namespace::name``, or None."""
    if name.startswith("torch_nn::") and importlib.util.find_spec(_DEFINES_TORCH_NN):
        importlib.import_module(_DEFINES_TORCH_NN)
    if not torch._C._jit_get_schemas_for_operator(name):
        return None
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)


def schemas(name: str) -> list[Any]:
    """Returns the schemas of an operator's overloads; an empty list if there is no such operator."""
    operator = _operator(name)
    return [] if operator is None else [getattr(operator, overload)._schema for overload in operator.overloads()]


def _of_operator(name: str) -> Iterator[Builtin]:
    """Yields the builtins behind ``torch.ops.namespace.name`` and its overloads."""
    operator = _operator(name)
    if operator is None:
        return
    place = f"torch.ops.{name.replace('::', '.')}"
    yield Builtin(place, operator._op, operator)
    # Only torch itself calls the overloads of ATen operators.
    for overload_name in () if name.startswith(ATEN) else operator.overloads():
        overload = getattr(operator, overload_name)
        yield Builtin(f"{place}.{overload_name}", overload._op, overload)
        # torch 2.15 has a shorter handle for operators written in Python, and sometimes calls that instead.
        dispatched = getattr(overload, "_cpp_dispatch_handle", overload._op)
        if dispatched is not overload._op:
            yield Builtin(f"{place}.{overload_name}", dispatched, overload)


@CachedByName
def composite_named(name: str) -> Builtin | None:
    """Returns the Python function of torch with that name, for an operation without a builtin, or None."""
    if name == "__rtruediv__":
        return Builtin("Tensor.__rdiv__", torch.Tensor.__rdiv__)  # torch's __rtruediv__ is __rdiv__
    # A private function is a part of an operation, or not an operation at all.
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
    """Returns ``pow`` for ``pow.Tensor_Scalar``: an overload has no function of its own in Python."""
    head, dot, _ = name.partition(".")
    return head if dot and head else name


def has_overload(name: str) -> bool:
    """True if the overload in this name exists, or if the name has none."""
    base = without_overload(name)
    if base == name:
        return "." not in name
    operator = _operator(base if "::" in base else ATEN + base)
    return operator is not None and name[len(base) + 1 :] in operator.overloads()


def exists(name: str) -> bool:
    """True if this torch has an operation of that name."""
    return bool(builtins_named(name)) or composite_named(name) is not None


def operators_named(name: str) -> list[str]:
    """Returns the operators of this name in all namespaces of torch.ops, with their namespaces."""
    return sorted(one for one in torch._C._dispatch_get_all_op_names() if one.partition("::")[2] == name)


def public_names() -> Iterator[str]:
    """Yields the names of torch's public builtin functions."""
    for _, namespace in namespaces():
        for name in dir(namespace):
            if not name.startswith("_") and isinstance(getattr(namespace, name), types.BuiltinFunctionType):
                yield name


def _builtins_of_methods() -> Iterator[Any]:
    """Yields the builtins of methods that call an operator without its kernels that increment the version counter, and
    of methods that run a script, in which `.data` and `set_` cannot be watched."""
    methods = (
        ("_DispatchOperatorHandle", "redispatch_boxed"),
        ("ScriptFunction", "__call__"),
        ("ScriptMethod", "__call__"),
    )
    for kind, name in methods:
        method = getattr(getattr(getattr(torch._C, kind, None), name, None), "__func__", None)
        if type(method) is types.BuiltinFunctionType:
            yield method


#: Found at import, because torch's test helpers later replace some of these methods with Python functions.
METHODS_OF_C = tuple(_builtins_of_methods())
