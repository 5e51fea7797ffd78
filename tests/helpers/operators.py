"""Calls of torch's operators, with arguments that are made from their schemas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

#: The ways to call each operator, and the reasons why some cannot be called. `helpers/search_operators.py` writes both
#: files.
FOLDER = Path(__file__).parents[1] / "weights"
WAYS, NOT_CALLED = FOLDER / "operators.txt", FOLDER / "operators_not_called.txt"

SHAPES = ((12, 12), (2, 4, 6, 6), (12,), (2, 12, 12), (2, 4, 4, 6, 6))

#: The kinds of the tensors other than the weight: floats, integers, truth values, numbers without dimensions, vectors
#: of the last or of the second dimension, integer vectors, or what their names suggest.
KINDS = ("g", "n", "f", "i", "1", "c", "b", "0", "v")

#: Each variant is one set of the values that are not tensors. Some variants use the defaults, and others pass all
#: values.
VARIANTS = (0, 1, 2, 3)

_INTEGERS = (
    *("ind", "offset", "target", "length", "label", "bin", "seq", "batch_sizes", "segment", "repeats", "counts"),
    *("perm", "pivots"),
)
_NUMBERS = (
    *("value", "scale", "zero_point", "lr", "momentum", "total_weight", "found_inf", "inv_scale", "growth_tracker"),
    *("min_val", "max_val", "start", "end", "fake_quant_on", "observer_on"),
)
_OF_CHANNELS = (
    *("bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var", "mean", "invstd", "rstd"),
    *("running_min", "running_max", "scales", "zero_points"),
)
_SIZES = (
    *("size", "shape", "sizes", "normalized_shape", "sym_size", "target_shape", "a", "self_size", "input_size"),
    *("input_sizes", "target_size", "view_size", "upsampled_size"),
)
_ZEROS = (
    *("dim", "dim0", "axis", "start", "storage_offset", "offset", "start_dim", "padding", "self_dim", "index"),
    *("output_padding", "rank", "root_rank", "cur_dim"),
)
_WORDS = {
    **{"reduce": "sum", "reduction": "mean", "mode": "constant", "equation": "ij,jk->ik", "indexing": "ij"},
    **{"side": "left", "algorithm": "", "padding": "valid", "reduce_op": "sum", "binary_attr": "add"},
    **{"binary_op_name": "add", "binary_post_op": "add"},
}


class Way(NamedTuple):
    """The way in which the arguments of a call are made."""

    shape: int
    kinds: str
    variant: int

    def __str__(self) -> str:
        return f"{self.shape}{self.kinds}{self.variant}"


def way_of(text: str) -> Way:
    return Way(int(text[0]), text[1], int(text[2]))


def all_ways() -> Iterator[Way]:
    for shape, kinds, variant in itertools.product(range(len(SHAPES)), KINDS, VARIANTS):
        yield Way(shape, kinds, variant)


def schemas() -> list[Any]:
    """Returns the schemas of all operators of ``torch.ops``, sorted by name."""
    found = {name_of(one): one for one in torch._C._jit_get_all_schemas()}
    return [found[name] for name in sorted(found)]


def name_of(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def operator_of(schema: Any) -> Any:
    namespace, _, operator = schema.name.partition("::")
    return getattr(getattr(getattr(torch.ops, namespace), operator), schema.overload_name or "default")


def _is_list_of_tensors(argument: Any) -> bool:
    return str(argument.real_type) in ("List[Tensor]", "Optional[List[Tensor]]", "List[Optional[Tensor]]")


def _is_tensor(argument: Any) -> bool:
    return str(argument.real_type) in ("Tensor", "Optional[Tensor]")


def tensor_arguments(schema: Any) -> list[int]:
    """Returns the positions of the arguments that are tensors, or lists of tensors."""
    return [i for i, one in enumerate(schema.arguments) if _is_tensor(one) or _is_list_of_tensors(one)]


def arguments(schema: Any, position: int, way: Way, subject: torch.Tensor) -> tuple[list[Any], dict[str, Any]]:
    """Makes the arguments of a call, with ``subject`` at this position.

    Raises:
        NotImplementedError: an argument has a type for which no value can be made.
    """
    shape = SHAPES[way.shape]
    positional: list[Any] = []
    by_keyword: dict[str, Any] = {}
    for i, one in enumerate(schema.arguments):
        value: Any
        if i == position:
            value = [subject, _floats(shape)] if _is_list_of_tensors(one) else subject
        elif _is_list_of_tensors(one):
            kind = way.kinds if way.kinds not in "gn" else _guess(one.name)
            value = [_tensor(kind, shape), _tensor(kind, shape)]
        elif _is_tensor(one):
            value = _tensor_for(one, way, shape)
        else:
            value = _value_for(one, way.variant, shape)
        if one.kwarg_only:
            by_keyword[one.name] = value
        else:
            positional.append(value)
    return positional, by_keyword


def subject_of(way: Way) -> torch.nn.Parameter:
    """Returns a weight of the way's shape; the seed determines its values."""
    return torch.nn.Parameter(_floats(SHAPES[way.shape]), requires_grad=False)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def _floats(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(shape) + 0.5


def _tensor(kind: str, shape: tuple[int, ...]) -> torch.Tensor:
    channels = shape[1:2] if len(shape) > 2 else shape[-1:]
    made = {
        "f": lambda: _floats(shape),
        "i": lambda: torch.ones(shape, dtype=torch.int64),
        "b": lambda: torch.ones(shape, dtype=torch.bool),
        "0": lambda: torch.tensor(1.0),
        "1": lambda: _floats(shape[-1:]),
        "c": lambda: _floats(channels),
        "v": lambda: torch.ones(shape[-1:], dtype=torch.int64),
    }
    return made[kind]()


def _guess(name: str) -> str:
    if "mask" in name and "pack" not in name:
        return "b"
    return "i" if any(one in name for one in _INTEGERS) else "f"


def _tensor_for(argument: Any, way: Way, shape: tuple[int, ...]) -> torch.Tensor | None:
    name = argument.name
    if argument.is_out:
        return _floats(shape)
    if str(argument.real_type).startswith("Optional") and way.variant % 2 == 0:
        return None
    if way.kinds not in "gn":
        return _tensor(way.kinds, shape)
    if way.kinds == "n":
        if name in _NUMBERS:
            return torch.ones(1, dtype=torch.int64) if name.endswith("_on") else torch.ones(1)
        if name in _OF_CHANNELS:
            return _tensor("c", shape)
        if "weight" in name and len(shape) > 2:
            return _floats((shape[1], shape[1], *([2] * (len(shape) - 2))))
        if name == "grid" and len(shape) > 2:
            return torch.rand((shape[0], *shape[2:], len(shape) - 2))
    return _tensor(_guess(name), shape)


# ---- other values ----------------------------------------------------------------------------------------------------


def _value_for(argument: Any, variant: int, shape: tuple[int, ...]) -> Any:
    kind, name = str(argument.real_type), argument.name
    if argument.has_default_value() and variant % 2 == 0:
        return argument.default_value
    if kind.startswith("Optional"):
        if variant % 2 == 0:
            return None
        kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind in ("List[int]", "List[SymInt]"):
        return _integers(argument, variant, shape)
    made = {
        "int": lambda: 0 if name in _ZEROS else 1 if variant < 2 else 2,
        "number": lambda: 1,
        "float": lambda: 0.5,
        "bool": lambda: variant >= 2,
        "str": lambda: _WORDS.get(name, "none" if variant < 2 else "sum"),
        "ScalarType": lambda: torch.float32,
        "Layout": lambda: torch.strided,
        "Device": lambda: torch.device("cpu"),
        "Generator": lambda: None,
        "Any": lambda: 1,
        "Storage": lambda: torch.rand(math.prod(shape)).untyped_storage(),
        "MemoryFormat": lambda: _memory_format(variant, shape),
        "List[float]": lambda: [1.0] * max(len(shape) - 2, 1),
        "List[bool]": lambda: [True] * (argument.N or 3),
        "List[number]": lambda: [1] * 2,
        "List[Optional[number]]": lambda: [None] * (argument.N or 2),
    }
    synonyms = {"SymInt": "int", "Scalar": "number", "List[Scalar]": "List[number]"}
    kind = synonyms.get(kind, kind)
    if kind not in made:
        raise NotImplementedError(f"takes a {kind}")
    return made[kind]()


def _memory_format(variant: int, shape: tuple[int, ...]) -> torch.memory_format:
    return torch.channels_last if len(shape) == 4 and variant == 1 else torch.contiguous_format


def _integers(argument: Any, variant: int, shape: tuple[int, ...]) -> list[int]:
    name = argument.name
    spatial = max(len(shape) - 2, 1)
    if argument.N and name not in ("size", "stride"):
        spatial = argument.N
    dimensions = list(range(len(shape)))
    if name in _SIZES or "limit" in name:
        return list(shape)
    if name in ("stride", "strides"):
        return list(torch.empty(shape, device="meta").stride()) if variant < 2 else [1] * spatial
    if name in ("dim", "dims", "axes", "axis", "dimension", "dimensions"):
        return [0] if variant < 2 else dimensions
    if name in ("broadcast_dimensions", "permutation"):
        return dimensions
    if "start" in name:
        return [0] * len(shape)
    if "kernel" in name:
        return [2] * spatial
    if "output_size" in name:
        return [3] * spatial
    if "pad" in name:
        return [0] * (spatial if variant < 2 else 2 * spatial)
    if "split" in name or name == "sections":
        return [shape[0] // 2] * 2
    return [1] * (spatial if variant < 2 else len(shape))
