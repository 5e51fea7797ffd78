"""From lists to rules: what to do with each torch function. All of this is decided before torch is changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch

from habana_mp import _core, ops
from habana_mp.common.errors import ListError, warn
from habana_mp.ops.find import NO_OPERATION, Builtin, without_overload
from habana_mp.ops.written import module_named
from habana_mp.policy.lists import Listed
from habana_mp.policy.presets import Preset, shipped_names
from habana_mp.policy.rows_in_graphs import in_rows

Action = Literal["none", "precision", "widest", "in_place", "first_input", "scalars", "refused"]

_NONE: frozenset[str] = frozenset()

#: The names of precisions in lists, logs and reports.
PRECISIONS: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

#: The names of dtypes that users may pass, in lower case.
_SPELLINGS = {
    **{"bf16": torch.bfloat16, "bfloat16": torch.bfloat16},
    **{"fp16": torch.float16, "float16": torch.float16, "half": torch.float16},
    **{"fp32": torch.float32, "float32": torch.float32, "float": torch.float32},
}


def dtype_meant(given: object) -> torch.dtype | None:
    """Returns the dtype for a dtype or one of its names; None for anything else."""
    if isinstance(given, str):
        return _SPELLINGS.get(given.lower().removeprefix("torch."))
    return given if isinstance(given, torch.dtype) else None


@dataclass(frozen=True)
class Ruling:
    """The rule for one operation, and its reason; the readable form of a rule of the core."""

    action: Action = "none"
    precision: str = ""
    saturate: Literal["", "numbers", "all"] = ""
    no_kernel: bool = False
    #: True if a list names only its parts, or only the operation that it is a part of.
    by_parts: bool = False
    #: True if it holds only for the matrix products of calls that compute any.
    products_only: bool = False
    #: True if it does not hold for products of three terms without a Parameter in the forward of a module: these
    #: rotate points.
    leaves_points: bool = False

    def rule(self, operation: str, *, caches_weights: bool = True) -> _core.Rule:
        """Returns the core's form, with the arguments that may be cast. ``caches_weights``: cache casts of weights."""
        row, key = ops.row_of(operation), (self, operation, caches_weights)
        known = _rules.get(key)
        if known is None or known[0] is not row:
            known = _rules[key] = row, self._made(operation, row, caches_weights)
        return known[1]

    def _made(self, operation: str, row: ops.Operation, caches_weights: bool) -> _core.Rule:
        # The other traits are columns of the row.
        computed = {
            "saturates": self.saturate != "",
            "saturates_tensors": self.saturate == "all",
            "is_elementwise": ops.is_elementwise(operation),
            "leaves_points": self.leaves_points,
            "products_inside": self.products_only and row.products_inside,
            "is_not_repeated": not ops.may_be_repeated(operation),
            "caches_weights": caches_weights and row.caches_weights,
        }
        conditions = {
            "makes_product": row.makes_product if self.products_only else None,
            "is_fused": row.is_fused,
            "wrong_in_bf16": row.wrong_in_bf16,
            "sums": row.sums,
            "in_rows": in_rows if row.wants_rows else None,
        }
        return _core.Rule(
            action=self.action,
            precision=self.precision,
            why="no_kernel" if self.no_kernel else "parts" if self.by_parts else "",
            traits=[name for name in _core.traits if (computed[name] if name in computed else getattr(row, name))],
            castable=_in_core(ops.arguments_of(operation)),
            target_keywords=ops.target_keywords(operation) if self.action == "in_place" else (),
            sparse_gradient=row.sparse_gradient,
            conditions={name: function for name, function in conditions.items() if function is not None},
            packs=row.packs if caches_weights else "",
            terms=row.terms,
        )


#: The rules that were made, each with the row that it was made from.
_rules: dict[tuple[Ruling, str, bool], tuple[ops.Operation, _core.Rule]] = {}


def _in_core(castable: ops.Castable | None) -> _core.Castable | None:
    if castable is None:
        return None
    return _core.Castable(
        positions=_mask(castable.positions),
        kept_keywords=castable.kept_keywords,
        raised_positions=_mask(castable.raised),
        raised_keywords=castable.raised_keywords,
        off_cpu_positions=_mask(castable.off_cpu),
        off_cpu_keywords=castable.off_cpu_keywords,
    )


def _mask(positions: tuple[int, ...]) -> int:
    return sum(1 << position for position in positions)


class Covered(NamedTuple):
    """A torch object that a policy covers, with its rules."""

    operation: str
    builtin: Builtin
    listed: Ruling
    unlisted: Ruling


