"""Fill the tables of the documents: of operations from ``habana_mp/ops``, of reasons from the core, of options from
``habana_mp/policy/options.py``; and the scripts of the pages from ``examples/how_to``.

``python docs/make_rules_table.py`` writes them; with ``--check`` it only says whether they are up to date.
A table or a script stands between ``<!-- NAME table: begin -->`` and ``<!-- NAME table: end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch

from habana_mp import ops
from habana_mp.ops.find import builtins_named, composite_named
from habana_mp.ops.operation import FIRST_INPUT, KERNEL_FOR_SOME
from habana_mp.policy.names import operations_of
from habana_mp.policy.options import Options
from habana_mp.policy.presets import presets, shipped_names
from habana_mp.policy.rules import Ruling, ruling_without_list
from habana_mp.reporting.records import REASONS

DOCS = Path(__file__).parent

_RULES = {
    "widest": ("widest input", "the dtypes must agree or are promoted (rule 2)"),
    "in_place": ("first input keeps its dtype", "it writes into its first input (rule 3)"),
    "first_input": ("first input decides", "torch refuses mixed dtypes (rule 4)"),
    "scalars": ("as in torch, with numbers brought into range", "torch accepts the mixture (rule 9)"),
    "precision": ("fp32", "no kernel for the lower precision (rule 8)"),
    "none": ("left alone", "torch itself follows the first input (rule 4)"),
}
_PLACES = {(0,): "the first", (0, 1): "the first two", (0, 1, 2): "the first three", (0, 2): "the first and the third"}


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _places(operation: str) -> str:
    places = [builtin.place for builtin in builtins_named(operation)]
    composite = None if places else composite_named(operation)
    return _code(places if composite is None else [composite.place])


def _arguments(operation: str) -> str:
    castable = ops.arguments_of(operation)
    if castable is None:
        return "all"
    if ops.row_of(operation).castable is None:
        return "its tensors, except those that it writes into"
    everywhere = [position for position in castable.positions if position not in castable.off_cpu]
    if tuple(everywhere) not in _PLACES:
        raise ValueError(f"no words for the arguments of `{operation}`: {castable.positions}")
    words = _PLACES[tuple(everywhere)]
    if castable.raised:
        words += f"; {_code(castable.raised_keywords)} only up to fp32"
    return words + (f"; off the CPU also {_code(castable.off_cpu_keywords)}" if castable.off_cpu else "")


def _rule_and_why(operation: str, ruling: Ruling) -> tuple[str, str]:
    row = ops.row_of(operation)
    rule, why = _RULES[ruling.action]
    if row.unlisted == KERNEL_FOR_SOME:
        why = "no kernel for one of the lower precisions, or for some arguments: then fp32 (rule 8)"
    if row.sums is not None and row.unlisted != FIRST_INPUT:
        why = "torch itself follows the first input (rule 4)"
    if row.sums is not None:
        why += "; adds up in float32 (rule 8)"
    if ruling.saturate:
        why += "; numbers are brought into range (rule 9)"
    if ops.gives_view(operation) and ruling.action == "none":
        why = "returns a view: lists have no effect (rule 6)"
    return rule, why if row.castable is None else f"{why}; {row.castable.why}"


def _lists_of(preset: str) -> dict[str, str]:
    """Returns the list of each operation that a preset names, with the precision that it gives."""
    found = presets()[preset]
    given = {}
    for part, words in ((found.lower, "bf16"), (found.fp32, "fp32"), (found.widest, "widest")):
        for listed in part:
            resolved = operations_of(listed)
            for operation in () if resolved is None else resolved.exact + resolved.family:
                row = ops.row_of(operation)
                judged = ", where it makes a product" if row.makes_product is not None else ""
                judged = judged or (", its products" if row.products_inside else "")
                given[operation] = words + (judged if listed.products_only else "")
    return given


def operations_table() -> str:
    """Every operation that has a rule of its own or stands in a shipped list."""
    lists = [_lists_of(preset) for preset in ("hmp-default", "recommended", "torch-cpu")]
    named = {*ops.names_with_rules(), *(name for name, row in ops.rows().items() if row.castable is not None)}
    for name in shipped_names():
        resolved = ops.resolve(name)
        named.update(() if resolved is None else resolved.exact + resolved.family)
    rows = []
    for operation in sorted(named, key=lambda name: (name.strip("_"), name)):
        places = _places(operation)
        if places:
            rule, why = _rule_and_why(operation, ruling_without_list(operation))
            listed = (one.get(operation, "") for one in lists)
            rows.append((f"`{operation}`", *listed, rule, _arguments(operation), why, places))
    head = f"{len(rows)} operations, as torch {torch.__version__.partition('+')[0]} has them.\n\n"
    return head + _table(
        (
            *("operation", "default lists", "recommended lists", "`torch-cpu`", "rule when not listed"),
            *("arguments that may be cast", "why", "where reached"),
        ),
        rows,
    )


def spellings_table() -> str:
    """List names that are another operation's."""
    rows = []
    for name in sorted(ops.spellings()):
        resolved = ops.resolve(name)
        rows.append((f"`{name}`", "nothing in this torch" if resolved is None else _code(resolved.exact)))
    return _table(("name in a list", "operations"), rows)


