"""In a sandbox that refuses system calls, and ends processes for some, all is as without one."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from habana_mp.common import ledger
from helpers import forked
from helpers.processes import TESTS, in_threads, run_script

#: The effects of a refused call (:mod:`helpers.sandboxed`).
REFUSALS = ("EPERM", "ENOSYS", "KILL")

PROGRAM = """
import json, torch
from habana_mp import _core, hmp
from habana_mp.common import ledger

told = {}
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(200, 136), torch.nn.GELU(), torch.nn.Linear(136, 72), torch.nn.LayerNorm(72), torch.nn.Linear(72, 8)
)
weights = list(model.parameters())
x = torch.randn(24, 200)
hmp.convert(preset="recommended", rules={"linear @ 4": "bf16 -> fp32"}, report="lines")
for _ in range(3):
    model(x).pow(2).mean().backward()
    with torch.no_grad():
        for weight in weights:
            weight -= weight.grad
            weight.grad = None
with torch.no_grad():
    for _ in range(9):
        result = model(x[:5])
told["bits"] = [one.detach().flatten().view(torch.int32).tolist() for one in (result, *weights)]
report = hmp.report(show=False)
told["cached"] = report.weights.hits, report.weights.refreshes, report.weights.weights
told["products"] = report.weights.products
told["calls"] = sorted((row.operation, row.precision, row.calls, row.casts) for row in report.rows)
told["states"] = {row[0]: row[-1] for row in (*_core.assumptions(), *ledger.rows())}
told["findings"] = [one.text for one in report.findings]
print(json.dumps(told))
"""


def in_sandbox(*words: str, refused_with: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python`` with these words under a filter of system calls."""
    environment = forked.environment_with(REFUSED_WITH=refused_with)
    return forked.run(["-m", "helpers.sandboxed", *words], cwd=TESTS, environment=environment)


def told_by(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.fixture(scope="module")
def without() -> dict[str, Any]:
    """The program's results without a sandbox."""
    return told_by(run_script(PROGRAM))


@pytest.mark.parametrize("refused_with", REFUSALS)
def test_no_assumption_fails_and_each_call_is_the_same(without: dict[str, Any], refused_with: str) -> None:
    told = told_by(in_sandbox("-c", PROGRAM, refused_with=refused_with))
    assert told == without
    assert told["cached"][0] >= 8 * 3


def test_the_doctor_finds_nothing_amiss(without: dict[str, Any]) -> None:
    done = in_sandbox("-m", "habana_mp", "doctor", "--assumptions", refused_with="EPERM")
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" ")]
    failed = {name for name, state in lines if state.startswith(ledger.DOES_NOT_HOLD)}
    assert "torch.tensor-layout" in dict(lines)
    assert failed <= {name for name, state in without["states"].items() if state.startswith(ledger.DOES_NOT_HOLD)}


def test_the_sandbox_refuses_what_it_should() -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.process_vm_readv(os.getpid(), None, 0, None, 0, 0), ctypes.get_errno())
"""
    assert run_script(code).stdout == "0 0\n"
    ends = [in_sandbox("-c", code, refused_with=one) for one in REFUSALS]
    assert [(one.stdout, one.returncode) for one in ends] == [("-1 1\n", 0), ("-1 38\n", 0), ("", -31)]


def test_tests_of_weights_pass() -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--part", "3/16")
    done = in_sandbox(*words, str(TESTS / "weights" / "test_cached_weights.py"), refused_with="ENOSYS")
    assert done.returncode == 0, done.stdout


# ---- memory that may be unmapped -------------------------------------------------------------------------------------

SIZE = 192
PAGE = mmap.PAGESIZE

MODULE = f"""
#include "host/finding.hpp"

