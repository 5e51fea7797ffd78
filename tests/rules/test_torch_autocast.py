"""torch.autocast beside convert: where it is disabled nothing is cast (rule 10), where it is enabled we warn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from habana_mp import hmp
from helpers.each import each
from helpers.lists import Converter
from helpers.models import small_classifier
from helpers.probes import BF16, FP32, M, N, is_cast


@each("device", ["cpu", "cuda", "xpu", "hpu", "meta"])
def test_nothing_is_cast_where_autocast_is_disabled(converted: Converter, device: str) -> None:
    converted(bf16=["mm", "normalize"], fp32=["exp"])
    try:
        region = torch.autocast(device, enabled=False)
    except RuntimeError:
        assert device == "meta", "torch knows no autocast for this device"
        region = torch.autocast("cpu", enabled=False)
    with region:
        assert not is_cast()
        assert F.normalize(M).dtype is FP32
        assert torch.exp(M.bfloat16()).dtype is BF16
    assert is_cast()


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
def test_autocast_regions_nest(converted: Converter) -> None:
    converted(bf16=["mm"])
    with torch.autocast("cpu", enabled=False):
        with torch.autocast("cpu", enabled=True, dtype=BF16):
            assert is_cast()
            with torch.autocast("cpu", enabled=False):
                assert not is_cast()
            assert is_cast()
        assert not is_cast()
        with torch.autocast("cpu", enabled=False):
            assert not is_cast()
        assert not is_cast()
    assert is_cast()


PROTECTED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, y: x @ y,
    "layer": F.linear,
    "batch": lambda x, y: torch.bmm(x[None], y[None]),
    "convolution": lambda x, y: F.conv2d(x[None, None], y[None, None]),
    "attention": lambda x, y: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "sum of products": lambda x, y: torch.einsum("ij,jk->ik", x, y),
    "no kernel": lambda x, _: torch.fft.rfft(x).abs(),
}


@each("backend", [None, "eager", "aot_eager"])
@each("name", PROTECTED)
def test_a_block_that_protects_itself_takes_what_was_lowered_outside(name: str, backend: str | None) -> None:
    def protected(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return PROTECTED[name](x, N)

    x = M.bfloat16().requires_grad_()
    expected = PROTECTED[name](x.float(), N)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    hmp.convert()
    if backend is not None:
        protected = torch.compile(protected, backend=backend)
    if (backend, name) == ("aot_eager", "sum of products") and torch.__version__ < "2.12":
        with pytest.raises(RuntimeError, match="scalar type"):  # it compiles a product of two precisions
            protected(x)
        return
    result = protected(x)
    assert torch.equal(result, expected)
    assert torch.equal(torch.autograd.grad(result.sum(), x)[0], gradient)


def test_without_lists_in_force_a_block_that_protects_itself_is_torchs_own() -> None:
    with hmp.autocast("cpu"):
        torch.mm(M, N)
    with torch.autocast("cpu", enabled=False), pytest.raises(RuntimeError, match="BFloat16"):
        torch.mm(M.bfloat16(), N)


def test_what_torch_refuses_for_another_reason_stays_its_error_in_a_block_that_protects_itself() -> None:
    x = M.bfloat16()
    hmp.convert()
    with torch.autocast("cpu", enabled=False):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(x, torch.ones(3, 3))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.mm(M, torch.ones(3, 3))
        with pytest.raises(RuntimeError, match="BFloat16"):
            torch.mm(x, N, out=torch.empty(4, 4))
    with hmp.disable_casts(), pytest.raises(RuntimeError, match="BFloat16"):
        torch.mm(x, N)


def test_torch_autocast_beside_ours_is_warned_about_once_and_has_the_last_word(converted: Converter) -> None:
    converted(bf16=["exp"], fp32=["mm"])

    @torch.autocast("cpu", dtype=BF16)
    def under_autocast() -> list[torch.dtype]:
        small_classifier()(M).sum().backward()
        return [torch.mm(M, N).dtype, torch.exp(M).dtype]

    with pytest.warns(hmp.HmpWarning, match="autocast acts after the lists") as warned:
        dtypes = under_autocast()
    assert dtypes == [BF16, BF16]
    assert [Path(one.filename).name for one in warned] == [Path(__file__).name]
    with torch.autocast("cpu", dtype=BF16):
        assert torch.mm(M, N).dtype is BF16
    assert torch.mm(M, N).dtype is FP32
    with torch.autocast("cpu", dtype=BF16), pytest.warns(hmp.HmpWarning, match="autocast acts after the lists"):
        hmp.convert()


@pytest.mark.filterwarnings("error::habana_mp.HmpWarning")
def test_an_autocast_warning_that_is_an_error_leaves_autocast_off() -> None:
    hmp.convert()
    with pytest.raises(hmp.HmpWarning), torch.autocast("cpu", dtype=BF16):
        pytest.fail("was entered")
    assert not torch.is_autocast_enabled("cpu")
