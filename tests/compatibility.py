"""Runs a chosen set of tests under each release of torch and of Python, and writes the README's table of them.

``python tests/compatibility.py 2.8.0 2.13.0`` takes each Python from 3.11 on that the machine has. For each it builds a
wheel, and for each release of torch an environment with that wheel, so that it tests what a user installs. A release
that cannot be installed here gets one line of output, and "not tried" in the table. Results stay in
build/compatibility: one run can take some releases, and a later run others. ``--write`` only writes the table again.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "compatibility"
RESULTS = FOLDER / "results.json"
README = ROOT / "README.md"
MARK = "<!-- compatibility table: {} -->"

#: The releases of Python that the table has.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: Tests that depend on torch: the rules of operations, the cached casts of weights, what converting changes and puts
#: back, and regions. They take five minutes on two cores.
TESTS = ("tests/rules", "tests/weights", "tests/install", "tests/regions")
#: Files that are about the sources and the build, whatever torch is there; the last one needs transformers.
LEFT_OUT = (
    "tests/rules/test_decisions.py",
    "tests/install/test_built_core.py",
    "tests/weights/test_after_saving.py",
)
NEEDED = (
    "pytest>=9", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "ml_dtypes>=0.4", "expecttest>=0.2",
    "safetensors>=0.4", "tensorboard>=2.18", "apache-tvm-ffi>=0.1.6", "setuptools",
)  # fmt: skip
#: The folders and files that tests read, without the package: beside it they would import it instead of the wheel.
COPIED = ("tests", "lists", "docs", "examples", "benchmarks", "src", "pyproject.toml", "CONTRIBUTING.md", "README.md")


class CannotTryError(Exception):
    """The reason why a release cannot be tried here, in one line."""


def find_python(release: str) -> Path | None:
    """Returns the interpreter of a release, from pyenv or from PATH."""
    known = sorted(Path.home().glob(f".pyenv/versions/{release}.*/bin/python"))
    on_path = [Path(path)] if (path := shutil.which(f"python{release}")) else []
    for python in [*reversed(known), *on_path]:
        # A shim of pyenv is there for releases that it does not run.
        answer = subprocess.run([python, "-c", "import sys, venv; print(*sys.version_info[:2], sep='.')"],
                              capture_output=True, text=True, check=False)  # fmt: skip
        if answer.stdout.strip() == release:
            return python
    return None


def run_quietly(command: Sequence[str | Path], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=FOLDER)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        error = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
        raise CannotTryError(f"{what} failed: {error}")


def build_wheel(python: Path, release: str) -> Path:
    folder = FOLDER / f"wheel-py{release}"
    shutil.rmtree(folder, ignore_errors=True)
    run_quietly([python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT], "building the wheel")
    return next(folder.glob("*.whl"))


def copy_tests(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)


def make_environment(python: Path, torch: str, wheel: Path, environment: Path) -> None:
    if not (environment / "bin" / "pytest").exists():
        run_quietly([python, "-m", "venv", environment], "making an environment")
        packages = [f"torch=={torch}", "numpy>=1.24", *NEEDED]
        run_quietly([environment / "bin" / "pip", "install", "--quiet", "--only-binary", "torch", *packages], "pip")
    again = ["install", "--quiet", "--no-deps", "--force-reinstall", wheel]
    run_quietly([environment / "bin" / "pip", *again], "installing the wheel")


def run_tests(environment: Path, workers: int) -> tuple[int, list[str]]:
    """Runs the tests; returns how many passed, and which failed."""
    log = Path(f"{environment}.log")
    project = environment / "project"
    copy_tests(project)
    at_once = ["-n", str(workers), "--dist", "worksteal"]
    left_out = [f"--ignore={path}" for path in LEFT_OUT]
    with log.open("w", encoding="utf-8") as output:
        subprocess.run(
            [environment / "bin" / "pytest", "-q", *at_once, "-m", "not slow", *left_out, *TESTS],
            stdout=output, stderr=subprocess.STDOUT, check=False, cwd=project,
            env=os.environ | {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}"},
        )  # fmt: skip
    return count(log)


def count(log: Path) -> tuple[int, list[str]]:
    """Returns from pytest's output how many tests passed, and which failed."""
    text = log.read_text("utf-8")
    passed = re.search(r"(?:^|[ ,])(\d+) passed\b", text.splitlines()[-1])
    if passed is None:
        raise CannotTryError(f"pytest did not come to its end: see {log}")
    return int(passed[1]), re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)