extern "C" bool read_all(const char* const* addresses, std::size_t count, char* to) {{
  const auto found = habana_mp::host::read_each<{SIZE}>(count, [&](std::size_t i) {{ return addresses[i]; }});
  if (found) std::memcpy(to, found->data(), count * {SIZE});
  return found.has_value();
}}
"""

#: Returns the memory at each of these addresses, or None.
Reader = Callable[[list[int]], bytes | None]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    folder = tmp_path_factory.mktemp("reads")
    (folder / "reads.cpp").write_text(MODULE, "utf-8")
    flags = ["-std=c++20", "-O1", "-shared", "-fPIC", f"-I{sysconfig.get_path('include')}", f"-I{TESTS.parent / 'src'}"]
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, *flags, "reads.cpp", "-o", "reads.so"], cwd=folder, check=True, timeout=300)
    library = ctypes.CDLL(str(folder / "reads.so"))  # calls it without the GIL
    library.read_all.restype = ctypes.c_bool

    def read_all(addresses: list[int]) -> bytes | None:
        to = ctypes.create_string_buffer(SIZE * len(addresses))
        given = (ctypes.c_void_p * len(addresses))(*addresses)
        return to.raw if library.read_all(given, ctypes.c_size_t(len(addresses)), to) else None

    return read_all


@pytest.fixture
def pages() -> Iterator[int]:
    """The address of two pages: one with numbers, and one that cannot be read."""
    memory = mmap.mmap(-1, 2 * PAGE)
    memory[:PAGE] = bytes(i * 7 % 251 for i in range(PAGE))
    view = ctypes.c_char.from_buffer(memory)
    address, protect = ctypes.addressof(view), ctypes.CDLL(None).mprotect
    assert protect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), 0) == 0
    yield address
    protect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), mmap.PROT_READ | mmap.PROT_WRITE)
    del view
    memory.close()


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_memory_that_is_there_is_read_however_much_it_is(read: Reader, pages: int) -> None:
    places = [i * 13 % (PAGE - SIZE + 1) for i in range(2000)]  # several times what a pipe holds
    assert read([pages + one for one in places]) == b"".join(ctypes.string_at(pages + one, SIZE) for one in places)


def test_memory_that_is_missing_in_whole_or_in_part_is_not_read_and_leaves_nothing_behind(
    read: Reader, pages: int
) -> None:
    before = descriptors()
    last = pages + PAGE - SIZE
    for missing in (0, 8, last + 1, last + SIZE // 2, pages + PAGE - 1, pages + PAGE, (1 << 47) - SIZE, (1 << 64) - 8):
        assert read([pages, missing]) is None, hex(missing)
        assert read([last]) == ctypes.string_at(last, SIZE)
    assert descriptors() == before


def test_threads_and_forked_processes_read_their_own(read: Reader, pages: int) -> None:
    right = []

    def work(number: int) -> None:
        place = pages + 100 * number
        given, expected = [place] * 50, ctypes.string_at(place, SIZE) * 50
        right.append(all(read(given) == expected and read([place, 8]) is None for _ in range(50)))
        child = os.fork()
        if child == 0:
            os._exit(read(given) != expected)
        right.append(os.waitpid(child, 0)[1] == 0)

    in_threads(work)
    assert right == [True] * 8


def test_without_a_free_descriptor_nothing_is_read(read: Reader, pages: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert read([pages]) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert read([pages]) == ctypes.string_at(pages, SIZE)


# ---- where casts cannot be cached ------------------------------------------------------------------------------------

UNCACHED = """
import resource
import torch
from habana_mp import _core, hmp

limits = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, limits[1]))
_core.bind_torch()
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
hmp.convert(preset="recommended", report="modules", weight_cache={cache})
with torch.no_grad():
    for _ in range(20):
        model(torch.ones(2, 64))
report = hmp.report(show=False)
told = [one for one in report.words if "weight" in one]
hmp.restore()
print(report.weights.hits, [one.kind for one in report.findings if "weight" in one.kind], told)
"""


def test_a_report_says_once_why_no_cast_of_a_weight_is_cached() -> None:
    done = run_script(UNCACHED.format(limit=0, cache=True))
    assert done.stdout == (
        "0 ['uncached weight'] ['No cast of a weight is cached here: it could not be found out how torch stores a "
        "tensor. So each call casts its weight, and takes longer; `habana-mp doctor --assumptions` says more']\n"
    ), done.stderr


def test_a_report_finds_nothing_odd_in_weights_that_are_cast_in_each_call_as_the_user_wants() -> None:
    done = run_script(UNCACHED.format(limit="limits[0]", cache=False))
    assert done.stdout == "0 [] []\n", done.stderr
