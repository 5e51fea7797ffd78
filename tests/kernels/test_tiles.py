"""Products in the order of AMX's tiles, beside a plain loop, as they were compiled: where the processor has no tiles, a
program emulates the instructions for them. It is compiled without Python and torch.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from habana_mp import _core
from helpers.compiling import HAS_COMPILER

KERNELS = Path(__file__).parents[2] / "src" / "kernels"
COMPILER = os.environ.get("CXX", "c++")
#: As in src/kernels/sources.cmake.
AVX512 = ["-mf16c", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16"]
TILES = ["-mamx-tile", "-mamx-bf16"]


def knows_tiles() -> bool:
    tried = [COMPILER, *TILES, "-E", "-x", "c++", os.devnull]
    return HAS_COMPILER and subprocess.run(tried, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif("avx512_bf16" not in _core.kernels_paths(), reason="all around the tiles is AVX512_BF16")
@pytest.mark.skipif(not knows_tiles(), reason="the compiler does not know AMX")
def test_the_sums_of_tiles_are_those_of_a_plain_loop_and_touch_nothing_else(tmp_path: Path) -> None:
    made = str(tmp_path / "tiles")
    flags = ["-std=c++20", "-O2", "-Wall", "-Wextra", "-Werror", *AVX512, *TILES, "-I", str(KERNELS.parent)]
    sources = [KERNELS / "product_amx.cpp", KERNELS / "product_as_tiles.cpp", Path(__file__).with_name("tiles.cpp")]
    subprocess.run([COMPILER, *flags, *map(str, sources), "-o", made], check=True)
    done = subprocess.run([made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "580 cases" in done.stdout
