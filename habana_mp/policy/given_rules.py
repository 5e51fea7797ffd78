"""``convert(rules=...)``: lines of lists as an argument, each with its precision."""

from __future__ import annotations

from collections.abc import Mapping

from habana_mp.common.errors import ListError
from habana_mp.policy.lists import RESULT, Listed, parse_line
from habana_mp.policy.module_rules import FROM_RULES, ModuleRule
from habana_mp.policy.precisions import PRECISIONS, dtype_meant
from habana_mp.policy.rules import NO_GIVEN_RULES, GivenRules


def given_rules(rules: Mapping[str, object] | None, lower: str) -> GivenRules:
    """Returns the checked form of the argument.

    Raises:
        ListError: something in it is wrong; the message has one line for each problem.
    """
    if rules is None:
        return NO_GIVEN_RULES
    if not isinstance(rules, Mapping):
        raise ListError(
            'rules: must be a dict of lines and precisions, as {"softmax @ encoder.**": "fp32"}; '
            f"got {type(rules).__name__}: {rules!r}"
        )
    lines: list[tuple[Listed, str]] = []
    problems: list[str] = []
    for key, value in rules.items():
        try:
            lines.append(_checked(key, value, lower))
        except ListError as error:
            problems.append(str(error))
    if problems:
        raise ListError("\n".join(problems))
    plain = tuple((listed, precision) for listed, precision in lines if not listed.pattern)
    in_modules = (ModuleRule(listed, precision, FROM_RULES) for listed, precision in lines if listed.pattern)
    return GivenRules(plain, tuple(in_modules))


def _checked(key: object, value: object, lower: str) -> tuple[Listed, str]:
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
    return listed, listed.precision(lower if dtype is None else PRECISIONS[dtype])
