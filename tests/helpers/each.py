"""Runs one test for many values as one case: values that fail together are no cases of their own."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from habana_mp import hmp
from habana_mp.patches.installation import installation

Values = Iterable[Any] | Callable[[], Iterable[Any]]


def _label(value: Any) -> str:
    if isinstance(value, types.LambdaType) and value.__name__ == "<lambda>":
        return f"the lambda of line {value.__code__.co_firstlineno}"
    return str(getattr(value, "__name__", value))[:80]


def each(names: str, values: Values, *, parts: int = 1) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a test as `pytest.mark.parametrize` does, but all values are one case, or `parts` cases.

    Every value that fails is reported. Before each of them torch is restored and the report is empty; if a fixture has
    converted, the test itself must not convert. Two decorators make the test run for each pair. A function that returns
    the values is called when the test runs.
    """
    arguments = [name.strip() for name in names.split(",")]

    def rows() -> Iterable[dict[str, Any]]:
        for value in values() if callable(values) else values:
            yield dict(zip(arguments, value if len(arguments) > 1 else (value,), strict=True))

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        body, dimensions = getattr(test, "runs_each", (test, []))
        dimensions = [(arguments, rows), *dimensions]

        @functools.wraps(body)
        def run(subtests: pytest.Subtests, part: int = 0, **fixtures: Any) -> None:
            combinations = itertools.product(*[of_one() for _, of_one in dimensions])
            policy = installation.policy if hmp.is_converted() else None
            for combination in itertools.islice(combinations, part, None, parts):
                given = {name: value for one in combination for name, value in one.items()}
                hmp.reset_report()
                with subtests.test(", ".join(map(_label, given.values()))):
                    body(**given, **fixtures)
                if policy is None:
                    hmp.restore()
                else:
                    assert installation.policy is policy, "a fixture has converted, so the test may not do it"

        given = {name for arguments, _ in dimensions for name in arguments}
        fixtures = [name for name in inspect.signature(body).parameters if name not in given]
        parameters = ["subtests", *["part"] * (parts > 1), *fixtures]
        vars(run)["runs_each"] = body, dimensions
        vars(run)["__signature__"] = inspect.Signature(
            [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in parameters]
        )
        return pytest.mark.parametrize("part", range(parts))(run) if parts > 1 else run

    return decorate
