"""From lists to rules: what to do with each torch function. All of this is decided before torch is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from habana_mp import _core, ops
from habana_mp.common.errors import ListError
from habana_mp.ops import observed
from habana_mp.ops.find import Builtin, builtins_named, composite_named
from habana_mp.ops.infinities import ALSO_GUARDED
from habana_mp.ops.operation import FIRST_INPUT, KERNEL_FOR_SOME, WIDEST, Castable
from habana_mp.ops.products import in_rows
from habana_mp.policy.exact import NOTHING_EXACT, ExactCode
from habana_mp.policy.lists import EVERY, Listed
from habana_mp.policy.module_rules import FROM_FILES, FROM_PRESET, Decided, ModuleRule, ModuleRules, rules_of
from habana_mp.policy.names import operations_of, operations_that_compute
from habana_mp.policy.precisions import FLOAT32_RESULT, PRECISIONS
from habana_mp.policy.presets import Preset, shipped_names

#: The entry of one object in what the core installs, as ``_core.pyi`` describes it.
Planned = tuple[Any, Any, str, _core.Rule, int, _core.Rule]

Action = Literal["none", "precision", "widest", "in_place", "first_input", "operands", "scalars", "left", "refused"]


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
    #: True if the product is of operands in lower precision, and its result is in float32.
    float32_result: bool = False
    #: Precisions in which torch is slow with it on a CPU.
    slow_in: str = ""

    @cache  # noqa: B019  # rulings are few, and rules of the core are never freed
    def rule(self, operation: str, *, caches_weights: bool = True) -> _core.Rule:
        """Returns the core's form, with the arguments that may be cast. ``caches_weights``: cache casts of weights."""
        if self.action == "left":
            return _core.Rule(action="left", why="level")
        row = ops.row_of(operation)
        # The other traits are columns of the row.
        computed = {
            "saturates": self.saturate != "",
            "saturates_tensors": self.saturate == "all",
            "is_elementwise": ops.is_elementwise(operation),
            "products_inside": self.products_only and row.products_inside,
            "is_not_repeated": not ops.may_be_repeated(operation),
            "caches_weights": caches_weights and row.caches_weights,
            "float32_result": self.float32_result,
        }
        reasons = {"no_kernel": self.no_kernel, "parts": self.by_parts, "float32_result": self.float32_result}
        by_action = {action: action for action in ("widest", "in_place", "first_input", "operands")}
        by_action["scalars"] = "first_input"
        conditions = {
            "makes_product": row.makes_product if self.products_only else None,
            "is_fused": row.is_fused,
            "wrong_in_bf16": row.wrong_in_bf16,
            "sums": partial(_is_on_cpu_in, self.slow_in) if self.slow_in else row.sums,
            "in_rows": in_rows if row.wants_rows else None,
        }
        return _core.Rule(
            action=self.action,
            precision=self.precision,
            why=next((name for name, holds in reasons.items() if holds), by_action.get(self.action, "list")),
            traits=[name for name in _core.traits if (computed[name] if name in computed else getattr(row, name))],
            castable=_in_core(ops.operands_of(operation) if self.float32_result else ops.arguments_of(operation)),
            target_keywords=ops.target_keywords(operation) if self.action == "in_place" else (),
            sparse_gradient=row.sparse_gradient,
            conditions={name: function for name, function in conditions.items() if function is not None},
            product_form=row.product_form,
        )


def _is_on_cpu_in(precisions: str, input: Any, *_: Any, **__: Any) -> bool:  # as torch names it
    return input.device.type == "cpu" and PRECISIONS.get(input.dtype, "none") in precisions


