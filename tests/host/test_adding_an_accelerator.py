"""An accelerator is one folder: that of CONTRIBUTING.md compiles, and does what the page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.compiling import needs_compiler

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
(SECTION,) = re.findall(r"^## Add an accelerator\n.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)


def block(kind: str) -> str:
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
    return found


def write_folder(source: Path) -> Path:
    (folder_name,) = re.findall(r"Its folder,\s`(src/accel/\w+)/`", SECTION)
    folder = source / folder_name
    folder.mkdir(parents=True)
    (folder / "sources.cmake").write_text(block("cmake"), "utf-8")
    (folder / f"{folder.name}.cpp").write_text(block("cpp"), "utf-8")
    return folder


@needs_compiler
def test_the_accelerator_of_the_page_compiles_without_a_warning(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (commands,) = ROOT.glob("build/*/compile_commands.json")
    like = next(one for one in json.loads(commands.read_text("utf-8")) if one["file"].endswith("plug.cpp"))
    options = [one for one in like["command"].split() if not one.startswith(("-M", "-o", "-c")) and ".cpp" not in one]
    done = subprocess.run(
        [*options, "-fsyntax-only", str(folder / f"{folder.name}.cpp")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_accelerator_of_the_page_builds_and_computes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("build", "dist", ".*", "tests", "benchmarks", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    shutil.rmtree(source / "src" / "accel" / "products")
    write_folder(source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path / "installed"), str(source)], check=True)
    code = (
        "import torch\n"
        "from habana_mp import _core, hmp\n"
        "hmp.convert(report='lines')\n"
        "for rows in 0, 4:\n"
        "    with torch.no_grad():\n"
        "        print(torch.mm(torch.ones(rows, 4), torch.nn.Parameter(torch.ones(4, 4))).dtype)\n"
        "print(_core.accelerators)\n"
    )
    # Without the site's files: those of an editable build would take it for their own.
    paths = [str(tmp_path / "installed"), *(one for one in sys.path if one.endswith("site-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [*["torch.bfloat16"] * 2, "('blocks', 'buffers', 'empty')"]
