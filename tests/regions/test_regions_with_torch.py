"""Regions beside torch.autocast, cached weights, transforms, checkpointing, traces, threads and the log."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from habana_mp import hmp
from habana_mp.patches.torch import autocast_regions, stored_values
from helpers.comparing import assert_same
from helpers.each import each
from helpers.models import small_network
from helpers.probes import BF16, FP16, FP32, X, dtype_of_product
from helpers.processes import run_script

# ---- torch.autocast beside it --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled while")
def test_inside_an_enabled_region_of_torchs_ours_decides_first() -> None:
    with torch.autocast("cpu", BF16), hmp.autocast("cpu", FP16):
        # `mm` is in both lists: torch sees float16 inputs, and brings them into its own precision.
        assert dtype_of_product() is BF16
        assert torch.exp(X).dtype is FP32
    with hmp.autocast("cpu", preset="torch-cuda"), torch.autocast("cpu", BF16):
        assert torch.exp(X.bfloat16()).dtype is FP32


def test_torchs_autocast_alone_is_not_warned_about_once_a_region_was_used() -> None:
    with hmp.autocast("cpu"):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu"):
            assert dtype_of_product() is BF16
    autocast_regions.forget_warnings()
    stored_values.forget_warnings()
    warned = pytest.warns(hmp.HmpWarning, match="torch.autocast is enabled while habana_mp casts")
    with hmp.autocast("cpu"), warned, torch.autocast("cpu"):
        pass


# ---- weights, and other kinds of tensors -----------------------------------------------------------------------------


def test_cached_casts_follow_their_weight_through_regions_of_both_precisions() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    for step in range(12):
        dtype = (BF16, FP16)[step % 2]
        optimizer.zero_grad()
        with hmp.autocast("cpu", dtype):
            out = layer(X)
            again = layer(X)
        expected = F.linear(X.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
        assert torch.equal(out, expected)
        assert torch.equal(again, expected)
        out.float().square().sum().backward()
        optimizer.step()
        if step == 5:
            with torch.no_grad():
                layer.weight.data.mul_(2.0)


def test_fake_tensors_are_of_the_device_that_they_stand_for() -> None:
    with torch._subclasses.FakeTensorMode():
        on_cpu, elsewhere = torch.empty(8, 8), torch.empty(8, 8, device="xpu")
        with hmp.autocast("cpu"):
            assert torch.mm(on_cpu, on_cpu).dtype is BF16
            assert torch.mm(elsewhere, elsewhere).dtype is FP32


# ---- the log ---------------------------------------------------------------------------------------------------------


def test_the_log_tells_where_regions_begin_and_end(tmp_path: Path) -> None:
    hmp.convert("O0", log=tmp_path / "casts.log")
    with hmp.autocast("cpu"):
        dtype_of_product()
    dtype_of_product()
    hmp.restore()
    lines = [line for line in (tmp_path / "casts.log").read_text().splitlines() if line]
    assert [word for line in lines for word in ("entering", "casting", "leaving") if word in line] == [
        "entering",
        "casting",
        "leaving",
        "leaving",  # the product as it is
    ]
    assert "entering region torch-cpu in bf16 on cpu" in lines[0]


# ---- checkpointing, traces, threads ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("one_thread")
@each("reentrant", [True, False])
@each("under", ["nothing", "convert", "another region"])
def test_a_checkpointed_block_is_computed_again_as_in_its_region(reentrant: bool, under: str) -> None:
    def step(call: Callable[..., Any]) -> list[torch.Tensor]:
        net = small_network()
        with hmp.autocast("cpu"):
            out = call(net, X.clone().requires_grad_())
        assert out.dtype is BF16
        with hmp.autocast("cpu", FP16, enabled=under == "another region"):
            out.float().square().sum().backward()
        return [out, *(one.grad for one in net.parameters() if one.grad is not None)]

    if under == "convert":
        hmp.convert("O2", dtype=FP16)
    plain = step(lambda net, x: net(x))
    assert_same(step(lambda net, x: checkpoint(net, x, use_reentrant=reentrant)), plain)


def test_a_frozen_trace_of_a_region_runs_without_habana_mp(tmp_path: Path) -> None:
    net = small_network().eval()
    with torch.no_grad():
        with hmp.autocast("cpu"):
            expected = net(X)
            traced = torch.jit.freeze(torch.jit.trace(net, X))
        hmp.restore()
        assert_same(traced(X), expected)
    traced.save(str(tmp_path / "traced.pt"))
    torch.save([X, expected], tmp_path / "values.pt")
    code = (
        "import sys\n"
        "sys.modules['habana_mp'] = None\n"
        "import torch\n"
        "x, expected = torch.load('values.pt')\n"
        "result = torch.jit.load('traced.pt')(x)\n"
        "print(result.dtype, torch.equal(result, expected))\n"
    )
    done = run_script(code, cwd=tmp_path)
    assert done.stdout.split() == ["torch.bfloat16", "True"], done.stderr
