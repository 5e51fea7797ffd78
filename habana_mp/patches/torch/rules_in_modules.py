"""Rules by module: makes the rules depend on the running module.

The core asks `RulesInModules` when a module is first called within certain others, and remembers the answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from habana_mp import _core
from habana_mp.common import locks
from habana_mp.common.errors import ListError, warn
from habana_mp.patches.tools import tapped_calls
from habana_mp.patches.tools.compiled_functions import run_by_python
from habana_mp.patches.torch import module_paths
from habana_mp.patches.torch.dynamo import compile_nothing
from habana_mp.patches.torch.export import exported_programs
from habana_mp.patches.torch.module_calls import modules_in_graphs
from habana_mp.patches.torch.module_holders import modules_in
from habana_mp.policy import rules
from habana_mp.policy.kept import AS_EXPORTED
from habana_mp.policy.lists import EVERY, Listed
from habana_mp.policy.module_rules import FROM_PRESET, KEPT, Decided, kept_operations
from habana_mp.policy.patterns import Match, nearest_path
from habana_mp.policy.rules import Policy

#: The number of convert's lists where `within` does not apply them: there nothing is lowered.
_OUTSIDE = -1


class RulesInModules:
    """Finds the rules in modules, and makes them rule sets of the core."""

    def __init__(self, policy_of: Callable[[int], Policy | None]) -> None:
        #: Returns the policy of a region, or of convert for 0.
        self._policy_of = policy_of
        #: The rule sets by what determines them.
        self._numbers: dict[tuple[int, str | tuple[Match, ...]], int] = {}
        #: The lines of these sets, by their numbers.
        self._decided: dict[int, Decided] = {}
        #: What was warned about, and the patterns that were compared with a model.
        self._warned: set[object] = set()
        self.is_on = False
        self._resolver, self._judge = run_by_python(self._number), run_by_python(self._judge_first_call)

    def forget_warnings(self) -> None:
        """Lets each warning be given again."""
        self._warned.clear()

    def begin(self) -> None:
        """Makes the rules depend on the running module, from now on. Forgets the rule sets that were found before."""
        self.is_on = True  # first: after an error, `end` undoes what was done
        self._numbers.clear()
        _core.set_module_names(module_paths.module_name)
        tapped_calls.begin("rules")
        _core.put_rules_in_modules(self._resolver, self._judge)
        _core.forget_module_names()
        modules_in_graphs.begin("rules")
        exported_programs.install()

    def end(self) -> None:
        """Makes all modules run by the same rules again."""
        if self.is_on:
            exported_programs.uninstall()
            modules_in_graphs.end("rules")
            _core.put_rules_in_modules(None, None)
            tapped_calls.end("rules")
            module_paths.forget()
            self.is_on = False  # last: after an error, another call goes on

    def _number(self, chain: list[Any], lists: int) -> int:
        """Returns the number of the rule set in a module; 0 if the lists decide there as elsewhere."""
        while True:
            policy = self._policy_of(max(lists, 0))
            if policy is None or not policy.covered:
                return 0
            kept = self._kept(chain)
            trees = module_paths.trees_of(chain)
            matches = _matches(policy, trees)
            if kept is None and not any(one.patterns or one.rest for one in matches):
                return 0
            with locks.installation:
                if self._policy_of(max(lists, 0)) is not policy:
                    continue  # another thread has converted meanwhile
                key = (lists, kept or tuple(matches))
                if key not in self._numbers:
                    self._numbers[key] = self._made(policy, matches, lists, kept)
                number = self._numbers[key]
            if kept is None and len({*matches}) > 1:
                self._warn_of_lines_that_disagree(policy, matches, trees)
            return number

    def _kept(self, chain: list[Any]) -> str | None:
        """Returns the precision in which a module is kept, or None."""
        found = module_paths.precisions_kept_in(chain)
        if len(found) == 1:
            return found.pop()
        self._warn_once(
            (type(chain[-1]), frozenset(found)),
            f"{type(chain[-1]).__name__} runs in float32: it was called alone, and the models that hold it keep it in "
            "different precisions. Call it within one of them, or use `hmp.keep` on it",
        )
        return "fp32"

    def _made(self, policy: Policy, matches: list[Match], lists: int, kept: str | None) -> int:
        chosen: Decided = {}
        changes = rules.without_lists(policy)
        if kept != AS_EXPORTED:
            chosen = policy.module_rules.decided(matches)[0] if kept is None else kept_operations(kept)
            if lists == _OUTSIDE:
                chosen = {one: line for one, line in chosen.items() if line[0] == "fp32"}
            changes = rules.changes_in_modules(policy, chosen)
        number, is_shown = _core.make_module_rules(lists, rules.plan(changes), "rules of modules")
        self._decided[number] = chosen
        if not is_shown:
            compile_nothing()
            if "torch._dynamo" in sys.modules:
                text = "the rules differ in more modules than torch.compile can tell apart, so it compiles nothing"
                self._warn_once(text, text)
        return number

    def _warn_of_lines_that_disagree(
        self, policy: Policy, matches: list[Match], trees: list[module_paths.Tree]
    ) -> None:
        disputed = policy.module_rules.decided(matches)[1]
        lines = ", ".join(sorted(f"`{one.line_text}` ({one.where})" for one in disputed))
        paths = [".".join((type(one.outermost).__name__, *min(one.paths))) for one in trees]
        if disputed:
            self._warn_once(
                frozenset(disputed),
                f"{' and '.join(sorted(paths))} are one module, which was called alone, and other lines hold in each "
                f"place: what {lines} say runs in float32 there. Write these lines for all of its places",
            )

    def _warn_once(self, what: object, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warn(text)

    def _judge_first_call(self, chain: list[Any], lists: int, uses: list[Any] | None) -> None:
        """Looks at the patterns, and at the weights that were used, when an outermost module first returns."""
        policy, trees = self._policy_of(max(lists, 0)), module_paths.trees_of(chain)
        if policy is None or not policy.covered or not trees:
            return
        modules = modules_in(trees[0].outermost)
        holders = {id(one): module for module in modules for one in module._parameters.values() if one is not None}
        for operation, weight, running, number in uses or ():
            owner = holders.get(id(weight))
            is_inside = any(one is weight for module in running for one in getattr(module, "_parameters", {}).values())
            # A compiled graph sets the rules of the modules in it, which it does not call.
            if owner is None or is_inside or number != self._number(running, lists):
                continue
            here = {**policy.lines, **self._decided.get(number, {})}.get(operation)
            precision, line = self._decided.get(self._number([owner, *running], lists), {}).get(operation, (None, KEPT))
            if precision and precision != (here[0] if here else precision if line.name == EVERY else None):
                self._warn_of_weight_used_elsewhere(line, operation, owner, running)
        # A module without weights is no model: it prepares data or computes a loss, also before there is a model.
        if holders:
            self._judge_patterns(policy, trees[0].outermost)

    def _warn_of_weight_used_elsewhere(self, line: Listed, operation: str, owner: Any, running: list[Any]) -> None:
        """Warns once of a line for a module whose weights another module reads itself, where the line does not hold."""
        outermost, paths = module_paths.trees_of(running)[0]
        user = ".".join(min(paths)) or type(outermost).__name__
        named = ".".join(min(module_paths.trees_of([owner, *running])[0].paths))
        what, write = f"hmp.keep of `{named}`", f"keep `{user}`"
        if line.pattern:
            what, write = f"{line.where}: `{line.line_text}`", f"write `{line.name} @ {user}`"
        self._warn_once(
            what,
            f"{what} does not hold for `{operation}` in {type(running[0]).__name__}, which reads the weights of "
            f"`{named}` itself: {write}, or call `{named}` there",
        )

    def _judge_patterns(self, policy: Policy, outermost: torch.nn.Module) -> None:
        """Warns once of each pattern that matches no module of a model that ran, nor of another living one."""
        rules = sorted(policy.module_rules.rules, key=lambda one: one.source)
        lines = {one.listed.pattern: one for one in rules}
        if self._warned.issuperset(lines):
            return
        known, paths = set(self._warned), module_paths.all_paths(outermost)
        for one in (outermost, *module_paths.outermost_modules()):
            if not known.issuperset(lines):
                names = module_paths.class_names(one)
                known |= policy.module_rules.patterns_with_match(module_paths.all_paths(one), names)
        self._warned |= lines.keys()  # before a warning, which other threads may wait for, and which may raise
        problems = []
        for pattern in sorted(lines.keys() - known):
            near, line = nearest_path(pattern, map(".".join, paths)), lines[pattern].listed
            text = (
                f"{line.where}: `{line.line_text}` has no effect: no module of "
                f"{type(module_paths.unwrapped(outermost)).__name__} is at `{pattern}`"
                + (f"; did you mean `{near}`?" if near else "")
            )
            if policy.strict and lines[pattern].source != FROM_PRESET:
                problems.append(text)
            else:
                warn(text)
        if problems:
            raise ListError("\n".join(problems))


def _matches(policy: Policy, trees: list[module_paths.Tree]) -> list[Match]:
    return [policy.module_rules.match(one.paths, module_paths.class_names(one.outermost)) for one in trees]
