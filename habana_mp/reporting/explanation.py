"""``explain``: what would happen to an operation in a module, and which line or rule decides it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from habana_mp import _core, ops
from habana_mp.patches.installation import installation
from habana_mp.patches.torch import module_paths
from habana_mp.policy.kept import AS_EXPORTED
from habana_mp.policy.lists import Listed
from habana_mp.policy.module_rules import KEPT, kept_operations
from habana_mp.policy.names import operations_of
from habana_mp.policy.patterns import Path
from habana_mp.policy.rules import Policy, ruling_without_list
from habana_mp.reporting.records import REASONS, in_and_out


@dataclass(frozen=True, repr=False)
class Explanation:
    """What happens to calls of one operation in one module, where casts are made."""

    operation: str
    module: str
    #: ``"bf16"``, ``"fp16"`` or ``"fp32"``; ``"unchanged"`` where the call's own tensors decide.
    precision: str
    #: A reason as in the report: ``"list"``, ``"parts"``, ``"kept"``, ``"widest"``, ``"in_place"``, ...
    reason: str
    #: The line that decides, as written, or an empty text; its file, and its number there.
    rule: str = ""
    file: str | None = None
    line: int | None = None
    #: Where the line is, in words.
    where: str = ""

    def __str__(self) -> str:
        place = f" in {self.module}" if self.module else ""
        if self.precision == "unchanged":
            return f"{self.operation}{place} keeps the precision of its tensors: {self._why()}"
        return f"{self.operation}{place} runs in {self.precision}: {self._why()}"

    __repr__ = __str__

    def _why(self) -> str:
        if self.reason == "kept":
            return "hmp.keep keeps the module, or one around it"
        if self.reason == "off":
            return "no lists are in force; call hmp.convert() first"
        if self.rule:
            return f"`{self.rule}` at {self.where}"
        if self.reason == "refused":
            return "it is refused in a float16 region"
        if self.where or self.reason not in REASONS:
            return self.where or self.reason
        return f"{REASONS[self.reason].description} ({REASONS[self.reason].rule})"


@dataclass(frozen=True, repr=False)
class ModelExplanation:
    """The modules of a model, each with the lines that reach it."""

    #: For each module: its path, its class, and the lines with their precisions, the most specific one first.
    modules: tuple[tuple[str, str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        lines = []
        for path, kind, reached in self.modules:
            depth = path.count(".") + 1 if path else 0
            name = f"{path.rpartition('.')[2]}: " if path else ""
            lines.append(f"{'  ' * depth}{name}{kind}{'  <- ' if reached else ''}{', '.join(reached)}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(operation: Any, module: Any = "") -> Explanation | ModelExplanation:
    """Tells what would happen to an operation in a module, and which line or rule decides it.

    ::

        print(hmp.explain("softmax", "encoder.layer.0.attention"))
        print(hmp.explain(model))        # the model's modules with the lines that reach each

    The answer is that of the lists in force here: those of the region of :func:`autocast` around the call, else those
    of :func:`convert`. Places where nothing is cast (``disable_casts``, rule 11), ``exact=`` and ``within=`` are left
    out of account: they depend on the code that calls.

    Args:
        operation: The name of an operation, as in a list, or a model.
        module: A module, or its path: with the class of the outermost module or without. ``""``: outside of modules.

    Returns:
        An object with ``precision``, ``reason``, ``rule``, ``file`` and ``line``, for a model one with ``modules``.
        ``print`` shows it in words, and so does a Python shell.

    Raises:
        ListError: an unknown operation.
        TypeError: an ``operation`` that is no name and no model, or a ``module`` that is no module and no path.
    """
    if isinstance(operation, torch.nn.Module):
        return _tree(operation)
    if not isinstance(operation, str):
        raise TypeError(f"`operation` must be the name of an operation, or a model; got {type(operation).__name__}")
    if not isinstance(module, (str, torch.nn.Module)):
        raise TypeError(f"`module` must be a module or its path; got {type(module).__name__}: {module!r}")
    policy = _policy_here()
    resolved = ops.resolve(operation.strip()) or operations_of(Listed(operation.strip(), "explain", 0))
    meant = next(iter(resolved.exact + resolved.family)) if resolved else operation
    shown, places, kept = _where(module)
    if policy is None:
        return Explanation(meant, shown, "unchanged", "off")
    if not ops.computes(meant) or ops.gives_view(meant):
        return Explanation(meant, shown, "unchanged", "view", where="it computes nothing that could be cast (rule 6)")
    chosen = dict(kept_operations(kept)) if kept is not None else {}
    if places and kept is None:
        chosen = policy.module_rules.decided([policy.module_rules.match(*place) for place in places])[0]
    decided = policy.rulings_with(chosen) if policy.rulings_with else {}
    ruling = decided.get(meant) or ruling_without_list(meant, follows_inputs=policy.follows_inputs)
    reason = by_list = "float32_result" if ruling.float32_result else "list"
    precision = in_and_out(ruling.precision or "unchanged", by_list)
    _, line = chosen.get(meant) or policy.lines.get(meant) or ("", None)
    if ruling.action != "precision":
        reason = {"none": "first_input", "scalars": "first_input"}.get(ruling.action, ruling.action)
    elif line is KEPT:
        reason = "kept"
    elif ruling.no_kernel or ruling.by_parts:
        reason = "no_kernel" if ruling.no_kernel else "parts"
    if line is None or reason != by_list:
        return Explanation(meant, shown, precision, reason)
    by_sizes = ruling.products_only and ops.row_of(meant).makes_product is not None
    return Explanation(
        meant,
        shown,
        precision,
        reason,
        rule=line.line_text or line.source,
        file=line.source if line.line else None,
        line=line.line or None,
        where=f"{line.where}, where it makes a matrix product" if by_sizes else line.where,
    )


def _policy_here() -> Policy | None:
    region = _core.current_region()
    policy = installation.policy_of_region(region) if region else installation.policy
    return policy if policy is not None and any(one.listed.action != "left" for one in policy.covered) else None


#: The paths of a module in an outermost module, and the names of that one's class.
_Places = list[tuple[Iterable[Path], tuple[str, ...]]]


def _where(module: str | torch.nn.Module) -> tuple[str, _Places, str | None]:
    """Returns the path of a module in words, its places, and the precision in which it is kept."""
    if not isinstance(module, str):
        trees = module_paths.trees_of([module])
        shown = ".".join(min(trees[0].paths)) or type(module_paths.unwrapped(module)).__name__
        return shown, _places(trees), _kept([module])
    given, parts = module.strip(), _parts(module.strip())
    if not parts:
        return given, [], None
    for root in module_paths.outermost_modules():
        if (found := module_at(given, root)) is not None:
            return given, _places(module_paths.trees_of([found, root])), _kept([found, root])
    # No living model has it: it may begin with the class of a model.
    return given, [([parts, *([parts[1:]] if len(parts) > 1 and parts[0][:1].isupper() else [])], parts[:1])], None


def _parts(path: str) -> Path:
    return tuple(part for part in path.split(".") if part)


def module_at(given: str, root: torch.nn.Module) -> torch.nn.Module | None:
    """Returns the module of an outermost module at this path, or None. The path may begin with the class of the
    outermost module."""
    parts = _parts(given)
    inside = parts[1:] if parts[:1] and parts[0].partition("#")[0] in module_paths.class_names(root) else parts
    places = module_paths.places_in(root)
    return next((module for name, path, module in places if given == name or path in (parts, inside)), None)


def _places(trees: Iterable[module_paths.Tree]) -> _Places:
    return [(tree.paths, module_paths.class_names(tree.outermost)) for tree in trees]


def _kept(chain: list[torch.nn.Module]) -> str | None:
    found = module_paths.precisions_kept_in(chain) - {AS_EXPORTED}
    return "fp32" if len(found) > 1 else next(iter(found), None)


def _tree(model: torch.nn.Module) -> ModelExplanation:
    policy = _policy_here()
    modules = []
    for _, path, inner in module_paths.places_in(model):
        if module_paths.wrapped_by(inner) is not None:
            continue
        kept = _kept([inner, model])
        reached = [] if kept is None else [f"kept in {kept}"]
        if policy is not None:
            rules = policy.module_rules
            matches = (rules.match(*place) for place in _places(module_paths.trees_of([inner, model])))
            numbers = {number for match in matches for number in match.patterns}
            found = sorted((rules.rules[number] for number in sorted(numbers)), key=lambda one: one.rank)
            reached += [f"`{one.listed.line_text}` {one.precision}" for one in reversed(found)]
        modules.append((".".join(path), type(inner).__name__, tuple(reached)))
    return ModelExplanation(tuple(modules))
