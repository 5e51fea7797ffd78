"""From the names in lists to the operations that they stand for, and what can be wrong with a name."""

from __future__ import annotations

import difflib
from functools import cache

import torch

from habana_mp import ops
from habana_mp.common.errors import ListError, warn
from habana_mp.ops.find import NO_OPERATION, operators_named, without_overload
from habana_mp.ops.operation import IN_PLACE
from habana_mp.ops.written import module_named
from habana_mp.policy.lists import EVERY, Listed
from habana_mp.policy.precisions import FLOAT32_RESULT
from habana_mp.policy.presets import shipped_names


@cache
def operations_that_compute() -> frozenset[str]:
    """Returns the known floating-point operations."""
    # An operation with a rule for its inputs' dtypes is a floating-point operation. (In place, rule 3 holds anyway.)
    floating = {
        operation
        for operation, row in ops.rows().items()
        if row.o2 in ("lower", "float32") or (row.unlisted and row.unlisted != IN_PLACE)
    }
    for row in ops.rows().values():
        if row.o2 == "lower":
            floating.update(row.family.split())
    for name in shipped_names():
        resolved = ops.resolve(name)
        if resolved is not None:
            floating.update(resolved.exact + resolved.family)
    return frozenset(one for one in floating if ops.row_of(one).o2 != "input")


def check_result(listed: Listed, precision: str, resolved: ops.Resolved | None) -> None:
    """Raises ListError for a line with this precision that gives a float32 result to what cannot have it."""
    if not listed.float32_result:
        return
    if precision == "fp32" + FLOAT32_RESULT:
        raise ListError(
            f"{listed.where}: `{listed.line_text}` belongs into the list of the lower precision: there the operands of "
            "the product are lowered; in the float32 list its result is float32 anyway"
        )
    meant = () if resolved is None else (*resolved.exact, *resolved.family)
    if meant and not any(map(ops.can_have_float32_result, meant)):
        raise ListError(
            f"{listed.where}: `{listed.name}` cannot have{FLOAT32_RESULT}: only products of matrices and convolutions "
            "have a sum whose rounding can be left out (linear, matmul, addmm, bmm, einsum, conv2d, ...); write "
            f"`{listed.name}` into the float32 list"
        )


def operations_of(listed: Listed) -> ops.Resolved | None:
    """Returns the operations that a listed name stands for; None for a known name that has no effect here.

    Warns about a name without effect, unless a preset names an operation that this torch lacks: releases of torch
    differ in a few operations, and the user of the preset can do nothing about it."""
    if listed.problem:
        raise ListError(f"{listed.where}: {listed.problem}")
    resolved = ops.resolve(listed.name)
    if resolved is not None:
        meant = (*resolved.exact, *resolved.family)
        if listed.name not in shipped_names():
            if all(map(ops.gives_view, meant)):
                warn(
                    f"{listed.where}: `{listed.name}` has no effect: it gives a view, or its input itself, and what is "
                    "written into one of a cast would be lost (rule 6); list the operations that use it"
                )
            elif not any(map(ops.computes, meant)):
                warn(f"{listed.where}: `{listed.name}` has no effect: it tells of a tensor and computes nothing")
            elif all(map(_is_in_place_anyhow, meant)):
                warn(f"{listed.where}: `{listed.name}` has no effect: what it writes into keeps its precision (rule 3)")
            elif all(ops.most_tensors(one) == 0 for one in meant):
                warn(f"{listed.where}: `{listed.name}` has no effect: it takes no tensor that could be cast")
        return resolved
    if listed.shipped and listed.name not in ops.EXPLAINED:
        return None
    if listed.name in ops.EXPLAINED or listed.name in shipped_names():
        why = ops.EXPLAINED.get(listed.name, f"torch {torch.__version__} has no operation of that name")
        warn(f"{listed.where}: `{listed.name}` has no effect: {why}")
        return None
    if listed.name == EVERY:
        raise ListError(f"{listed.where}: `{EVERY}` needs a pattern of modules: `* @ **` means every module")
    plain = ops.plain_name(listed.name)
    if without_overload(plain.removeprefix("aten::")) in NO_OPERATION:
        raise ListError(f"{listed.where}: `{listed.name}` is no operation whose precision a list could decide")
    if module_named(listed.name) is not None:
        raise ListError(
            f"{listed.where}: `{listed.name}` is a module that calls no operation of its own; list the operations, or "
            "the modules, that compute inside of it"
        )
    if "::" in plain:
        raise ListError(
            f"{listed.where}: unknown operator `{listed.name}`; import the library that defines it before convert"
        )
    near = nearest(listed.name)
    hint = (
        f"did you mean `{near}`?"
        if near
        else (
            "for a function of your own see hmp.op_wrap, for an operator of a library import it first (`--import` of "
            "`habana-mp lists check`)"
        )
    )
    raise ListError(f"{listed.where}: unknown operation `{ascii(listed.name)[1:-1]}`; {hint}")


def _is_in_place_anyhow(operation: str) -> bool:
    """True if the operation keeps the precision of the tensor it writes into, and no list could cast another input."""
    has_rule = operation in ops.names_with_rules()
    return ops.is_in_place(operation) and (has_rule or ops.most_tensors(operation) == 1)


_PARTS_OF_PLACES = frozenset(("", "torch", "tensor", "nn", "functional", "f", "ops", "aten", "_c", "_nn", "default"))


def nearest(name: str) -> str | None:
    """Returns the name that may be meant. The given one may have a prefix that is wrong in torch: `torch.gelu`."""
    parts = [part for part in reversed(name.split(".")) if part.lower() not in _PARTS_OF_PLACES]
    parts = [*dict.fromkeys(("_".join(reversed(parts)), *parts))]
    for part in parts:
        for spelled in (part, part.lower()):
            for meant in (spelled, *operators_named(spelled)):
                if ops.resolve(meant) is not None:
                    return meant
    known = {one.lower(): one for one in ops.suggestions()}
    for part in parts:
        longer = [one for one in known if one.startswith(part.lower())] if len(part) > 2 else []
        near = longer or difflib.get_close_matches(part.lower(), known, n=1, cutoff=0.7)
        if near:
            return known[min(near, key=len)]
    return None