@dataclass(frozen=True)
class Policy:
    """All rules of one configuration."""

    covered: tuple[Covered, ...] = ()
    composites: tuple[Covered, ...] = ()
    lower: str = "bf16"
    #: True if casts of weights are cached between calls, and the most bytes of them (None: half of the free memory).
    weight_cache: bool = True
    weight_cache_limit: int | None = None
    packed_weights: bool = True
    #: True if a call is left unchanged when it was measured to be faster that way.
    skip_slower: bool = False
    #: True if the memory of large casts, and memory at the heap's end, is kept for later casts.
    reuse_memory: bool = True
    #: The precision that a list gives an operation, and the place in that list, by operation.
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)

    def lowers_arithmetic(self) -> bool:
        """True if a list lowers an operation that computes each value of its result independently."""
        return any(
            one.listed.action == "precision" and one.listed.precision != "fp32" and ops.is_elementwise(one.operation)
            for one in (*self.covered, *self.composites)
        )


def ruling_without_list(operation: str) -> Ruling:
    """Returns what holds for an operation that no list names: rules 2 to 4, 8 and 9."""
    row, saturate = ops.row_of(operation), ops.saturates(operation)
    if ops.is_in_place(operation):
        return Ruling("in_place", saturate=saturate)
    if row.unlisted == ops.NO_KERNEL:
        return Ruling("precision", "fp32", no_kernel=True)
    if row.unlisted == ops.WIDEST:
        return Ruling("widest", saturate=saturate)
    if row.unlisted in (ops.FIRST_INPUT, ops.KERNEL_FOR_SOME) or row.sums is not None:
        return Ruling("first_input", saturate=saturate)
    return Ruling("scalars", saturate=saturate) if saturate else Ruling()


def ruling_in_list(operation: str, precision: str, *, products_only: bool = False) -> Ruling:
    """Returns what holds for an operation in the list of a precision: rules 1, 3, 5 and 8."""
    if ops.is_in_place(operation):
        return ruling_without_list(operation)
    if precision != "fp32" and _has_no_kernel(operation):
        return Ruling("precision", "fp32", no_kernel=True)
    return Ruling("precision", precision, saturate=ops.saturates(operation, precision), products_only=products_only)


def _has_no_kernel(operation: str) -> bool:
    return ops.row_of(operation).unlisted == ops.NO_KERNEL


class _Assignment:
    """Assigns each operation to the list that decides. An operation's own name takes precedence over its family's."""

    def __init__(self, lists: Preset, lower: str) -> None:
        self._exact: dict[str, tuple[str, Listed]] = {}
        self._family: dict[str, list[tuple[str, Listed]]] = {}
        self._names: dict[str, tuple[str, Listed]] = {}
        #: The problems, one line of text each, by the lines of the lists that they are about.
        self._problems: dict[tuple[Listed, ...], str] = {}
        for listed in lists.lower:
            self._add(listed, lower)
        for listed in lists.fp32:
            self._add(listed, "fp32")
        self.decided = self._with_families()

    @property
    def problems(self) -> list[str]:
        return [*self._problems.values()]

    def _add(self, listed: Listed, kind: str) -> None:
        if listed.name in self._names:
            known_kind, known = self._names[listed.name]
            if known_kind != kind:
                self._conflict(listed.name, known, listed)
            return
        try:
            resolved = _resolve(listed)
        except ListError as error:
            self._problems[listed,] = str(error)
            return
        self._names[listed.name] = (kind, listed)
        if resolved is None:
            return
        for operation in resolved.exact:
            known_kind, known = self._exact.setdefault(operation, (kind, listed))
            if known_kind != kind:
                self._conflict(operation, known, listed)
        for operation in resolved.family:
            self._family.setdefault(operation, []).append((kind, listed))

    def _with_families(self) -> dict[str, tuple[str, Listed]]:
        decided = dict(self._exact)
        for operation, claims in self._family.items():
            if operation in decided:
                continue
            (kind, first), *others = claims
            for other_kind, other in others:
                if other_kind != kind:
                    self._conflict(operation, first, other)
            decided[operation] = (kind, first)
        return decided

    def _conflict(self, operation: str, first: Listed, second: Listed) -> None:
        """Notes a problem of two names. It is one problem, even if they have several operations in common."""
        self._problems.setdefault((first, second), _conflict(operation, first, second))


