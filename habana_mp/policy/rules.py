"""From lists to rules: what is to be done with each of torch's functions, decided before torch is touched."""

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

#: The words for precisions, in lists, logs and reports.
PRECISIONS: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

#: What users call the dtypes besides, in small letters.
_SPELLINGS = {
    **{"bf16": torch.bfloat16, "bfloat16": torch.bfloat16},
    **{"fp16": torch.float16, "float16": torch.float16, "half": torch.float16},
    **{"fp32": torch.float32, "float32": torch.float32, "float": torch.float32},
}


def dtype_meant(given: object) -> torch.dtype | None:
    """The dtype that was given, by itself or by one of its names; None if it is neither."""
    if isinstance(given, str):
        return _SPELLINGS.get(given.lower().removeprefix("torch."))
    return given if isinstance(given, torch.dtype) else None


@dataclass(frozen=True)
class Ruling:
    """What holds for one operation, and why; the readable form of a rule of the core."""

    action: Action = "none"
    precision: str = ""
    saturate: Literal["", "numbers", "all"] = ""
    no_kernel: bool = False
    #: Does a list name it only by its parts, or what it is a part of?
    by_parts: bool = False
    #: Only for the matrix products of the calls that make any.
    products_only: bool = False
    #: Not for products of three terms without a Parameter in the forward of a module, which turn points.
    leaves_points: bool = False

    def rule(self, operation: str, *, keeps_weights: bool = True) -> _core.Rule:
        """The core's form, with the arguments that may be cast. May casts of weights be kept?"""
        row, key = ops.row_of(operation), (self, operation, keeps_weights)
        known = _rules.get(key)
        if known is None or known[0] is not row:
            known = _rules[key] = row, self._made(operation, row, keeps_weights)
        return known[1]

    def _made(self, operation: str, row: ops.Operation, keeps_weights: bool) -> _core.Rule:
        traits = {
            "saturates": self.saturate != "",
            "saturates_tensors": self.saturate == "all",
            "promotes": row.promotes,
            "gives_dimensions": row.gives_dimensions,
            "views_one": row.views_one,
            "is_elementwise": ops.is_elementwise(operation),
            "is_product": row.is_product,
            "leaves_points": self.leaves_points,
            "products_inside": self.products_only and row.products_inside,
            "is_not_repeated": not ops.may_be_repeated(operation),
            "counts_no_version": row.counts_no_version,
            "keeps_weights": keeps_weights and row.keeps_weights,
            "takes_steps": row.takes_steps,
            "casts_inside": row.casts_inside,
            "wrong_if_strided": row.wrong_if_strided,
        }
        questions = {
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
            traits=[name for name, has in traits.items() if has],
            castable=_in_core(ops.arguments_of(operation)),
            target_keywords=ops.target_keywords(operation) if self.action == "in_place" else (),
            sparse_gradient=row.sparse_gradient,
            questions={name: function for name, function in questions.items() if function is not None},
            packs=row.packs if keeps_weights else "",
            terms=row.terms,
        )


#: The rules that were made, each with the row that it was made of.
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
    """One object of torch that a policy covers."""

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
    #: Are casts of weights kept from call to call, and how many bytes of them (None: any number)?
    weight_cache: bool = True
    weight_cache_limit: int | None = None
    packed_weights: bool = True
    #: Are calls left as written where they were measured to be faster so?
    skip_slower: bool = False
    #: Is memory of large casts, and at the heap's end, kept for later?
    reuse_memory: bool = True
    #: By operation, the precision that a list gives it, and where that list says so.
    named: Mapping[str, tuple[str, str]] = field(default_factory=dict, compare=False)

    def lowers_arithmetic(self) -> bool:
        """True if a list lowers an operation that computes each value of its result by itself."""
        return any(
            one.listed.action == "precision" and one.listed.precision != "fp32" and ops.is_elementwise(one.operation)
            for one in (*self.covered, *self.composites)
        )


def ruling_without_list(operation: str) -> Ruling:
    """Rules 2 to 4, 8 and 9: what holds for an operation that no list names."""
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
    """Rules 1, 3, 5 and 8: what holds for an operation in the list of a precision."""
    if ops.is_in_place(operation):
        return ruling_without_list(operation)
    if precision != "fp32" and _has_no_kernel(operation):
        return Ruling("precision", "fp32", no_kernel=True)
    return Ruling("precision", precision, saturate=ops.saturates(operation, precision), products_only=products_only)


