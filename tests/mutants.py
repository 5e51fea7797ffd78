"""Changes single conditions and constants of the core, and reports which changes no test notices.

    python tests/mutants.py [rules] [weights] [host] [engine] [--only I/N] [--match TEXT] [--list]

Without arguments all four: every mutant of ``src/rules``, against its test in C++; a sample of ``src/weights``,
``src/host`` and ``src/engine``, the same one each time, against the tests in ``TESTS``. Each mutant is built in a
folder of its part in build/mutants and tested there, so parts can be tested at the same time; what is installed is not
touched. results.json there stores each result. It is valid while the changed file has no other change, even if the
tests change. So a run that was stopped goes on, and without that file each mutant is tested again.

A mutant that no test notices needs a test, or a line in tests/mutants.txt that says why none can notice it. The exit
status is 1 if one has neither, and if such a line is about a mutant that a test notices or that does not exist.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers import own_core

ROOT = own_core.ROOT
FOLDER = ROOT / "build" / "mutants"
EXPLAINED = Path(__file__).with_suffix(".txt")
#: Between the file, the mutant and the reason in a line of tests/mutants.txt.
SEPARATOR = " ## "

SAMPLE = 60
#: These tests, files or folders, run for a mutant in this folder of src/.
TESTS = {
    "weights": [
        "tests/weights",
        "tests/accelerator/test_cached_casts.py",
        "tests/with_torch/test_recurrent_modules.py",
        "tests/rules/test_state_of_lowered_results.py",
    ],
    "host": [
        "tests/host",
        "tests/install",
        "tests/libraries/test_exact_code.py",
        "tests/with_torch/test_saved_tensors.py",
        "tests/rules/test_casts_inside.py",
        "tests/rules/test_constructors.py",
        "tests/with_torch/test_func_transforms.py",
        "tests/weights/test_memory_of_weights.py",
        "tests/weights/test_cached_weights.py",
        "tests/memory/test_activation_buffers.py",
        "tests/kernels/test_kernels_in_processes.py",
        "tests/trust/test_forks.py",
    ],
    "engine": ["tests/rules", "tests/regions", "tests/steering", "tests/with_torch"],
}
NOT_MARKED = "not slow"

#: Whole tokens of C++. Preprocessor lines, comments and literals are one token each, so nothing in them is changed.
TOKEN = re.compile(
    r"""
      (?P<left> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n\\]|\\.|\\\n)* )
    | (?P<text> R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)+' )
    | (?P<number> \b(?:0[xX][0-9a-fA-F']+|[0-9][0-9']*(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)[uUlLfFzZ]* )
    | (?P<word> [A-Za-z_]\w* )
    | (?P<operator> <=>|<<=|>>=|\.\.\.|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[^\w\s] )
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

#: An operator between two values, which clang-format puts spaces around; so `vector<int>` and `T&& x` are left.
BETWEEN = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    ">": ">=",
    "<=": "<",
    ">=": ">",
    "&&": "||",
    "||": "&&",
    "+": "-",
    "-": "+",
}
WORDS = {"true": "false", "false": "true"}


@dataclass(frozen=True)
class Mutant:
    """One change: of these characters of a file to that text."""

    file: str
    begin: int
    end: int
    to: str
    line: int
    #: The line with the change written in it, `if (a {== => !=} b)`: what tests/mutants.txt names it by.
    marked: str

    @property
    def key(self) -> str:
        return f"{self.file}{SEPARATOR}{self.marked}"

    def applied(self, text: str) -> str:
        return text[: self.begin] + self.to + text[self.end :]


def mutants_of(file: str, text: str) -> Iterator[Mutant]:
    tokens = [found for found in TOKEN.finditer(text) if found.lastgroup != "left"]

    def mutant(begin: int, end: int, to: str) -> Mutant:
        first, last = text.rfind("\n", 0, begin) + 1, text.find("\n", end)
        change = f"{{{' '.join(text[begin:end].split())} => {to}}}"
        marked = " ".join(f"{text[first:begin]}{change}{text[end:last]}".split())
        return Mutant(file, begin, end, to, text.count("\n", 0, begin) + 1, marked)

    for index, token in enumerate(tokens):
        found, kind = token.group(), token.lastgroup
        before = tokens[index - 1].group() if index else ""
        spaced = text[token.start() - 1 : token.start()] in (" ", "\n") and text[token.end() : token.end() + 1] in (
            " ",
            "\n",
        )
        if kind == "operator" and found in BETWEEN and spaced:
            yield mutant(token.start(), token.end(), BETWEEN[found])
        elif found == "!":
            yield mutant(token.start(), token.end(), "")
        elif kind == "word" and found in WORDS:
            yield mutant(token.start(), token.end(), WORDS[found])
        elif kind == "number" and text[token.start() - 1] != "<" and re.fullmatch(r"[0-9]+[uUlLzZ]*", found):
            digits = found.rstrip("uUlLzZ")
            yield mutant(token.start(), token.end(), str(int(digits) + 1) + found[len(digits) :])
        elif found == "return" and before == ")":
            end = next(one.end() for one in tokens[index:] if one.group() == ";")
            yield mutant(token.start(), end, ";")


