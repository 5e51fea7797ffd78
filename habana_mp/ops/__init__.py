"""The operations: the torch functions that a list name stands for, and how each may be treated.

Each operation with special properties is declared by one row (:class:`~habana_mp.ops.operation.Operation`) in the files
of this package, by theme. Most list names are the name of a builtin and need no row. This file holds the functions that
other modules call; :mod:`habana_mp.policy.rules` makes rules from their results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

from habana_mp.ops import (
    convolutions,
    find,
    indexing,
    linear_algebra,
    losses,
    normalization,
    pointwise,
    pooling,
    products,
    quantization,
    random,
    recurrent,
    reductions,
    shapes,
    written,
)
from habana_mp.ops.find import ATEN, CachedByName, builtins_named, exists, schemas
from habana_mp.ops.operation import FIRST_INPUT, IN_PLACE, NO_KERNEL, WIDEST, Castable, Operation

#: All declared rows.
ROWS: tuple[Operation, ...] = (
    *(*pointwise.ROWS, *reductions.ROWS, *products.ROWS, *convolutions.ROWS, *recurrent.ROWS, *normalization.ROWS),
    *(*losses.ROWS, *pooling.ROWS, *indexing.ROWS, *shapes.ROWS),
    *(*linear_algebra.ROWS, *random.ROWS, *quantization.ROWS),
)

#: List names that are accepted although this torch has no such operation, and why.
EXPLAINED: dict[str, str] = {
    "embedding_bag_sum_fwd": "a kernel of the HPU for DLRM, not an operation of torch",
    "embedding_bag_sum_bwd": "a kernel of the HPU for DLRM, not an operation of torch",
}

#: The row of an operation that has none of its own.
_NOTHING_PECULIAR = Operation("")

_by_name: dict[str, Operation] = {}
_by_spelling: dict[str, list[str]] = {}


def answer_from(rows: Iterable[Operation]) -> None:
    """Builds the lookup tables from these rows: from all of :data:`ROWS`, and possibly from more."""
    by_name: dict[str, Operation] = {}
    by_spelling: dict[str, list[str]] = {}
    for row in rows:
        for name in row.names.split():
            if name in by_name:
                raise ValueError(f"there are two rows for `{name}`")
            by_name[name] = row
            for spelling in row.spellings.split():
                by_spelling.setdefault(spelling, []).append(name)
    _by_name.clear()
    _by_name.update(by_name)
    _by_spelling.clear()
    _by_spelling.update(by_spelling)
    for question in (arguments_of, _meaning, gives_view, computes, names_with_rules, suggestions):
        question.cache_clear()


# ---- rows ----------------------------------------------------------------------------------------------------------


def rows() -> Mapping[str, Operation]:
    """Returns the rows by the names of their operations."""
    return _by_name


def is_elementwise(operation: str) -> bool:
    """True if it computes each value of its result independently."""
    return operation in pointwise.NAMES


def row_of(operation: str) -> Operation:
    """Returns the row of an operation, or an empty row if it has none."""
    return _by_name.get(operation, _NOTHING_PECULIAR)


def function_of(operator: str) -> str:
    """Returns the function whose name in lists stands for an operator too: ``mul`` for ``__mul__``. Any other name is
    returned unchanged."""
    return next((name for name, row in _by_name.items() if operator in row.family.split()), operator)


def saturates(operation: str, precision: str = "") -> Literal["", "numbers", "all"]:
    """Returns what rule 9 clamps to the range of the lower precision: nothing, Python numbers ("numbers"), or also
    tensors without dimensions ("all"). ``precision`` is that of the list which holds the operation."""
    said = row_of(operation).saturates
    if said == "numbers in bf16":
        return "numbers" if precision == "bf16" else ""
    return said


def parts_of(whole: str) -> tuple[str, ...]:
    """Returns the operations of this torch that decide how exact ``whole`` is."""
    return tuple(one for one in row_of(whole).parts.split() if exists(one))


# ---- meaning of a list name ----------------------------------------------------------------------------------------


class Resolved(NamedTuple):
    """The operations that a list name stands for, each with builtins: those it names, and those of their families."""

    exact: tuple[str, ...]
    family: tuple[str, ...] = ()


def resolve(name: str) -> Resolved | None:
    """Returns what a list name stands for in this torch, or None if it stands for nothing."""
    return _meaning(plain_name(name))


def plain_name(name: str) -> str:
    """Returns the list name for a name from code: ``softmax`` for ``F.softmax``, ``linear`` for ``nn.Linear``. A name
    that lists can use is returned unchanged."""
    if _meaning(name) is not None:
        return name
    plain = written.plain_names(name)
    return next((one for one in plain if _meaning(one) is not None), plain[0] if plain else name)


@CachedByName
def _meaning(name: str) -> Resolved | None:
    if not find.has_overload(name) or name == find.SUBSCRIPT:
        return None
    if name.startswith(ATEN):
        plain = _meaning(name.removeprefix(ATEN))
        if plain is not None:
            return plain
    base = find.without_overload(name)
    exact = [one for one in _called(base) if exists(one)]
    if not exact:
        return None
    family = [one for one in row_of(base).family.split() if exists(one) and one not in exact]
    return Resolved(tuple(exact), tuple(family))


def _called(name: str) -> list[str]:
    """Returns the operations with this name in lists. If the name is a spelling of other operations, it counts as an
    operation of its own only if it has a row."""
    if name not in _by_spelling:
        return [name]
    return [*([name] if name in _by_name else ()), *_by_spelling[name]]


def spellings() -> Iterable[str]:
    """Returns the alternative names that lists may use for operations."""
    return _by_spelling.keys()


@cache
def suggestions() -> tuple[str, ...]:
    """Returns all names that a list may hold, for "did you mean"."""
    names = {*_by_spelling, *names_with_rules(), *EXPLAINED, *find.public_names()}
    names.update(name for name, row in rows().items() if row.family or row.o2 == "float32")
    return tuple(sorted(names))


# ---- properties of an operation ------------------------------------------------------------------------------------


def has_kernel(operation: str) -> bool:
    """True unless the lower precision has no kernel for it."""
    return row_of(operation).unlisted != NO_KERNEL


def can_have_float32_result(operation: str) -> bool:
    """True for a product of matrices, or a convolution: a list may lower its operands and not its result."""
    row = row_of(operation)
    is_product = row.is_product or row.made_of_products or operation == "bilinear"
    return is_product and row.product_form != "" and not is_in_place(operation)


def operands_of(operation: str) -> Castable | None:
    """Returns which arguments of a product may be cast if its result is in float32: not what is added."""
    added = row_of(operation).added
    if added is None:
        return arguments_of(operation)
    keyword, position = added
    return Castable(tuple(one for one in range(4) if one != position), "it is added", kept_keywords=(keyword,))


@CachedByName
def arguments_of(operation: str) -> Castable | None:
    """Returns which arguments of an operation may be cast, or None for all of them."""
    said = row_of(operation).castable
    if said is not None or "::" not in operation:
        return said
    overloads = schemas(operation)
    if not overloads:
        return None
    arguments = [(place, one) for schema in overloads for place, one in enumerate(schema.arguments)]
    written = [
        (place, one) for place, one in arguments if _is_written(one) and not (place == 0 and is_in_place(operation))
    ]
    # A `dtype` argument must stay visible to the rules. Any other argument without tensors in all overloads is ignored.
    read = [(place, one) for place, one in arguments if "Tensor" in str(one.type) or one.name == "dtype"]
    positions = {place for place, _ in read} - {place for place, _ in written}
    keywords = {one.name for _, one in read} - {one.name for _, one in written}
    kept = {one.name for _, one in arguments} - keywords
    if not kept and len(positions) == max(len(schema.arguments) for schema in overloads):
        return None
    why = "the others hold no tensor, or are written into"
    return Castable(tuple(sorted(positions)), why, kept_keywords=tuple(sorted(kept)))


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def is_in_place(operation: str) -> bool:
    """True if the operation writes into its first input."""
    if "::" in operation:
        return any(schema.arguments and _is_written(schema.arguments[0]) for schema in schemas(operation))
    is_named_so = operation.endswith("_") and not operation.endswith("__")
    return is_named_so or row_of(operation).unlisted == IN_PLACE


def target_keywords(operation: str) -> tuple[str, ...]:
    """Returns the keywords of the first input: ``input`` in all torch functions."""
    overloads = schemas(operation) if "::" in operation else []
    return tuple(sorted({schema.arguments[0].name for schema in overloads if schema.arguments})) or ("input",)


def may_be_repeated(operation: str) -> bool:
    """True if a call that failed may be made again with other casts. False if it may have written into an argument
    before it failed. torch's own updates of statistics check dtypes first, so they may be repeated."""
    if is_in_place(operation):
        return False
    overloads = schemas(operation) if "::" in operation and row_of(operation).castable is None else []
    return not any(_is_written(one) and not one.is_out for schema in overloads for one in schema.arguments)


