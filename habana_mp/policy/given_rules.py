"""``convert(rules=...)``: lines of lists as an argument, each with its precision."""

from __future__ import annotations

from collections.abc import Mapping

from habana_mp.common.errors import ListError
from habana_mp.policy.lists import RESULT, parse_line
from habana_mp.policy.module_rules import FROM_RULES, ModuleRule
from habana_mp.policy.precisions import PRECISIONS, dtype_meant


def given_rules(rules: Mapping[str, object] | None, lower: str) -> tuple[ModuleRule, ...]:
    """Returns the checked form of the argument.

    Raises:
        ListError: something in it is wrong; the message has one line for each problem.
    """
    if rules is None:
        return ()
    if not isinstance(rules, Mapping):
        raise ListError(
            'rules: must be a dict of lines and precisions, as {"softmax @ encoder.**": "fp32"}; '
            f"got {type(rules).__name__}: {rules!r}"
        )
    lines: list[ModuleRule] = []
    problems: list[str] = []
    for key, value in rules.items():
        try:
            lines.append(_checked(key, value, lower))
        except ListError as error:
            problems.append(str(error))
    if problems:
        raise ListError("\n".join(problems))
    return tuple(lines)


def _checked(key: object, value: object, lower: str) -> ModuleRule:
    source = f"rules[{key!r}]"
    if not isinstance(key, str):
        raise ListError(f'{source}: a rule must be text, as "softmax @ encoder.**"; got {type(key).__name__}')
    operands, arrow, result = (
        (part.strip() for part in value.partition(RESULT)) if isinstance(value, str) else (value, "", "")
    )
    is_in_key = key.replace(" ", "").endswith(f"{RESULT}{result}")
    listed = parse_line(key if not arrow or is_in_key else f"{key} {arrow} {result}", source, 0)
    if listed.problem:
        raise ListError(f"{source}: {listed.problem}")
    is_lower = isinstance(operands, str) and operands.lower() == "lower"
    dtype = dtype_meant(operands)
    if not is_lower and dtype not in PRECISIONS:
        raise ListError(
            f'{source}: the precision must be "lower", "bf16", "fp16" or "fp32"; got {value!r}. For a product it may '
            'also be "lower -> fp32"'
        )
    return ModuleRule(listed, listed.precision(lower if dtype is None else PRECISIONS[dtype]), FROM_RULES)
