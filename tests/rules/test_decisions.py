"""The decision about one call, a function of facts: checked by programs that are compiled without Python and torch. A
reason is one row, a trait one line, a tapped builtin one row: those of CONTRIBUTING.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from habana_mp import _core

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
CHECKS = Path(__file__).with_name("decisions.cpp")
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def run(source: Path, program: Path, sources: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Compiles a program with nothing but the core's sources to include, and runs it."""
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", *options]
    subprocess.run([*compiler, "-I", sources, source, "-o", program], check=True)
    return subprocess.run([program], capture_output=True, text=True, check=False)


def test_each_row_of_the_table_decides_as_it_says(tmp_path: Path) -> None:
    done = run(CHECKS, tmp_path / "decisions", SOURCES, "-Wall", "-Wextra", "-Werror")
    assert done.returncode == 0, done.stdout


def test_rules_include_nothing_of_python_torch_or_another_folder() -> None:
    for source in (SOURCES / "rules").glob("*.?pp"):
        for line in source.read_text(encoding="utf-8").splitlines():
            included = line.removeprefix("#include ").strip()
            if line.startswith("#include"):
                assert included.startswith('"rules/') or included.strip("<>").replace("_", "").isalpha(), line


PROGRAM = """
#include <cstdio>
#define main main_of_the_checks
#include "decisions.cpp"
#undef main
int main() {
  Rule rule{.action = Action::precision, .to = Kind::bf16, .is_product = true};
  Facts facts;
  const auto tell = [&] {
    const Plan plan = decide(rule, inputs_of({Kind::f32}), facts);
    std::printf("%s: %s\\n", row_of(plan.decision.reason).word, name(plan.way));
  };
  facts.sparse_tensor = true;
  tell();
  facts.sparse_tensor = false;
  rule.rounds_halves = true;
  tell();
}
"""


def test_the_reason_and_the_trait_of_the_page_decide(tmp_path: Path) -> None:
    row, line = re.findall(r"^```cpp\n(REASON.*)\n(if .*)\n```$", PAGE, re.MULTILINE)[0]
    trait, use = re.findall(r"^\| `src/rules/\w+\.hpp`.*\| `(.*)` \|$", PAGE, re.MULTILINE)
    shutil.copytree(SOURCES, tmp_path / "src")
    shutil.copy(CHECKS, tmp_path)
    for file, before, added in (
        ("decision.hpp", "  REASON(list,", f"  {row} \\\n"),
        ("rule.hpp", "  TRAIT(saturates) ", f"  {trait} \\\n"),
        ("decide.hpp", "  // Limits of torch.", f"  {line}\n  {use}\n"),
    ):
        path = tmp_path / "src" / "rules" / file
        text = path.read_text("utf-8")
        assert text.count(before) == 1
        path.write_text(text.replace(before, added + before), "utf-8")
    (tmp_path / "program.cpp").write_text(PROGRAM, "utf-8")
    done = run(tmp_path / "program.cpp", tmp_path / "program", tmp_path / "src", "-w")
    assert done.stdout.splitlines() == ["sparse: left alone", "list: without lowering"]


def test_the_builtin_of_the_page_is_tapped() -> None:
    ((path, may_be_missing),) = re.findall(r'^BUILTIN\(\w+, "(\w+)", (true|false)\)$', PAGE, re.MULTILINE)
    assert (path, may_be_missing == "true") in _core.paths_of_builtins