def read_results() -> dict[str, dict[str, object]]:
    return dict(json.loads(RESULTS.read_text("utf-8"))) if RESULTS.exists() else {}


def cell(result: dict[str, object]) -> str:
    failed = f", {result['failed']} failed" if result["failed"] else ""
    return f"{result['passed']} passed{failed}"


def cells_of(table: str) -> dict[str, str]:
    """Returns what a table says, by the releases of Python and torch: other machines have tried them."""
    rows = [[one.strip() for one in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    pythons = [one.removeprefix("Python ") for one in rows[0][1:]] if rows else []
    return {f"{python} {row[0]}": text for row in rows[2:] for python, text in zip(pythons, row[1:], strict=True)}


def table(results: dict[str, dict[str, object]], releases: Iterable[str], before: dict[str, str]) -> str:
    lines = [
        "| torch | " + " | ".join(f"Python {python}" for python in PYTHONS) + " |",
        "|---" * (len(PYTHONS) + 1) + "|",
    ]
    for torch in releases:
        keys = (f"{python} {torch}" for python in PYTHONS)
        cells = (cell(results[one]) if one in results else before.get(one, "not tried") for one in keys)
        lines.append(f"| {torch} | " + " | ".join(cells) + " |")
    dates = sorted(str(result["date"]) for result in results.values())
    when = f"\n\nRun on {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "") if dates else ""
    return "\n".join(lines) + when + (", on x86-64." if dates else "")


def write_table(releases: Iterable[str]) -> None:
    begin, end = MARK.format("begin"), MARK.format("end")
    text = README.read_text("utf-8")
    before, _, rest = text.partition(begin)
    written, _, after = rest.partition(end)
    if not after:
        raise SystemExit(f"{README.name} has no {begin} and {end}")
    README.write_text(f"{before}{begin}\n{table(read_results(), releases, cells_of(written))}\n{end}{after}", "utf-8")


def try_python(release: str, torches: Sequence[str], options: argparse.Namespace) -> None:
    python = find_python(release)
    if python is None:
        raise CannotTryError("this machine does not have it")
    wheel = build_wheel(python, release)
    for torch in torches:
        environment = FOLDER / f"py{release}-torch{torch}"
        line = f"Python {release}, torch {torch}: "
        try:
            make_environment(python, torch, wheel, environment)
            passed, failed = run_tests(environment, options.workers)
        except CannotTryError as error:
            print(f"{line}not tried: {error}", flush=True)
        else:
            result = {"passed": passed, "failed": len(failed), "date": datetime.date.today().isoformat()}
            RESULTS.write_text(json.dumps(read_results() | {f"{release} {torch}": result}, indent=1), "utf-8")
            print("\n  ".join([line + cell(result), *failed]), flush=True)
        if not options.keep:
            shutil.rmtree(environment, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("torch", nargs="+", help="the releases of torch that the table has")
    parser.add_argument("--only", nargs="+", metavar="TORCH", help="run these of them")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, choices=PYTHONS, help="run these releases of Python")
    parser.add_argument("--workers", type=int, default=2, help="tests that run at once")
    parser.add_argument("--keep", action="store_true", help="keep the environments, of up to 7 GB each")
    parser.add_argument("--write", action="store_true", help="run nothing, write the table from kept results")
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for release in () if options.write else options.pythons:
        try:
            try_python(release, options.only or options.torch, options)
        except CannotTryError as error:
            print(f"Python {release}: not tried: {error}", flush=True)
    write_table(options.torch)
    results = read_results()
    return 1 if any(result["failed"] for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
