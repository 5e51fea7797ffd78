"""The decision about one call, a function of facts: checked by a program that is compiled without Python and torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"


def test_each_row_of_the_table_decides_as_it_says(tmp_path: Path) -> None:
    """Compiled with nothing but the sources of that room to include."""
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror"]
    source, made = Path(__file__).with_name("decisions.cpp"), tmp_path / "decisions"
    subprocess.run([*compiler, "-I", SOURCES, source, "-o", made], check=True)
    done = subprocess.run([made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_rules_include_nothing_of_python_torch_or_another_folder() -> None:
    for source in (SOURCES / "rules").glob("*.?pp"):
        for line in source.read_text(encoding="utf-8").splitlines():
            included = line.removeprefix("#include ").strip()
            if line.startswith("#include"):
                assert included.startswith('"rules/') or included.strip("<>").replace("_", "").isalpha(), line
