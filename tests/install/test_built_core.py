"""What is built: its version has one source, and the core needs nothing but the system's own libraries."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import compatibility
import habana_mp
from habana_mp import _core
from wheels import check

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_version_has_one_source() -> None:
    assert "version" not in PYPROJECT["project"]
    assert check.version() == habana_mp.__version__ == importlib.metadata.version("habana-mp")
    others = ("pyproject.toml", "CMakeLists.txt", "Makefile", "CITATION.cff", "SECURITY.md")
    assert [name for name in others if habana_mp.__version__ in (ROOT / name).read_text("utf-8")] == []


def test_the_core_needs_only_libraries_that_every_linux_has() -> None:
    needed = check.needed_libraries(Path(_core.__file__))
    assert "libstdc++.so.6" in needed
    assert check.unexpected_libraries(Path(_core.__file__)) == []


def test_a_library_that_not_every_linux_has_is_found() -> None:
    (module,) = Path(torch.__file__).parent.glob("_C.*.so")
    assert any(name.startswith("libtorch") for name in check.unexpected_libraries(module))


def test_the_core_needs_no_function_that_manylinux_lacks() -> None:
    assert check.missing_in_manylinux(Path(_core.__file__)) == []


def test_a_path_of_the_machine_that_built_a_module_is_found() -> None:
    assert check.paths_inside(b"\0/tmp/build-x1/src/log/log.cpp\0src/log/log.cpp\0/dev/stderr\0") == [
        "/tmp/build-x1/src/log/log.cpp"
    ]


@pytest.mark.parametrize("name", ["tests/conftest.py", "habana_mp/__pycache__/cli.cpython-311.pyc", "lists/a.txt"])
def test_a_wheel_holds_the_package_only(name: str) -> None:
    assert not check.belongs_in_wheel(name)
    assert check.belongs_in_wheel("habana_mp/cli.py")


def test_the_makefile_installs_what_a_build_requires() -> None:
    (line,) = re.findall(r"^BUILD_REQUIRES := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert re.findall(r'"(.*?)"', line) == PYPROJECT["build-system"]["requires"]


def test_the_supported_releases_of_python_are_the_same_everywhere() -> None:
    named = [f"Programming Language :: Python :: {release}" for release in compatibility.PYTHONS]
    assert set(named) <= set(PYPROJECT["project"]["classifiers"])
    built = PYPROJECT["tool"]["cibuildwheel"]["build"].split()
    assert built == [f"cp{release.replace('.', '')}-*" for release in compatibility.PYTHONS]


def test_the_table_of_compatibility_says_what_was_not_tried() -> None:
    ran = {"3.11 2.8.0": {"passed": 12, "failed": 1, "date": "2026-01-02"}}
    head, _, old, new = compatibility.table(ran, ["2.8.0", "2.13.0"], {"3.12 2.13.0": "7 passed"}).splitlines()[:4]
    assert head.startswith("| torch | Python 3.11 |")
    assert old == "| 2.8.0 | 12 passed, 1 failed | not tried | not tried | not tried |"
    assert new == "| 2.13.0 | not tried | 7 passed | not tried | not tried |"


def test_the_source_folder_says_that_it_has_no_core(tmp_path: Path) -> None:
    package = Path(habana_mp.__file__).parent
    shutil.copytree(package, tmp_path / "habana_mp", ignore=shutil.ignore_patterns("_core*", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import habana_mp"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert f"ImportError: habana_mp in {tmp_path / 'habana_mp'} has no built core" in done.stderr