@CachedByName
def gives_view(operation: str) -> bool:
    """True if the result may be a view of an input's memory. A write into such a view must reach that memory; a write
    into a view of a cast would be lost."""
    overloads = schemas(operation if "::" in operation else ATEN + operation)
    results = [one.alias_info for schema in overloads for one in schema.returns]
    return row_of(operation).gives_view or any(one is not None and not one.is_write for one in results)


@cache
def computes(operation: str) -> bool:
    """True if the operation computes something. Some torch operations only describe a tensor (``storage_offset``), and
    would describe the cast instead. A custom operator that returns nothing counts: it is called for its effect."""
    if "::" in operation or row_of(operation).unlisted == WIDEST or is_in_place(operation):
        return True
    overloads = schemas(ATEN + operation)
    return not overloads or any("Tensor" in str(one.type) for schema in overloads for one in schema.returns)


def most_tensors(operation: str) -> int:
    """Returns the largest number of tensor arguments in an overload of the operation, or 2 if it is unknown."""
    overloads = schemas(operation if "::" in operation else ATEN + operation)
    counts = [sum("Tensor" in str(one.type) for one in schema.arguments if one.name != "out") for schema in overloads]
    return max(counts, default=2)


@cache
def names_with_rules() -> frozenset[str]:
    """Returns all operation names that have a rule even if no list names them."""
    names = {name for name, row in rows().items() if row.unlisted or row.saturates or row.sums}
    # The in-place form of an operation with a rule for its inputs has that rule too.
    names |= {
        f"{name}_" for name, row in rows().items() if row.unlisted in (WIDEST, FIRST_INPUT) or row.saturates == "all"
    }
    return frozenset(filter(builtins_named, names))


answer_from(ROWS)
