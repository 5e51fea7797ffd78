"""What CONTRIBUTING.md shows for an option, a finding, a preset and a library is all that each of them needs."""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from habana_mp import Row, hmp
from habana_mp.common import ledger
from habana_mp.patches import libraries
from habana_mp.patches.all import Patches, all_patches
from habana_mp.patches.installation import installation
from habana_mp.policy import options, presets
from habana_mp.policy.options import Options, takes_options
from habana_mp.reporting import findings
from habana_mp.reporting.report import Report
from habana_mp.run.options import options_given, parsed, script_parser

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")


def block(pattern: str) -> str:
    """Returns the one block of code that begins so."""
    (code,) = re.findall(rf"^```{pattern}^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


# ---- an option of convert is one field: a parameter, checked, described, and a flag ----------------------------------


@pytest.fixture
def options_with_the_pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class of the options with the field that the page shows."""
    field = block(r"python\n(\w+: bool = _option\(.*?)")
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
    assert [(one.opt_level, one.rounds_up) for one in given] == [("O2", True)]  # type: ignore[attr-defined]  # new here
    with pytest.raises(ValueError, match="`rounds_up` must be True or False; got 1"):
        convert(rounds_up=1)


@pytest.mark.usefixtures("options_with_the_pages")
def test_the_option_of_the_page_is_on_the_command_line() -> None:
    parser = script_parser("run", "", "")
    given, _ = parsed(parser, ["--rounds-up", "--preset", "torch-cpu", "--rule", "mm = fp32", __file__])
    assert options_given(parser, given, "run") == {"preset": "torch-cpu", "rules": {"mm": "fp32"}, "rounds_up": True}


# ---- a kind of finding is one entry ----------------------------------------------------------------------------------


def test_the_finding_of_the_page_names_the_operation_and_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    (kind,) = eval(block(r"python\n(_Kind\(.*?)"), dict(vars(findings)))
    rare = Row("exp", "bf16", calls=1_000, casts=0, bytes=0, reason="list")
    often = Row("mul", "bf16", calls=2_000_000, casts=0, bytes=0, reason="list")

    def found() -> list[str]:
        return [line for line in Report((often, rare)).words if "Use larger batches" in line]

    assert not found()
    monkeypatch.setattr(findings, "_KINDS", (*findings._KINDS, kind))
    (line,) = found()
    assert line.startswith("mul is called often (2,000,000 calls).")


# ---- a preset is one file --------------------------------------------------------------------------------------------


@pytest.fixture
def preset_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its name, while its file lies among the others."""
    (name,) = re.findall(r'is `preset="(.*?)"`', PAGE)
    lists = tmp_path / "lists"
    shutil.copytree(presets.DIRECTORY, lists)
    (lists / "presets" / f"{name}.json").write_text(block(r"json\n(.*?)"), "utf-8")
    monkeypatch.setattr(presets, "DIRECTORY", lists)
    caches = presets.presets, presets.shipped_names
    for one in caches:
        one.cache_clear()
    yield name
    for one in caches:
        one.cache_clear()


def test_the_preset_of_the_page_says_what_runs_how(preset_of_the_page: str) -> None:
    hmp.convert(preset=preset_of_the_page)
    x = torch.ones(2, 2)
    assert torch.matmul(x, x).dtype is torch.bfloat16
    assert torch.mean(x.bfloat16()).dtype is torch.float32
    assert torch.nn.functional.mse_loss(x.bfloat16(), x.bfloat16()).dtype is torch.float32
    assert torch.mm(x, x).dtype is torch.float32
    shipped = list((presets.DIRECTORY / "presets").glob("*.json"))
    assert list(presets.presets()).index(preset_of_the_page) == len(shipped) - 1  # without an order it is the last


# ---- an exception for a library is one file --------------------------------------------------------------------------


LIBRARY = """
import torch

def minimize(function, x):
    return function(x), torch.mm(x, x)

class LineSearch:
    def step(self, x):
        return torch.mm(x, x)

def other(x):
    return torch.mm(x, x)
"""


@pytest.fixture
def library_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library can be imported, and the file of the page is beside those of other libraries."""
    code = block(r'python\n("""minimizers.*?)')
    (tmp_path / "minimizers").mkdir()
    (tmp_path / "minimizers" / "__init__.py").write_text("", "utf-8")
    (tmp_path / "minimizers" / "search.py").write_text(LIBRARY, "utf-8")
    (tmp_path / "libraries").mkdir()
    (tmp_path / "libraries" / "minimizers.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(libraries, "__path__", [*libraries.__path__, str(tmp_path / "libraries")])
    declared = dict(ledger._declared)
    monkeypatch.setattr(installation, "_patches", Patches(all_patches()))
    yield
    hmp.restore()
    for name in [*ledger._declared.keys() - declared.keys()]:
        del ledger._declared[name], ledger._found[name]
    for name in [name for name in sys.modules if name.partition(".")[0] == "minimizers"]:
        del sys.modules[name]
    sys.modules.pop(f"{libraries.__name__}.minimizers", None)


@pytest.mark.usefixtures("library_of_the_page")
def test_the_functions_of_the_page_run_in_float32_and_others_are_lowered() -> None:
    search = importlib.import_module("minimizers.search")
    hmp.convert(preset="recommended", within="everywhere")
    x = torch.ones(2, 2)
    assert [one.dtype for one in search.minimize(lambda x: x @ x, x)] == [torch.float32, torch.float32]
    assert search.LineSearch().step(x).dtype is torch.float32
    assert search.other(x).dtype is torch.bfloat16
    hmp.restore()
    assert search.minimize.__code__.co_filename == search.__file__