def _in_core(castable: Castable | None) -> _core.Castable | None:
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
    #: The code whose own operations no list lowers, besides that of the libraries that the package knows.
    exact: ExactCode = field(default=NOTHING_EXACT, compare=False)
    #: The precision that a list gives an operation, and the line of the list, by operation.
    lines: Decided = field(default_factory=dict, compare=False)
    #: The rules of operations that lists decide.
    rulings: Mapping[str, Ruling] = field(default_factory=dict, compare=False)
    #: The lines that hold in some modules, and a function that returns all rules where such lines are in force.
    module_rules: ModuleRules = field(default=ModuleRules(()), compare=False)
    #: True if a pattern of the user's that matches no module is an error.
    strict: bool = field(default=False, compare=False)
    rulings_with: Callable[[Decided], dict[str, Ruling]] | None = field(default=None, compare=False)
    #: False if an operation that no list names is left to torch, whatever its inputs are.
    follows_inputs: bool = field(default=True, compare=False)


def ruling_without_list(operation: str, *, follows_inputs: bool = True) -> Ruling:
    """Returns what holds for an operation that no list names: rules 2 to 4, 8 and 9, or nothing."""
    if not follows_inputs:
        return Ruling()
    row, saturate = ops.row_of(operation), ops.saturates(operation)
    if ops.is_in_place(operation):
        return Ruling("in_place", saturate=saturate)
    if not ops.has_kernel(operation):
        return Ruling("precision", "fp32", no_kernel=True)
    if row.unlisted == WIDEST:
        return Ruling("widest", saturate=saturate)
    if row.unlisted in (FIRST_INPUT, KERNEL_FOR_SOME) or row.sums is not None:
        return Ruling("first_input", saturate=saturate)
    return Ruling("scalars", saturate=saturate) if saturate else Ruling()


def ruling_in_list(operation: str, precision: str, *, products_only: bool = False) -> Ruling:
    """Returns what holds for an operation in the list of a precision: rules 1, 3, 5 and 8."""
    if ops.is_in_place(operation):
        return ruling_without_list(operation)
    if precision.endswith(FLOAT32_RESULT):
        precision = precision.removesuffix(FLOAT32_RESULT)
        if ops.can_have_float32_result(operation):
            products_only = products_only or ops.row_of(operation).made_of_products
            return replace(ruling_in_list(operation, precision, products_only=products_only), float32_result=True)
    if precision != "fp32" and not ops.has_kernel(operation):
        return Ruling("precision", "fp32", no_kernel=True)
    return Ruling("precision", precision, saturate=ops.saturates(operation, precision), products_only=products_only)


#: The user's lists for the lower precision and for float32. None: that of the preset.
OwnLists = tuple[tuple[Listed, ...] | None, tuple[Listed, ...] | None]


def policy_from_lists(
    lists: Preset,
    lower: str,
    own: OwnLists = (None, None),
    *,
    given: Iterable[ModuleRule] = (),
    refused: frozenset[str] = frozenset(),
) -> Policy:
    """Returns the policy of O1: the lists decide; for operations that they do not name, rules 2 to 4 decide.

    ``own`` replaces a part of ``lists``, and takes precedence for every operation that it names. ``given`` takes
    precedence over both. An operation in ``refused`` raises if no list names it.
    """
    own_lower, own_fp32 = own
    stays = lists.lower if own_lower is None else (), lists.fp32 if own_fp32 is None else ()
    of_preset, of_files = (
        rules_of(*stays, lower, FROM_PRESET),
        rules_of(own_lower or (), own_fp32 or (), lower, FROM_FILES),
    )
    return _policy(lists, lower, [*of_preset, *of_files, *given], refused=refused)


def policy_o2(lower: str, given: Iterable[ModuleRule] = ()) -> Policy:
    """Returns the policy of O2: GEMM and convolutions in the lower precision, all other known floating-point operations
    in float32."""
    rulings = {operation: ruling_in_list(operation, "fp32") for operation in operations_that_compute()}
    for operation, row in ops.rows().items():
        for one in (operation, *row.family.split()) if row.o2 == "lower" else ():
            rulings[one] = ruling_in_list(one, lower, products_only=row.made_of_products)
    return _policy(Preset("", ""), lower, given, rulings)


