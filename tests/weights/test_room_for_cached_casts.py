"""Without a limit of the user's, cached casts take a share of the memory that is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from habana_mp import _core, hmp
from helpers.weights import cached

MB = 1 << 20

#: The size of a weight whose cast takes 16 MB. Casts of 32 MB in all are always cached.
SIDE = 8 << 10, 1 << 10
X = torch.ones(1, SIDE[1])

Files = Callable[..., None]
pytestmark = pytest.mark.usefixtures("counted")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    """Writes files of the system that the core reads in the place of the real ones."""

    def write(**texts: str | int) -> None:
        for name, text in texts.items():
            place = tmp_path / PLACES[name]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"{text}\n")
        _core.weights_set_root_of_memory_files(str(tmp_path))

    yield write
    _core.weights_set_root_of_memory_files("")


PLACES = {
    "meminfo": "proc/meminfo",
    "groups": "proc/self/cgroup",
    "limit": "sys/fs/cgroup/box/memory.max",
    "used": "sys/fs/cgroup/box/memory.current",
    "statistics": "sys/fs/cgroup/box/memory.stat",
    "inner_limit": "sys/fs/cgroup/box/inner/memory.max",
    "inner_used": "sys/fs/cgroup/box/inner/memory.current",
    "root_limit": "sys/fs/cgroup/memory.max",
    "root_used": "sys/fs/cgroup/memory.current",
    "old_limit": "sys/fs/cgroup/memory/box/memory.limit_in_bytes",
    "old_used": "sys/fs/cgroup/memory/box/memory.usage_in_bytes",
    "old_statistics": "sys/fs/cgroup/memory/box/memory.stat",
}


BOX = {"groups": "0::/box", "limit": 300 * MB, "used": 100 * MB}


def available(size: int) -> str:
    return f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:   {size // 1024} kB"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, 500 * MB),
        ({"groups": "0::/box", "limit": "max", "used": 7}, 500 * MB),
        (BOX, 200 * MB),
        ({**BOX, "used": 400 * MB}, 0),
        ({**BOX, "statistics": f"anon 5\ninactive_file {20 * MB}\nactive_file {30 * MB}"}, 250 * MB),
        # The group's own limit is the larger one.
        ({**BOX, "groups": "0::/box/inner", "inner_limit": 400 * MB, "inner_used": 1}, 200 * MB),
        # A container, whose group is the root of what it sees.
        ({"groups": "0::/host/path/of/it", "root_limit": 100 * MB, "root_used": 10 * MB}, 90 * MB),
        (
            {
                "groups": "5:cpu:/box\n4:hugetlb,memory:/box",
                "old_limit": 300 * MB,
                "old_used": 100 * MB,
                "old_statistics": f"inactive_file 1\ntotal_inactive_file {MB}\ntotal_active_file {2 * MB}",
            },
            203 * MB,
        ),
        # Version 1 without a limit has a number beyond all memory.
        ({"groups": "4:memory:/box", "old_limit": 2**63 - 4096, "old_used": 100 * MB}, 500 * MB),
        ({"groups": "no line of this form", "limit": 1, "used": 0}, 500 * MB),
    ],
)
def test_free_memory_is_what_the_system_and_the_control_group_leave(
    files: Files, texts: dict[str, str | int], expected: int
) -> None:
    files(meminfo=available(500 * MB), **texts)
    assert _core.weights_free_memory() == expected


def test_the_real_files_tell_of_free_memory() -> None:
    assert 0 < _core.weights_free_memory() < 2**50


def weights(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full(SIDE, 0.5), requires_grad=False) for _ in range(count)]


def use(given: list[nn.Parameter]) -> None:
    for one in given:
        assert torch.equal(F.linear(X, one), F.linear(X.bfloat16(), one.detach().clone().bfloat16()))


def test_cached_casts_take_half_of_the_free_memory(files: Files) -> None:
    files(meminfo=available(70 * MB))
    hmp.convert()
    given = weights(5)
    use(given)
    # With the fourth cast they would take 64 MB. Allowed are 59 MB, half of 70 MB and of the 48 MB that are cached.
    assert (cached().weights, cached().bytes) == (3, 48 * MB)
    assert cached().reasons == {"the limit was reached": 2}
    assert "not cached 2 times (the limit was reached: 2)\n" in str(hmp.report(show=False))


def test_a_weight_is_cached_once_there_is_memory(files: Files) -> None:
    files(meminfo=available(0))
    hmp.convert()
    given = weights(3)
    use(given)
    assert cached().weights == 2
    files(meminfo=available(500 * MB))
    for _ in range(4):
        use(given)
    assert cached().weights == 3


def test_a_cached_cast_stays_when_memory_gets_short(files: Files) -> None:
    files(meminfo=available(500 * MB))
    hmp.convert()
    given = weights(3)
    use(given)
    files(meminfo=available(0))
    use(given)
    assert (cached().weights, cached().reasons) == (3, {})


def test_a_limit_of_the_users_overrules_the_free_memory(files: Files) -> None:
    files(meminfo=available(0))
    hmp.convert(weight_cache_limit=10**9)
    use(given := weights(3))
    assert cached().weights == len(given)


def test_another_convert_reads_the_free_memory_anew(files: Files) -> None:
    files(meminfo=available(500 * MB))
    hmp.convert(weight_cache_limit=10**9)
    given = weights(3)
    hmp.convert()
    files(meminfo=available(0))
    use(given)
    assert cached().weights == 2