def all_mutants(folder: str, suffixes: tuple[str, ...], root: Path = ROOT) -> list[Mutant]:
    files = sorted(path for path in (root / "src" / folder).iterdir() if path.suffix in suffixes)
    return [one for path in files for one in mutants_of(str(path.relative_to(root)), path.read_text())]


def sample(folder: str, root: Path = ROOT) -> list[Mutant]:
    """Returns mutants of .cpp files only: a change of a header would recompile most of the core each time."""
    found = all_mutants(folder, (".cpp",), root)
    chosen = random.Random(f"mutants of {folder}").sample(found, min(SAMPLE, len(found)))
    return sorted(chosen, key=lambda one: (one.file, one.begin))


def run(command: list[str | Path], seconds: float, *, environment: dict[str, str] | None = None) -> str:
    """Returns "passed", or what went wrong. It ends all processes that the command started."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"no end after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return "passed"
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "line "))]
    return (lines or output.splitlines()[-1:] or [f"exit status {process.returncode}"])[0][:200]


class Rules:
    """A copy of src/rules and of its test, where each mutant is compiled anew: it takes seconds."""

    def __init__(self) -> None:
        self.tree = FOLDER / "rules" / "tree"
        shutil.rmtree(self.tree, ignore_errors=True)
        shutil.copytree(ROOT / "src", self.tree / "src")
        shutil.copy2(ROOT / "tests" / "rules" / "decisions.cpp", self.tree)
        self.mutants = all_mutants("rules", (".cpp", ".hpp"), self.tree)
        if (result := self.test()) != "passed":
            raise RuntimeError(f"the tests of src/rules fail without a mutant: {result}")

    def test(self) -> str:
        """Returns "passed", or what went wrong."""
        source, program = self.tree / "src", self.tree / "decisions"
        compiler = ["g++", "-std=c++20", "-O0", "-w", "-D_GLIBCXX_ASSERTIONS", f"-I{source}"]
        built = run([*compiler, self.tree / "decisions.cpp", "-o", program], 300)
        if built != "passed":
            return f"not compiled: {built}"
        return run([program], 60)


class Core:
    """A build of the core in which the one changed source is compiled anew, and the tests of a folder."""

    def __init__(self, folder: str) -> None:
        self.folder, self.tree, self.build = folder, FOLDER / folder / "tree", FOLDER / folder / "core"
        for one in (self.tree, self.build):  # a run that was stopped may have left a mutant in them
            shutil.rmtree(one, ignore_errors=True)
        for name in ("src", "lists"):
            shutil.copytree(ROOT / name, self.tree / name)
        shutil.copy2(ROOT / "CMakeLists.txt", self.tree)
        own_core.configure(self.build, "-DCMAKE_BUILD_TYPE=", "-DCMAKE_CXX_FLAGS=-O1 -DNDEBUG -w", source=self.tree)
        own_core.build(self.build)
        self.site = own_core.make_site(self.build)
        own_core.check_site(self.site)
        self.mutants = sample(folder, self.tree)
        begin = time.monotonic()
        result = self.pytest(7200)
        if result != "passed":
            raise RuntimeError(f"the tests of {self.folder} fail without a mutant: {result}")
        self.limit = 60 + 2 * (time.monotonic() - begin)

    def pytest(self, seconds: float) -> str:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", NOT_MARKED]
        environment = own_core.environment(self.site)
        environment.setdefault("OMP_NUM_THREADS", "1")
        return run([*command, "--timeout", "120", *TESTS[self.folder]], seconds, environment=environment)

    def test(self) -> str:
        """Returns "passed", or what went wrong."""
        try:
            own_core.build(self.build)
        except subprocess.CalledProcessError:
            return "not compiled"
        for core in self.build.glob("_core*.so"):
            shutil.copy2(core, self.site / "habana_mp")
        return self.pytest(self.limit)


def explanations() -> dict[str, str]:
    """Returns the reasons why no test can notice a mutant, by the mutants' keys."""
    found = {}
    for number, line in enumerate(EXPLAINED.read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            file, separator, rest = line.partition(SEPARATOR)
            marked, second, reason = rest.rpartition(SEPARATOR)
            if not (separator and second and reason.strip()):
                raise ValueError(
                    f"{EXPLAINED.name}:{number} must be FILE{SEPARATOR}MUTANT{SEPARATOR}REASON; got {line!r}"
                )
            found[f"{file}{SEPARATOR}{marked}"] = reason
    return found


class Results:
    """The result of each mutant. It is valid while the changed file is the same."""

    def __init__(self, tree: Path) -> None:
        self.tree, self.path = tree, tree.parent / "results.json"
        self.known = json.loads(self.path.read_text()) if self.path.exists() else {}

    def name(self, mutant: Mutant) -> str:
        content = hashlib.sha256((self.tree / mutant.file).read_bytes()).hexdigest()[:16]
        return f"{content} {mutant.begin} {mutant.key}"

    def get(self, mutant: Mutant, *, is_explained: bool) -> str | None:
        # A survivor is tested again: a test may have come.
        result = self.known.get(self.name(mutant))
        return None if result == "passed" and not is_explained else result

    def put(self, mutant: Mutant, result: str) -> None:
        self.known[self.name(mutant)] = result
        self.path.write_text(json.dumps(self.known, indent=1))


def run_part(name: str, options: argparse.Namespace, explained: dict[str, str]) -> int:
    """Tests the mutants of a part; returns how many survived without an explanation, or were noticed despite one."""
    part = Rules() if name == "rules" else Core(name)
    results = Results(part.tree)
    first, step = map(int, options.only.split("/"))
    mutants = [one for one in part.mutants[first::step] if options.match in one.key]
    counts: Counter[str] = Counter()
    wrong = 0
    for number, mutant in enumerate(mutants, 1):
        result = results.get(mutant, is_explained=mutant.key in explained)
        if result is None:
            path = part.tree / mutant.file
            original = path.read_text()
            path.write_text(mutant.applied(original))
            try:
                result = part.test()
            finally:
                path.write_text(original)
            results.put(mutant, result)
        if result == "passed":
            result = "survived, explained" if mutant.key in explained else "SURVIVED"
        kind = next(
            (one for one in ("SURVIVED", "survived, explained", "not compiled") if result.startswith(one)), "noticed"
        )
        counts[kind] += 1
        if kind == "SURVIVED" or ("explained" not in kind and mutant.key in explained):
            wrong += 1
            result += "" if kind == "SURVIVED" else f"; {EXPLAINED.name} has a line for it, which is not needed"
        print(f"{name} {number}/{len(mutants)} {mutant.file}:{mutant.line}: {mutant.marked}\n    {result}", flush=True)
    print(
        f"{name}: {len(mutants)} of {len(part.mutants)} mutants: "
        + ", ".join(f"{n} {kind}" for kind, n in counts.items())
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="rules, weights, host, engine; without one all")
    parser.add_argument(
        "--only", default="0/1", metavar="I/N", help="every Nth mutant, from number I on; the first is 0"
    )
    parser.add_argument("--match", default="", metavar="TEXT", help="mutants with this in their file or line")
    parser.add_argument("--list", action="store_true", help="show the mutants, test none")
    options = parser.parse_args()
    parts = options.parts or ["rules", *TESTS]
    if unknown := set(parts) - {"rules", *TESTS}:
        parser.error(f"parts are rules, {', '.join(TESTS)}; got {', '.join(sorted(unknown))}")
    if not (found := re.fullmatch(r"(\d+)/(\d+)", options.only)) or int(found[1]) >= int(found[2]):
        parser.error(f"--only must be I/N with numbers, I less than N; got {options.only!r}")
    explained = explanations()
    if options.list:
        for part in parts:
            for mutant in all_mutants("rules", (".cpp", ".hpp")) if part == "rules" else sample(part):
                print(f"{mutant.file}:{mutant.line}: {mutant.marked}")
        return 0
    wrong = sum(run_part(part, options, explained) for part in parts)
    existing = {one.key for part in ("rules", *TESTS) for one in all_mutants(part, (".cpp", ".hpp"))}
    missing = explained.keys() - existing
    for key in sorted(missing):
        print(f"{EXPLAINED.name} explains a mutant that does not exist: {key}")
    if wrong:
        print(f"{wrong} mutants need a test, a line in {EXPLAINED.name}, or no line there")
    return int(bool(wrong or missing))


if __name__ == "__main__":
    sys.exit(main())