def _policy(
    lists: Preset,
    lower: str,
    lines: Iterable[ModuleRule],
    of_level: Mapping[str, Ruling] = MappingProxyType({}),
    refused: frozenset[str] = frozenset(),
) -> Policy:
    """Returns the policy of these lines. ``of_level`` are the rules of operations that no line names."""
    module_rules = ModuleRules(lines)
    if module_rules.problems:
        raise ListError("\n".join(module_rules.problems))

    def rulings_with(chosen: Decided) -> dict[str, Ruling]:
        """Returns the rules where these lines are in force too."""
        return {**of_level, **_rulings(lists, lower, {**module_rules.everywhere, **chosen}, refused)}

    rulings = rulings_with({})
    decided = {operation: (ruling.precision, Listed("", "O2", 0)) for operation, ruling in of_level.items()}
    return Policy(
        *_covered(rulings, module_rules.named_operations(), follows_inputs=lists.operands is None),
        lower,
        lines={**decided, **module_rules.everywhere},
        rulings=rulings,
        module_rules=module_rules,
        rulings_with=rulings_with,
        follows_inputs=lists.operands is None,
    )


def _rulings(lists: Preset, lower: str, decided: Decided, refused: frozenset[str]) -> dict[str, Ruling]:
    rulings = {
        operation: ruling_in_list(
            operation,
            kind,
            products_only=listed.products_only
            or ops.row_of(ops.plain_name(listed.name)).means_products
            or (listed.name == EVERY and kind != "fp32" and ops.row_of(operation).made_of_products),
        )
        for operation, (kind, listed) in decided.items()
    }
    rulings |= {operation: Ruling("refused") for operation in refused - rulings.keys()}
    # The other two lists take precedence over the third one (rule 5).
    for listed in lists.widest:
        resolved = operations_of(listed)
        for operation in () if resolved is None else resolved.exact + resolved.family:
            if operation not in rulings and ops.has_kernel(operation) and not ops.is_in_place(operation):
                rulings[operation] = Ruling("widest", saturate=ops.saturates(operation))
    if lists.operands is not None:
        found = {operation: "" for operation, row in ops.rows().items() if row.product_form}
        found |= {one: of for name, of in lists.operands.items() for one in (name, *ops.row_of(name).family.split())}
        rulings = {operation: Ruling("operands", slow_in=of) for operation, of in found.items()} | rulings
    for operation, precision in _by_parts(decided, lower, lists.of_autocast).items():
        if operation not in rulings and ops.has_kernel(operation):
            rulings[operation] = replace(ruling_in_list(operation, precision), by_parts=True)
    return rulings


def _by_parts(decided: Decided, lower: str, of_autocast: bool) -> dict[str, str]:
    """Returns the precision of operations whose parts are listed, and of the parts of listed operations."""
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
        precision, line = decided.get(whole, ("", None))
        if row.parts_follow and line and precision == "fp32" and not (of_autocast and line.shipped):
            raised.update(dict.fromkeys(parts, "fp32"))
    return lowered | raised


def changes_in_modules(policy: Policy, chosen: Decided) -> Policy:
    """Returns the rules that change where these lines are in force too."""
    if policy.rulings_with is None:
        return Policy()
    before, after, lines = policy.rulings, policy.rulings_with(chosen), {**policy.lines, **chosen}
    changed = {one for one in before.keys() | after.keys() if before.get(one) != after.get(one)}
    changed |= {one for one in chosen.keys() & after.keys() if lines[one] != policy.lines.get(one)}
    covered, composites = _covered(after, frozenset(), changed, follows_inputs=policy.follows_inputs)
    return Policy(covered, composites, lines=lines)


def without_lists(policy: Policy) -> Policy:
    """Returns the rules where no list decides."""
    covered = tuple(one._replace(listed=one.unlisted) for one in policy.covered)
    return Policy(covered, tuple(one._replace(listed=one.unlisted) for one in policy.composites))


