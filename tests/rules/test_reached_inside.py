"""Matrix products inside of another operation: where torch.autocast reaches them, its presets and O2 do."""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from habana_mp import hmp
from helpers.comparing import assert_same
from helpers.compiling import BACKENDS
from helpers.each import each
from helpers.lists import Converter, write_list

BF16, FP32 = torch.bfloat16, torch.float32
M, N = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(0, 3, 20).reshape(4, 5)
V, W = torch.linspace(1, 2, 4), torch.linspace(-2, 0, 4)

PRODUCTS: dict[str, Callable[[], Any]] = {
    "einsum": lambda: torch.einsum("ij,jk->ik", M, N),
    "einsum with an implicit result": lambda: torch.einsum("ij,jk", M, N),
    "einsum with spaces": lambda: torch.einsum(" i j , j k -> k i ", M, N),
    "einsum of two vectors": lambda: torch.einsum("i,i->", V, W),
    "einsum with dots": lambda: torch.einsum("...j,jk->...k", M, N),
    "einsum that sums what the dots are for": lambda: torch.einsum("...j,...k->jk", M, M),
    "einsum with dots and an implicit result": lambda: torch.einsum("...j,jk", M, N),
    "einsum by numbers": lambda: torch.einsum(M, [0, 1], N, [1, 2], [0, 2]),
    "einsum of three": lambda: torch.einsum("ij,jk,j->ik", M, N, V),
    "einsum of a diagonal": lambda: torch.einsum("ii,ij->j", M @ M.T, M),
    "inner": lambda: torch.inner(M, M),
    "inner, a method": lambda: M.inner(V),
    "tensordot": lambda: torch.tensordot(M, N, 1),
    "tensordot over nothing": lambda: torch.tensordot(V, W, 0),
    "tensordot over some": lambda: torch.tensordot(M, M, ([0], [0])),
    "multi_dot": lambda: torch.linalg.multi_dot([M, N, N.T]),
    "multi_dot of vectors": lambda: torch.linalg.multi_dot([V, N, N[0]]),
    "chain_matmul": lambda: torch.chain_matmul(M, N, N.T),
}

OTHERS: dict[str, Callable[[], Any]] = {
    "outer product": lambda: torch.einsum("i,j->ij", V, W),
    "elementwise product": lambda: torch.einsum("ij,ij->ij", M, M),
    "scaled rows": lambda: torch.einsum("ij,j->ij", M, V),
    "product by a number": lambda: torch.einsum(",ij->ij", V[0], M),
    "product with dots": lambda: torch.einsum("...i,...i->...i", M, M),
    "sum of each by itself": lambda: torch.einsum("i,j->", V, W),
    "filters of one channel": lambda: torch.einsum("bcft,dct->bdft", M.reshape(2, 1, 3, 2), M.reshape(6, 1, 2)),
    "sum of one term, with dots": lambda: torch.einsum("...j,jk", M[:, :1], M[:1]),
    "inner product with a number": lambda: torch.inner(V[0], M),
    "sum of one": lambda: torch.einsum("ij,k->k", M, V),
    "inner of vectors": lambda: torch.inner(V, W),
    "tensordot over all": lambda: torch.tensordot(M, M, 2),
    "chain_matmul of one": lambda: torch.chain_matmul(M),
}

pytestmark = pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated:UserWarning")


@each("name", [*PRODUCTS, *OTHERS])
def test_the_preset_gives_what_torchs_autocast_gives(name: str) -> None:
    call = (PRODUCTS | OTHERS)[name]
    with torch.autocast("cpu"):
        expected = call()
    if name in ("inner of vectors", "tensordot over all") and expected.dtype is BF16:
        expected = call()  # older releases make a matrix product of one row of these; here they are none in any
    assert expected.dtype is (BF16 if name in PRODUCTS else FP32)
    # Of three tensors torch's autocast multiplies two in float32, number by number, before the product.
    close = name == "einsum of three"
    with hmp.autocast("cpu"):
        assert_same(call(), expected, close=close)
    hmp.convert(preset="torch-cpu")
    assert_same(call(), expected, close=close)


