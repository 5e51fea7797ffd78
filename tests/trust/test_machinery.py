"""What watches over the tests: mutants of the core, coverage of the core."""

from __future__ import annotations

import pytest

import coverage_of_core
import mutants


def marked(source: str) -> list[str]:
    return [one.marked for one in mutants.mutants_of("src/x.cpp", source)]


def test_conditions_and_constants_are_changed_one_by_one() -> None:
    assert marked("bool f(int a) { return a == 1 && !g(a) || a < 20; }\n") == [
        "bool f(int a) { return a {== => !=} 1 && !g(a) || a < 20; }",
        "bool f(int a) { return a == {1 => 2} && !g(a) || a < 20; }",
        "bool f(int a) { return a == 1 {&& => ||} !g(a) || a < 20; }",
        "bool f(int a) { return a == 1 && {! => }g(a) || a < 20; }",
        "bool f(int a) { return a == 1 && !g(a) {|| => &&} a < 20; }",
        "bool f(int a) { return a == 1 && !g(a) || a {< => <=} 20; }",
        "bool f(int a) { return a == 1 && !g(a) || a < {20 => 21}; }",
    ]


def test_an_early_return_is_removed_and_the_last_one_is_not() -> None:
    assert marked("int f(int a) {\n  if (a) return g(a);\n  return a;\n}\n") == ["if (a) {return g(a); => ;}"]


@pytest.mark.parametrize(
    "source",
    [
        "// a == 1 && true\n",
        "/* a == 1\n   && true */\n",
        "#define F(a) \\\n  (a == 1 && true)\n",
        "#include <a/1 < 2.hpp>\n",
        'const char* text = "a == 1 && true";\n',
        'const char* text = R"(a == 1\n && true)";\n',
        "const char letter = '1';\n",
        "std::vector<int> f(T&& x, const std::array<int, N>& y);\n",
        "using A = B<1>;\n",
    ],
)
def test_comments_literals_and_types_are_left(source: str) -> None:
    assert marked(source) == []


def test_a_mutant_is_applied_at_its_place_alone() -> None:
    source = "bool a = true;  // true\nbool b = true;\n"
    first, second = mutants.mutants_of("src/x.cpp", source)
    assert first.applied(source) == "bool a = false;  // true\nbool b = true;\n"
    assert second.applied(source) == "bool a = true;  // true\nbool b = false;\n"
    assert (first.line, second.line) == (1, 2)


def test_the_sample_is_the_same_each_time_and_of_the_sources_alone() -> None:
    found = mutants.sample("weights")
    assert found == mutants.sample("weights")
    assert len(found) == mutants.SAMPLE
    assert all(one.file.startswith("src/weights/") and one.file.endswith(".cpp") for one in found)


def test_every_explained_mutant_names_a_reason() -> None:
    assert all(reason.strip() for reason in mutants.explanations().values())


def test_lines_without_a_count_are_shown_as_ranges() -> None:
    assert coverage_of_core.ranges([3, 4, 5, 9, 11, 12]) == "3-5 9 11-12"
