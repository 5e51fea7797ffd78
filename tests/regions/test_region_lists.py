"""Regions with lists of a user's own."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from helpers.each import each
from helpers.lists import write_list
from helpers.probes import BF16, FP32, X, dtype_of_product
from helpers.processes import run_script


def test_own_lists_replace_a_side_of_the_preset(tmp_path: Path) -> None:
    lower = write_list(tmp_path / "lower.txt", ["exp"])
    region = hmp.autocast("cpu", bf16_file_path=lower)
    (tmp_path / "lower.txt").unlink()  # files are read at once
    with region:
        assert (dtype_of_product(), torch.exp(X).dtype) == (FP32, BF16)
        assert F.mse_loss(X.bfloat16(), X.bfloat16()).dtype is FP32


def test_lists_with_the_same_content_are_one_region(tmp_path: Path) -> None:
    first = hmp.autocast("cpu", bf16_file_path=write_list(tmp_path / "lower.txt", ["exp"]))
    second = hmp.autocast("cpu", bf16_file_path=write_list(tmp_path / "lower.txt", ["exp"]))
    assert first._number == second._number


@pytest.mark.parametrize("caches", [True, False, None])
def test_cache_enabled_says_whether_casts_of_weights_are_cached(caches: bool | None, counted: None) -> None:
    layer = torch.nn.Linear(8, 2048)  # its bias is too small
    with hmp.autocast("cpu", cache_enabled=caches):
        results = [layer(X) for _ in range(3)]
    assert torch.equal(results[0], results[2])
    casts = {row.operation: row.casts for row in hmp.report(show=False).rows}["linear"]
    # Without instructions for bfloat16, small ones are cached too.
    assert casts == (9 if caches is False else 7 if _core.kernels_multiplies_bfloat16() else 5)


def test_there_are_as_many_regions_as_torch_compile_can_tell_apart(tmp_path: Path) -> None:
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from habana_mp import _core, hmp\n"
        "names = 'exp log sin cos tan sinh cosh tanh asin acos atan sqrt rsqrt relu sigmoid square abs'.split()\n"
        "made = []\n"
        "try:\n"
        "    for first in names:\n"
        "        for second in names:\n"
        "            Path('own.txt').write_text(f'{first}\\n{second}')\n"
        "            number = _core.region_mark(hmp.autocast('cpu', bf16_file_path='own.txt')._number)\n"
        "            made.append(number) if number not in made else None\n"
        "except RuntimeError as error:\n"
        "    print(len(made), str(error).split('.')[0] + '.' + str(error).split('.')[1])\n"
        "with hmp.autocast('cpu', bf16_file_path=Path('own.txt').write_text('exp\\nexp') and 'own.txt'):\n"
        "    print(torch.exp(torch.ones(2)).dtype)\n"
        "    try:\n"
        "        hmp.op_wrap(torch.exp)(torch.ones(2))\n"
        "    except RuntimeError as error:\n"
        "        print(str(error).split(',')[0])\n"
        "    print(torch.exp(torch.ones(2)).dtype)\n"
    )
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    done = run_script(code, cwd=tmp_path)
    assert done.stdout.splitlines() == [
        f"{len(every) - 1} habana_mp: a process can have {len(every) - 1} different regions of "
        "`hmp.autocast`, and has them",
        "torch.bfloat16",
        f"habana_mp: a process can have {len(every) - 1} different regions of `hmp.autocast`",
        "torch.bfloat16",
    ], done.stderr


@each("wrong", [[], 0, False, 3, ["a.txt"], True])
@each("which", ["bf16_file_path", "fp32_file_path"])
def test_a_value_that_is_no_path_is_refused(wrong: Any, which: str) -> None:
    for function in (hmp.convert, functools.partial(hmp.autocast, "cpu")):
        with pytest.raises(ValueError, match=f"`{which}` must be the path of a list file; got {type(wrong).__name__}"):
            function(**{which: wrong})


@pytest.mark.parametrize("number", [None, -1], ids=["below Python", "by torch's functions"])
def test_torch_compile_is_told_of_regions_and_of_silence(number: int | None) -> None:
    code = (
        "import torch, habana_mp as hmp\n"
        "from habana_mp.patches import installation\nfrom habana_mp.patches.tools import region_dtypes\n"
        "installation.REGION_DEVICE_NUMBER = "
        f"{number if number is not None else 'region_dtypes.REGION_DEVICE_NUMBER'}\n"
        "def told():\n"
        "    mark = region_dtypes.REGION_DEVICE\n"
        "    on = torch.is_autocast_enabled(mark)\n"
        "    seen.append(region_dtypes.REGION_DTYPES.index(torch.get_autocast_dtype(mark)) if on else 0)\n"
        "seen = []\n"
        "told()\n"
        "region, silent = hmp.autocast('cpu'), hmp.op_wrap(told)\n"
        "with region:\n"
        "    told(), silent(), told()\n"
        "    with hmp.autocast('cpu', torch.float16):\n"
        "        told(), hmp.op_wrap(silent)(), hmp.disable_casts(silent)(), told()\n"
        "    told()\n"
        "told()\n"
        "hmp.convert()\n"
        "told(), silent(), told()\n"
        "print(*seen)\n"
    )
    done = run_script(code)
    assert done.stdout.split() == ["0", "1", "2", "1", "3", "4", "3", "3", "1", "0", "0", "5", "0"], done.stderr