@each("name", [*PRODUCTS, *OTHERS])
def test_so_does_o2(converted: Converter, name: str) -> None:
    hmp.convert(opt_level="O2")
    assert (PRODUCTS | OTHERS)[name]().dtype is (BF16 if name in PRODUCTS else FP32)


def test_a_list_of_ones_own_means_every_call(tmp_path: Path) -> None:
    names = ["einsum", "inner", "tensordot", "chain_matmul", "linalg_multi_dot"]
    hmp.convert(bf16_file_path=write_list(tmp_path / "bf16", names), fp32_file_path=write_list(tmp_path / "fp32", []))
    for name, call in (PRODUCTS | OTHERS).items():
        assert call().dtype is (FP32 if name == "chain_matmul of one" else BF16), name


def test_a_list_of_ones_own_for_float32_wins(tmp_path: Path) -> None:
    hmp.convert(preset="torch-cpu", fp32_file_path=write_list(tmp_path / "fp32", ["einsum"]))
    assert torch.einsum("ij,jk->ik", M, N).dtype is FP32
    assert torch.tensordot(M, N, 1).dtype is BF16


@given(st.data())
def test_any_equation_gives_the_dtype_that_torchs_autocast_gives(data: st.DataObject) -> None:
    indices = st.lists(st.sampled_from("abcd"), max_size=3)
    operands = data.draw(st.lists(indices, min_size=2, max_size=2))
    dots = [data.draw(st.booleans()) for _ in operands]
    equation = ",".join("..." * dot + "".join(operand) for dot, operand in zip(dots, operands, strict=True))
    used = sorted({index for operand in operands for index in operand})
    if data.draw(st.booleans()):
        result = data.draw(st.lists(st.sampled_from(used), unique=True)) if used else []
        equation += "->" + "..." * (any(dots) and data.draw(st.booleans())) + "".join(result)
    sizes = {letter: 2 + number for number, letter in enumerate(string.ascii_lowercase[:4])}
    given_tensors = [
        torch.rand((3,) * dot + tuple(sizes[index] for index in operand))
        for dot, operand in zip(dots, operands, strict=True)
    ]
    with torch.autocast("cpu"):
        expected = torch.einsum(equation, *given_tensors)
    # What one operand has alone torch's autocast sums up in float32, before the product.
    with hmp.autocast("cpu"):
        assert_same(torch.einsum(equation, *given_tensors), expected, close=True)


def test_what_makes_no_product_runs_in_the_widest_precision() -> None:
    with hmp.autocast("cpu"):
        assert_same(torch.inner(V.bfloat16(), W), torch.inner(V.bfloat16().float(), W))
        assert_same(torch.tensordot(M, M.bfloat16(), 2), torch.tensordot(M, M.bfloat16().float(), 2))
        assert torch.inner(V.bfloat16(), W.bfloat16()).dtype is BF16
        assert torch.einsum("i,j->ij", V.bfloat16(), W).dtype is FP32
        assert torch.einsum("i,j->ij", V.bfloat16(), W.bfloat16()).dtype is BF16
        with pytest.raises(RuntimeError, match="einsum"):
            torch.einsum("ij,jk->il", M, N)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_decides_alike(backend: str) -> None:
    def compute(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.einsum("ij,jk->ik", x, y),
            torch.einsum("i,j->ij", x[:, 0], y[0]),
            torch.tensordot(x, y, 1),
            torch.inner(x, x),
        ]

    torch._dynamo.reset()
    with hmp.autocast("cpu"):
        expected = [one.dtype for one in compute(M, N)]
        compiled = torch.compile(compute, backend=backend, fullgraph=True)
        assert [one.dtype for one in compiled(M, N)] == expected == [BF16, FP32, BF16, BF16]