def left_alone(policy: Policy) -> Policy:
    """Returns the policy of O0: calls that this one would decide are counted, and nothing is cast."""
    covered, composites = (
        tuple(one._replace(listed=Ruling("left"), unlisted=Ruling()) for one in these)
        for these in (policy.covered, policy.composites)
    )
    return Policy(covered, composites, policy.lower)


def _covered(
    decided: Mapping[str, Ruling],
    others: Iterable[str],
    among: Iterable[str] | None = None,
    *,
    follows_inputs: bool,
) -> tuple[tuple[Covered, ...], tuple[Covered, ...]]:
    """Returns the objects and the composites with rules: those that are decided, those with a rule of their own (if
    ``follows_inputs``), and these others; or ``among`` these alone."""
    # Rule 6: an operation that returns a view is never cast.
    rulings = {one: ruling for one, ruling in decided.items() if ops.computes(one) and not ops.gives_view(one)}
    covered: dict[int, Covered] = {}  # an object may have two names (`torch.x`, `torch._C._nn.x`), but has one rule
    composites: list[Covered] = []
    named = {*rulings, *others}
    with_rules = ops.names_with_rules() if follows_inputs else frozenset()
    for operation in sorted(with_rules | named if among is None else among):
        unlisted = ruling_without_list(operation, follows_inputs=follows_inputs)
        listed = rulings.get(operation, unlisted)
        builtins = builtins_named(operation)
        for builtin in builtins:
            covered.setdefault(id(builtin.object), Covered(operation, builtin, listed, unlisted))
        composite = None if builtins or operation not in named else composite_named(operation)
        if composite is not None:
            composites.append(Covered(operation, composite, listed, unlisted))
    return tuple(covered.values()), tuple(composites)


def observed_operations() -> tuple[str, ...]:
    """Returns the operations that the watch sees even without a rule: each operation in a shipped list, arithmetic, and
    those whose values it checks."""
    found = {*observed.ANGLES, *observed.COUNTS, *observed.STATISTICS, *ops.pointwise.NAMES}
    for name in shipped_names():
        resolved = ops.resolve(name)
        found.update(() if resolved is None else resolved.exact + resolved.family)
    return tuple(sorted(one for one in found if _is_observed(one)))


def _is_observed(operation: str) -> bool:
    if "::" in operation or ops.is_in_place(operation):
        return False
    return operation in observed.COUNTS or (ops.computes(operation) and not ops.gives_view(operation))


def plan_of_observed() -> list[Planned]:
    """Returns what the core handles for the watch, without a rule."""
    builtins = [(one, builtin) for one in observed_operations() for builtin in builtins_named(one)]
    builtins += [(builtin.place.rpartition(".")[2], builtin) for builtin in ops.find.makers_of_indexes()]
    return _without_rule(builtins)


def plan_of_guarded() -> list[Planned]:
    """Returns what the core handles while the guard checks all calls: what the watch sees, and operations that write
    into their arguments."""
    seen = {one for one in observed_operations() if one not in observed.COUNTS}
    names = sorted({*seen, *(f"{one}_" for one in seen), *ALSO_GUARDED})
    return _without_rule([(one, builtin) for one in names for builtin in builtins_named(one)])


def _without_rule(builtins: list[tuple[str, Any]]) -> list[Planned]:
    return [(one.object, one.object, name, Ruling().rule(name), 0, Ruling().rule(name)) for name, one in builtins]


def plan(policy: Policy, *, caches_weights: bool = True) -> list[Planned]:
    """Returns what the core installs."""
    return [
        (
            one.builtin.object,
            one.builtin.shown or one.builtin.object,
            one.operation,
            one.listed.rule(one.operation, caches_weights=caches_weights),
            policy.lines[one.operation][1].number if one.operation in policy.lines else 0,
            one.unlisted.rule(one.operation),
        )
        for one in (*policy.covered, *policy.composites)
    ]
