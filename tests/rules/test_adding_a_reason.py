"""A reason is one row, a trait one line, a tapped builtin one row: those of CONTRIBUTING.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from habana_mp import _core

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
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
    shutil.copytree(ROOT / "src", tmp_path / "src")
    shutil.copy(Path(__file__).with_name("decisions.cpp"), tmp_path)
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
    program = tmp_path / "program"
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-w", "-I", tmp_path / "src"]
    subprocess.run([*compiler, tmp_path / "program.cpp", "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["sparse: left alone", "list: without lowering"]


def test_the_builtin_of_the_page_is_tapped() -> None:
    ((path, may_be_missing),) = re.findall(r'^BUILTIN\(\w+, "(\w+)", (true|false)\)$', PAGE, re.MULTILINE)
    assert (path, may_be_missing == "true") in _core.paths_of_builtins