def _conflict(operation: str, first: Listed, second: Listed) -> str:
    if first.name == second.name:
        return f"{second.where}: `{second.name}` is in both lists; it is also at {first.where}: remove one of the two"
    return (
        f"{second.where}: `{second.name}` is the same operation of torch ({operation}) as `{first.name}` at "
        f"{first.where}, in the other list: remove one of the two"
    )


def _resolve(listed: Listed) -> ops.Resolved | None:
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
    near = _nearest(listed.name)
    hint = f"; did you mean `{near}`?" if near else ""
    raise ListError(f"{listed.where}: unknown operation `{ascii(listed.name)[1:-1]}`{hint}")


def _is_in_place_anyhow(operation: str) -> bool:
    """True if the operation keeps the precision of the tensor it writes into, and no list could cast another input."""
    has_rule = operation in ops.names_with_rules()
    return ops.is_in_place(operation) and (has_rule or ops.most_tensors(operation) == 1)


_PARTS_OF_PLACES = frozenset(("", "torch", "tensor", "nn", "functional", "f", "ops", "aten", "_c", "_nn", "default"))


def _nearest(name: str) -> str | None:
    """Returns the name that may be meant. The given one may have a prefix that is wrong in torch: `torch.gelu`."""
    parts = [part for part in reversed(name.split(".")) if part.lower() not in _PARTS_OF_PLACES]
    parts = [*dict.fromkeys(("_".join(reversed(parts)), *parts))]
    for part in parts:
        for spelled in (part, part.lower()):
            if ops.resolve(spelled) is not None:
                return spelled
    known = {one.lower(): one for one in ops.suggestions()}
    for part in parts:
        longer = [one for one in known if one.startswith(part.lower())] if len(part) > 2 else []
        near = longer or difflib.get_close_matches(part.lower(), known, n=1, cutoff=0.7)
        if near:
            return known[min(near, key=len)]
    return None


def problems_of(lower: Iterable[Listed], fp32: Iterable[Listed] = ()) -> list[str]:
    """Returns all problems in the lines of a list, or of two lists that are used together."""
    return _Assignment(Preset("", "", tuple(lower), tuple(fp32)), "bf16").problems


def policy_from_lists(
    lists: Preset, lower: str, own: Preset | None = None, *, refused: frozenset[str] = _NONE
) -> Policy:
    """Returns the policy of O1: the lists decide; for operations that they do not name, rules 2 to 4 decide.

    ``own`` are the user's lists, which replace a part of ``lists``: they take precedence for every operation that they
    name. An operation in ``refused`` raises if no list names it.
    """
    decided = _assign(lists, lower)
    named = {} if own is None else _assign(own, lower)
    followed = named if lists.of_autocast else decided | named
    decided |= named
    rulings = {
        operation: ruling_in_list(
            operation,
            kind,
            products_only=listed.products_only or ops.row_of(ops.plain_name(listed.name)).means_products,
        )
        for operation, (kind, listed) in decided.items()
    }
    for operation, ruling in rulings.items() if lists.leaves_points else ():
        if operation not in named and ruling.precision == lower and ops.row_of(operation).terms is not None:
            rulings[operation] = replace(ruling, leaves_points=True)
    rulings |= {operation: Ruling("refused") for operation in refused - rulings.keys()}
    # The other two lists take precedence over the third one (rule 5).
    for listed in lists.widest:
        resolved = _resolve(listed)
        for operation in () if resolved is None else resolved.exact + resolved.family:
            if operation not in rulings and not _has_no_kernel(operation) and not ops.is_in_place(operation):
                rulings[operation] = Ruling("widest", saturate=ops.saturates(operation))
    for operation, precision in _by_parts(decided, followed, lower).items():
        if operation not in rulings and not _has_no_kernel(operation):
            rulings[operation] = replace(ruling_in_list(operation, precision), by_parts=True)
    wheres = {operation: (kind, listed.where) for operation, (kind, listed) in decided.items()}
    return replace(_policy(rulings, lower), named=wheres)


def _by_parts(
    decided: Mapping[str, tuple[str, Listed]], followed: Mapping[str, tuple[str, Listed]], lower: str
) -> dict[str, str]:
    """Returns the precision of operations whose parts are listed, and of the parts of operations in ``followed``."""
    lowered: dict[str, str] = {}
    raised: dict[str, str] = {}
    for whole, row in ops.rows().items():
        if not row.parts:
            continue
        parts = ops.parts_of(whole)
        kinds = {decided[part][0] if part in decided else "" for part in parts}
        if "fp32" in kinds:
            raised[whole] = "fp32"
        elif row.is_only_parts and kinds == {lower}:
            lowered[whole] = lower
        if row.parts_follow and whole in followed and followed[whole][0] == "fp32":
            raised.update(dict.fromkeys(parts, "fp32"))
    return lowered | raised


