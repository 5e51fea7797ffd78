"""An option of convert is one field: that of CONTRIBUTING.md is a parameter, checked, described, and a flag."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from habana_mp.policy import options
from habana_mp.policy.options import Options, takes_options
from habana_mp.run.options import add_arguments, options_given

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def options_with_the_pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the options with the field that the page shows."""
    (field,) = re.findall(
        r"^```python\n(\w+: bool = _option\(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    names = dict(vars(options))
    code = f"@dataclass(frozen=True, kw_only=True)\nclass More(Options):\n{textwrap.indent(field, '    ')}"
    exec(code, names)
    monkeypatch.setattr(options, "Options", names["More"])
    return names["More"]


def test_the_option_of_the_page_is_a_parameter_with_its_check_and_its_text(options_with_the_pages: Any) -> None:
    given: list[Options] = []

    @takes_options(options_with_the_pages)
    def convert(options: Options) -> None:
        """{options}"""
        given.append(options)

    assert inspect.signature(convert).parameters["rounds_up"].default is False
    assert "rounds_up: Rounds numbers up." in (convert.__doc__ or "")
    convert("o2", rounds_up=True)
    assert [(one.opt_level, one.rounds_up) for one in given] == [("O2", True)]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="`rounds_up` must be True or False; got 1"):
        convert(rounds_up=1)


@pytest.mark.usefixtures("options_with_the_pages")
def test_the_option_of_the_page_is_on_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, "run")
    given = parser.parse_args(["--rounds-up", "--preset", "torch-cpu", "--rule", "mm = fp32"])
    assert options_given(parser, given, "run") == {"preset": "torch-cpu", "rules": {"mm": "fp32"}, "rounds_up": True}
