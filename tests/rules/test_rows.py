"""Operations are declared by rows: one row is all that a new operation needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from habana_mp import ListError, hmp, ops
from habana_mp.ops import operation
from habana_mp.ops.operation import Operation

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
LEFT, RIGHT = torch.randn(3, 4), torch.randn(5, 4)


def test_without_its_row_the_operation_of_the_page_is_left_alone(converted: Callable[..., None]) -> None:
    with pytest.raises(ListError, match="unknown operation `euclidean_dist`"):
        converted(bf16=["euclidean_dist"])
    converted(bf16=["mm"])
    with pytest.raises(RuntimeError, match="same dtype"):
        torch._euclidean_dist(LEFT.bfloat16(), RIGHT)


@pytest.fixture
def own_rows() -> Iterator[None]:
    yield
    hmp.restore()
    ops.answer_from(ops.ROWS)


@pytest.mark.usefixtures("own_rows")
def test_with_its_row_the_operation_of_the_page_is_cast_by_a_list_and_takes_mixed_inputs(
    converted: Callable[..., None],
) -> None:
    (code,) = re.findall(r"^```python\n(Operation\(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (row,) = eval(code, dict(vars(operation)))
    by_hand = torch._euclidean_dist(LEFT.bfloat16(), RIGHT.bfloat16())
    mixed = torch._euclidean_dist(LEFT.bfloat16().float(), RIGHT)
    ops.answer_from([*ops.ROWS, row])
    converted(bf16=[row.spellings])
    result = torch._euclidean_dist(LEFT, RIGHT)
    assert result.dtype is torch.bfloat16
    assert torch.equal(result, by_hand)
    converted(bf16=["mm"])
    assert torch.equal(torch._euclidean_dist(LEFT.bfloat16(), RIGHT), mixed)


@pytest.mark.usefixtures("own_rows")
def test_two_rows_for_one_operation_are_an_error() -> None:
    with pytest.raises(ValueError, match="two rows for `mm`"):
        ops.answer_from([*ops.ROWS, Operation("mm")])


def test_the_rows_declared_by_the_package_are_those_that_answer() -> None:
    names = [name for row in ops.ROWS for name in row.names.split()]
    assert list(ops.rows()) == names
    assert ops.row_of("conv2d").product_form == "convolution"


def test_what_a_row_says_goes_together() -> None:
    for row in ops.ROWS:
        assert row.wrong_in_bf16 is not None or not row.wrong_if_strided, row.names
        assert row.parts or not (row.is_only_parts or row.parts_follow), row.names
        assert row.made_of_products or row.makes_product is None, row.names
        assert row.products_inside or row.is_fused is None, row.names
        assert row.caches_weights or not (row.is_recurrent or row.made_of_products), row.names
        assert row.unlisted == "widest" or not (row.promotes or row.gives_dimensions), row.names
        assert not (row.caches_weights and row.gives_view), row.names
