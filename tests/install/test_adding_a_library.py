"""An exception for a library is one file: that of CONTRIBUTING.md is found by itself, and does what the page says."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from habana_mp import hmp
from habana_mp.common import ledger
from habana_mp.patches import libraries
from habana_mp.patches.all import Patches, all_patches
from habana_mp.patches.installation import installation

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
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
    (code,) = re.findall(r'^```python\n("""minimizers.*?)^```$', PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
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


@pytest.mark.usefixtures("library_of_the_page")
def test_the_library_may_be_imported_after_convert() -> None:
    hmp.convert(preset="recommended", within="everywhere")
    search = importlib.import_module("minimizers.search")
    assert search.LineSearch().step(torch.ones(2, 2)).dtype is torch.float32
