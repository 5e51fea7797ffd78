"""Runs tests on a core with counters, and reports which lines of ``src/`` ran.

    python tests/coverage_of_core.py [--report-only | --add] [--least PERCENT] [PYTEST'S ARGUMENTS]

The core is built in build/coverage; what is installed is not touched. Processes that tests start count too, but not
those that a signal ends. ``--add`` adds to the counts of former runs, ``--report-only`` runs no tests. Files that this
processor cannot execute are left out and named. The lines without a count are listed in build/coverage/uncovered.txt.
The exit status is 1 where fewer than ``--least`` percent ran.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from helpers import own_core

FOLDER = own_core.ROOT / "build" / "coverage"
SOURCES = own_core.ROOT / "src"

#: What a file needs of the processor, as `habana_mp._core.kernels_paths()` names it.
NEEDS = {
    "kernels/cast_avx2.cpp": "avx2",
    "kernels/cast_avx512.cpp": "avx512",
    "kernels/avx512.hpp": "avx512",
    "kernels/product_dots.cpp": "avx512",
    "kernels/cast_avx512bf16.cpp": "avx512_bf16",
    "kernels/product_avx512bf16.cpp": "avx512_bf16",
    "kernels/product_as_tiles.cpp": "avx512_bf16",
    "kernels/product_amx.cpp": "amx",
    "kernels/cast_neon.cpp": "neon",
    "kernels/neon.hpp": "neon",
    "kernels/cast_neon_bf16.cpp": "neon_bf16",
}

#: A process that ends by `os._exit` writes its counts first: forked children, and workers of pytest-xdist.
WRITES_COUNTS = """

import ctypes
import os

_exit = os._exit


def exit_with_counts(status):
    core = sys.modules.get("habana_mp._core")
    if core is not None:
        ctypes.CDLL(core.__file__).habana_mp_write_counts()
    _exit(status)


os._exit = exit_with_counts
"""

#: Counts of a file's lines, by number.
Counts = dict[int, int]


def build() -> Path:
    own_core.configure(FOLDER, "-DHABANA_MP_COVERAGE=ON", "-DCMAKE_BUILD_TYPE=")
    own_core.build(FOLDER)
    site = own_core.make_site(FOLDER, own_core.IMPORTER + WRITES_COUNTS)
    own_core.check_site(site)
    return site


def usable(site: Path) -> list[str]:
    code = "from habana_mp import _core\nprint(*_core.kernels_paths())"
    return subprocess.check_output([sys.executable, "-c", code], env=own_core.environment(site), text=True).split()


def counts_of_lines() -> dict[str, Counts]:
    """For each file of ``src/``: how often each line that has code ran, in all objects that contain it."""
    counted: dict[str, Counts] = defaultdict(lambda: defaultdict(int))
    notes = [path for path in FOLDER.rglob("*.gcno") if path.with_suffix(".gcda").exists()]
    command = [own_core.tool("gcov"), "--json-format", "--stdout", *notes]
    output = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True).stdout
    for document in output.splitlines():
        for file in json.loads(document)["files"]:
            path = (FOLDER / file["file"]).resolve()
            if not path.is_relative_to(SOURCES):
                continue
            of_file = counted[str(path.relative_to(SOURCES))]
            for line in file["lines"]:
                of_file[line["line_number"]] += line["count"]
    return counted


def ranges(lines: list[int]) -> str:
    """``3-5 9`` for 3, 4, 5 and 9."""
    found: list[list[int]] = []
    for line in lines:
        if found and line == found[-1][1] + 1:
            found[-1][1] = line
        else:
            found.append([line, line])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def write_uncovered(counted: dict[str, Counts], path: Path) -> None:
    with open(path, "w") as out:
        for file, counts in sorted(counted.items()):
            text = (SOURCES / file).read_text().splitlines()
            for number in sorted(line for line, count in counts.items() if not count):
                print(f"src/{file}:{number}: {text[number - 1].strip()}", file=out)


def report(counted: dict[str, Counts], paths: list[str], least: float) -> bool:
    """Prints the table; true where enough lines ran."""
    left_out = {file: NEEDS[file] for file in counted if file in NEEDS and NEEDS[file] not in paths}
    can_run = {file: counts for file, counts in counted.items() if counts and file not in left_out}
    print("| file | lines | run | percent | without a count |\n|---|---:|---:|---:|---|")

    def row(title: str, counts: Counts, without: str = "") -> float:
        ran = sum(count > 0 for count in counts.values())
        percent = 100 * ran / len(counts)
        print(f"| {title} | {len(counts)} | {ran} | {percent:.1f} | {without} |")
        return percent

    for file, of_file in sorted(can_run.items()):
        row(f"src/{file}", of_file, ranges(sorted(line for line, count in of_file.items() if not count)))
    every = enumerate(count for of_file in can_run.values() for count in of_file.values())
    percent = row("**all**", dict(every))
    for file, need in sorted(left_out.items()):
        print(f"left out: src/{file} needs {need}, which this processor does not have")
    write_uncovered(can_run, FOLDER / "uncovered.txt")
    if percent < least:
        print(
            f"{percent:.1f} % of the lines ran, fewer than {least:g} %; build/coverage/uncovered.txt lists the others"
        )
    return percent >= least


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--report-only", action="store_true", help="report the counts of former runs")
    parser.add_argument("--add", action="store_true", help="keep the counts of former runs")
    parser.add_argument("--least", type=float, default=95.0, metavar="PERCENT", help="of the lines must run")
    options, arguments = parser.parse_known_args()
    passed = True
    if options.report_only:
        site = FOLDER / "site"
    else:
        site = build()
        if not options.add:
            for counts in FOLDER.rglob("*.gcda"):
                counts.unlink()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        passed = subprocess.run(command, cwd=own_core.ROOT, env=own_core.environment(site), check=False).returncode == 0
    enough = report(counts_of_lines(), usable(site), options.least)
    if not passed:
        print("a test failed")
    return 0 if passed and enough else 1


if __name__ == "__main__":
    sys.exit(main())