def _assign(lists: Preset, lower: str) -> dict[str, tuple[str, Listed]]:
    assignment = _Assignment(lists, lower)
    if assignment.problems:
        raise ListError("\n".join(assignment.problems))
    return assignment.decided


def policy_o2(lower: str) -> Policy:
    """Returns the policy of O2: GEMM and convolutions in the lower precision, all other known floating-point operations
    in float32."""
    rulings = {}
    # An operation with a rule for its inputs' dtypes is a floating-point operation. (In place, rule 3 holds anyway.)
    floating = {
        operation
        for operation, row in ops.rows().items()
        if row.o2 == "float32" or (row.unlisted and row.unlisted != ops.IN_PLACE)
    }
    for name in shipped_names():
        resolved = ops.resolve(name)
        if resolved is not None:
            floating.update(resolved.exact + resolved.family)
    for operation in floating:
        if ops.row_of(operation).o2 != "input":
            rulings[operation] = ruling_in_list(operation, "fp32")
    for operation, row in ops.rows().items():
        for one in (operation, *row.family.split()) if row.o2 == "lower" else ():
            rulings[one] = ruling_in_list(one, lower, products_only=row.made_of_products)
    of_o2 = {operation: (ruling.precision, "O2") for operation, ruling in rulings.items()}
    return replace(_policy(rulings, lower), named=of_o2)


def _policy(decided: Mapping[str, Ruling], lower: str) -> Policy:
    # Rule 6: an operation that returns a view is never cast.
    rulings = {one: ruling for one, ruling in decided.items() if ops.computes(one) and not ops.gives_view(one)}
    covered: list[Covered] = []
    composites: list[Covered] = []
    for operation in sorted(ops.names_with_rules() | set(rulings)):
        unlisted = ruling_without_list(operation)
        listed = rulings.get(operation, unlisted)
        builtins = ops.builtins_named(operation)
        covered.extend(Covered(operation, builtin, listed, unlisted) for builtin in builtins)
        composite = None if builtins or operation not in rulings else ops.composite_named(operation)
        if composite is not None:
            composites.append(Covered(operation, composite, listed, unlisted))
    return Policy(_one_each(covered), tuple(composites), lower)


def _one_each(covered: Iterable[Covered]) -> tuple[Covered, ...]:
    """Returns one entry for each object: it may have two names (`torch.x` and `torch._C._nn.x`), but has one rule."""
    by_object: dict[int, Covered] = {}
    for one in covered:
        by_object.setdefault(id(one.builtin.object), one)
    return tuple(by_object.values())


def observed_operations() -> tuple[str, ...]:
    """Returns the operations that the watch sees even without a rule: each operation in a shipped list, arithmetic, and
    those whose values it checks."""
    found = {*ops.observed.ANGLES, *ops.observed.COUNTS, *ops.observed.STATISTICS, *ops.pointwise.NAMES}
    for name in shipped_names():
        resolved = ops.resolve(name)
        found.update(() if resolved is None else resolved.exact + resolved.family)
    return tuple(sorted(one for one in found if _is_observed(one)))


def _is_observed(operation: str) -> bool:
    if "::" in operation or ops.is_in_place(operation):
        return False
    return operation in ops.observed.COUNTS or (ops.computes(operation) and not ops.gives_view(operation))


def plan_of_observed() -> list[tuple[Any, Any, str, _core.Rule, _core.Rule]]:
    """Returns what the core handles for the watch, without a rule."""
    builtins = [(one, builtin) for one in observed_operations() for builtin in ops.builtins_named(one)]
    builtins += [(builtin.place.rpartition(".")[2], builtin) for builtin in ops.find.makers_of_indexes()]
    return [(one.object, one.object, name, Ruling().rule(name), Ruling().rule(name)) for name, one in builtins]


def plan(policy: Policy, *, caches_weights: bool = True) -> list[tuple[Any, Any, str, _core.Rule, _core.Rule]]:
    """Returns what the core installs."""
    return [
        (
            one.builtin.object,
            one.builtin.shown or one.builtin.object,
            one.operation,
            one.listed.rule(one.operation, caches_weights=caches_weights),
            one.unlisted.rule(one.operation),
        )
        for one in (*policy.covered, *policy.composites)
    ]
