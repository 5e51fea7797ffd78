"""hmp.autocast: one region, regions in each other, as decorators, and what they answer when they are asked."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter, write_list
from helpers.probes import BF16, FP16, FP32, X, dtype_of_product
from helpers.processes import run_script

# ---- one region ----------------------------------------------------------------------------------------------------


def test_a_composite_function_obeys_only_where_a_region_names_it() -> None:
    low = X.bfloat16()
    plain = F.softmin(low, -1)
    with hmp.autocast("cpu", preset="torch-cuda"):
        assert F.softmin(low, -1).dtype is FP32
        with hmp.autocast("cpu"):
            assert torch.equal(F.softmin(low, -1), plain)
    assert torch.equal(F.softmin(low, -1), plain)


def test_inside_a_composite_that_no_list_names_the_lists_speak(converted: Converter) -> None:
    converted(fp32=["softmax", "exp"])
    low = X.bfloat16()
    expected = F.softmin(low, -1)
    assert expected.dtype is FP32
    with hmp.autocast("cpu", preset="torch-cuda"):
        pass
    assert torch.equal(F.softmin(low, -1), expected)


# ---- nesting -------------------------------------------------------------------------------------------------------


def test_an_exception_leaves_what_was_before() -> None:
    with hmp.autocast("cpu", FP16):
        with pytest.raises(ZeroDivisionError), hmp.autocast("cpu"):
            raise ZeroDivisionError
        assert dtype_of_product() is FP16


def test_each_thread_has_its_own_regions() -> None:
    region = hmp.autocast("cpu")
    inside, outside = threading.Barrier(2, timeout=30), threading.Barrier(2, timeout=30)
    found: list[torch.dtype] = []

    def other() -> None:
        found.append(dtype_of_product())
        with region:
            found.append(dtype_of_product())
            inside.wait()
            outside.wait()
            found.append(dtype_of_product())

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    assert dtype_of_product() is FP32
    with region, hmp.autocast("cpu", FP16):
        outside.wait()
        thread.join()
        assert dtype_of_product() is FP16
    assert found == [FP32, BF16, BF16]


# ---- as a decorator ------------------------------------------------------------------------------------------------


def test_a_decorated_function_runs_in_the_region_and_may_call_itself() -> None:
    @hmp.autocast("cpu")
    def calls(depth: int) -> list[torch.dtype]:
        """Doc."""
        return [dtype_of_product(), *(calls(depth - 1) if depth else [])]

    assert calls(2) == [BF16] * 3
    assert calls.__name__ == "calls"
    assert calls.__doc__ == "Doc."
    assert dtype_of_product() is FP32


@pytest.mark.parametrize("wrong", [3, torch.nn.Linear, torch.nn.Linear(2, 2)], ids=["number", "class", "module"])
def test_only_functions_can_be_decorated(wrong: Any) -> None:
    decorate: Any = hmp.autocast("cpu")
    words = (
        f"`autocast` decorates a function, or stands in a `with` statement around a block; got {type(wrong).__name__}:"
    )
    with pytest.raises(TypeError, match=words):
        decorate(wrong)


def test_a_region_is_pickled_as_what_it_is_for(tmp_path: Path) -> None:
    region = hmp.autocast("cpu", torch.float16, bf16_file_path=write_list(tmp_path / "own.txt", ["mm"]))
    code = (
        "import pickle, sys, torch\n"
        "from habana_mp import hmp\n"
        "hmp.autocast('cpu', preset='cuda')\n"
        "with pickle.loads(bytes.fromhex(sys.argv[1])):\n"
        "    print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)\n"
        "with pickle.loads(bytes.fromhex(sys.argv[2])):\n"
        "    print(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype)\n"
    )
    pickles = [pickle.dumps(one).hex() for one in (region, hmp.autocast("cpu", enabled=False))]
    done = run_script(code, *pickles)
    assert done.stdout.split() == ["torch.float16", "torch.float32"], done.stderr


def test_torchs_autocast_inside_of_disabled_casts_is_no_reason_for_a_warning(converted: Converter) -> None:
    converted(bf16=["mm"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hmp.disable_casts(), torch.autocast("cpu"):
            pass
    told = pytest.warns(hmp.HmpWarning, match="torch.autocast is enabled")
    with told, torch.autocast("cpu", enabled=False), torch.autocast("cpu"):
        pass


# ---- questions -----------------------------------------------------------------------------------------------------


def test_questions_are_answered_from_the_innermost_region() -> None:
    assert not hmp.is_autocast_enabled()
    with hmp.autocast("cpu", FP16):
        assert hmp.is_autocast_enabled()
        assert hmp.is_autocast_enabled("cpu")
        assert not hmp.is_autocast_enabled("cuda")
        assert hmp.get_autocast_dtype("cpu") is FP16
        assert hmp.get_autocast_dtype("cuda") is FP16
        with hmp.disable_casts():
            assert not hmp.is_autocast_enabled("cpu")
            assert hmp.get_autocast_dtype("cpu") is BF16
    assert hmp.get_autocast_dtype("cpu") is BF16


@each("device", ["cpu", "cuda", "xpu", "hpu", "mps", "meta"])
def test_autocast_is_available_where_torchs_is(device: str) -> None:
    assert hmp.is_autocast_available(device) == torch.amp.is_autocast_available(device)


def test_a_module_that_is_copied_in_a_region_keeps_its_weights() -> None:
    layer = torch.nn.Linear(8, 8)
    with hmp.autocast("cpu"):
        layer(X)
        assert copy.deepcopy(layer).weight.dtype is FP32