def _has_no_kernel(operation: str) -> bool:
    return ops.row_of(operation).unlisted == ops.NO_KERNEL


class _Assignment:
    """Which list decides for which operation. An operation listed by its own name beats one taken along by a family."""

    def __init__(self, lists: Preset, lower: str) -> None:
        self._exact: dict[str, tuple[str, Listed]] = {}
        self._family: dict[str, list[tuple[str, Listed]]] = {}
        self._names: dict[str, tuple[str, Listed]] = {}
        #: What is wrong, a line each, by the lines of the lists that it is about.
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
        """Two names may have several operations in common: that is one problem."""
        self._problems.setdefault((first, second), _conflict(operation, first, second))


def _conflict(operation: str, first: Listed, second: Listed) -> str:
    if first.name == second.name:
        return f"{second.where}: `{second.name}` is in both lists; it is also at {first.where}: remove one of the two"
    return (
        f"{second.where}: `{second.name}` is the same operation of torch ({operation}) as `{first.name}` at "
        f"{first.where}, in the other list: remove one of the two"
    )


def _resolve(listed: Listed) -> ops.Resolved | None:
    """The operations that a listed name stands for; None for a known name without a meaning here.

    That is warned about, but not where a preset names an operation that this torch lacks: its releases differ in some,
    and who asked for the preset can do nothing about it."""
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
    """Does the operation keep the precision of what it writes into, and have no input that a list would let follow?"""
    has_rule = operation in ops.names_with_rules()
    return ops.is_in_place(operation) and (has_rule or ops.most_tensors(operation) == 1)


_PARTS_OF_PLACES = frozenset(("", "torch", "tensor", "nn", "functional", "f", "ops", "aten", "_c", "_nn", "default"))


def _nearest(name: str) -> str | None:
    """The name that was meant, perhaps with a place around in which torch has no such thing: `torch.gelu`."""
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
    """All that is wrong with the lines of a list, or of two beside each other."""
    return _Assignment(Preset("", "", tuple(lower), tuple(fp32)), "bf16").problems


def policy_from_lists(
    lists: Preset, lower: str, own: Preset | None = None, *, refused: frozenset[str] = _NONE
) -> Policy:
    """O1: the lists decide; where they are silent, rules 2 to 4 do.

    ``own`` are lists of the user's that replace a part of ``lists``: whatever operation they name, they win. What is
    ``refused`` raises where no list names it.
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
    # The third list is weaker than the other two (rule 5).
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
    """The precision of what torch computes as one and lists name in parts, and of the parts of what is ``followed``."""
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
    """O2: GEMM and convolutions in the lower precision, every other known floating operation in float32."""
    rulings = {}
    # Whatever has a rule for the dtypes of its inputs computes with floating numbers. (In place rule 3 holds anyway.)
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
    # Rule 6: what gives a view is never cast.
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
    """An object may be found under two places (`torch.x` and `torch._C._nn.x`); it has one rule."""
    by_object: dict[int, Covered] = {}
    for one in covered:
        by_object.setdefault(id(one.builtin.object), one)
    return tuple(by_object.values())


def observed_operations() -> tuple[str, ...]:
    """What the watch wants to see although no rule may name it: each operation that some shipped list names,
    arithmetic, and those whose values it looks at."""
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
    """What the core answers for the watch, without a rule."""
    builtins = [(one, builtin) for one in observed_operations() for builtin in ops.builtins_named(one)]
    builtins += [(builtin.place.rpartition(".")[2], builtin) for builtin in ops.find.makers_of_indexes()]
    return [(one.object, one.object, name, Ruling().rule(name), Ruling().rule(name)) for name, one in builtins]


def plan(policy: Policy, *, keeps_weights: bool = True) -> list[tuple[Any, Any, str, _core.Rule, _core.Rule]]:
    """What the core installs."""
    return [
        (
            one.builtin.object,
            one.builtin.shown or one.builtin.object,
            one.operation,
            one.listed.rule(one.operation, keeps_weights=keeps_weights),
            one.unlisted.rule(one.operation),
        )
        for one in (*policy.covered, *policy.composites)
    ]