def families_table() -> str:
    """Returns the table of list names that include other operations."""
    rows = []
    for name in sorted(name for name, row in ops.rows().items() if row.family):
        resolved = ops.resolve(name)
        if resolved is not None and resolved.family:
            rows.append((f"`{name}`", _code(resolved.family)))
    return _table(("name in a list", "also listed"), rows)


def parts_table() -> str:
    """Operations that torch computes as one, and the parts that lists name."""
    rows = []
    for whole in sorted(name for name, row in ops.rows().items() if row.parts):
        parts, row = ops.parts_of(whole), ops.row_of(whole)
        if parts and ops.resolve(whole) is not None:
            answers = (row.is_only_parts, row.parts_follow)
            rows.append((f"`{whole}`", _code(parts), *("yes" if one else "" for one in answers)))
    return _table(("operation", "its parts", "consists only of its parts", "parts follow it"), rows)


def presets_table() -> str:
    """The presets that are neither a Gaudi model's nor those of a release."""
    rows = []
    for preset in presets().values():
        if "/" not in preset.name and "@" not in preset.name:
            parts = (preset.lower, preset.fp32, preset.widest)
            files = dict.fromkeys(one.source for part in parts for one in part if one.line)
            rows.append((f"`{preset.name}`", preset.description, *(str(len(part)) for part in parts), _code(files)))
    return _table(("preset", "description", "lower", "fp32", "widest", "files in `lists/`"), rows)


def models_table() -> str:
    """The presets from Gaudi's model garden."""
    rows = [
        (f"`{preset.name}`", preset.description, str(len(preset.lower)), str(len(preset.fp32)))
        for preset in presets().values()
        if preset.name.startswith("gaudi/")
    ]
    return _table(("preset", "from", "lower", "fp32"), rows)


def reasons_table() -> str:
    """The reasons of the log and the report."""
    rows = []
    for word, reason in REASONS.items():
        rule = f"{reason.rule}: " if reason.rule.startswith("rule ") else ""
        rows.append((f"`{word}`", reason.description, rule + reason.when))
    return _table(("`reason`", "`description`", "when"), rows)


def options_table() -> str:
    """The options of `convert`."""
    rows = []
    for option in fields(Options):
        more, flag, shown = option.metadata["more"], option.metadata["flag"], option.default
        page = f"[{more.partition('.')[0]}]({more})" if more else ""
        default = f'"{shown}"' if isinstance(shown, str) else str(shown)
        text = option.metadata["text"].replace("``", "`")
        rows.append((f"`{option.name}`", f"`{default}`", text, f"`{flag.name}`" if flag else "", page))
    return _table(("option", "default", "meaning", "on the command line", "more"), rows)


#: The pages of docs/how-to that begin with scripts of examples/how_to.
SCRIPTS: dict[str, tuple[str, ...]] = {
    "accelerate": ("accelerate_loop",),
    "compile": ("compiled",),
    "ddp-and-fsdp": ("ddp_and_fsdp",),
    "diffusers": ("diffusers_ema",),
    "export": ("export",),
    "half-precision-checkpoints": ("half_precision",),
    "ignite": ("ignite_engine",),
    "lightning": ("lightning_trainer", "fabric_loop"),
    "notebook": ("notebook",),
    "sentence-transformers": ("sentence_transformers_trainer",),
    "serving": ("serving",),
    "trainer": ("trainer",),
    "trl-and-peft": ("trl_and_peft",),
}


def script(name: str) -> str:
    text = (DOCS.parent / "examples" / "how_to" / f"{name}.py").read_text("utf-8")
    return f"```python\n# {name}.py\n{text}```"


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "rules.md": {"operations": operations_table},
    "log.md": {"reasons": reasons_table},
    "reference.md": {"options": options_table},
    "lists.md": {
        "spellings": spellings_table,
        "families": families_table,
        "parts": parts_table,
        "presets": presets_table,
        "models": models_table,
    },
    **{f"how-to/{page}.md": {f"{name}.py": partial(script, name) for name in names} for page, names in SCRIPTS.items()},
}


def filled(text: str, tables: dict[str, Callable[[], str]]) -> str:
    """Returns the text with up-to-date tables."""
    for name, make in tables.items():
        begin, end = f"<!-- {name} table: begin -->", f"<!-- {name} table: end -->"
        block = f"{begin}\n\n{make()}\n\n{end}"
        text, count = re.subn(f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, block=block: block, text, flags=re.S)
        if count != 1:
            raise ValueError(f"there must be one pair of markers for the table `{name}`; found {count}")
    return text


def stale() -> dict[Path, str]:
    """The files that are not up to date, and what they should hold."""
    wanted = {DOCS / name: filled((DOCS / name).read_text("utf-8"), tables) for name, tables in TABLES.items()}
    return {path: text for path, text in wanted.items() if path.read_text("utf-8") != text}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a table is not up to date")
    options = parser.parse_args(arguments)
    found = stale()
    for path, text in found.items():
        if options.check:
            print(f"{path.name} is not up to date: run `python docs/make_rules_table.py`", file=sys.stderr)
        else:
            path.write_text(text, "utf-8")
    return 1 if options.check and found else 0


if __name__ == "__main__":
    raise SystemExit(main())
