"""No operator of ``torch.ops`` changes a weight, or gives away its memory, without the next call seeing it.

Each operator is called with a weight as each of its tensors, and torch shows what it does. Then the same is done to a
weight whose cast is kept, and a value is written through each tensor that shares the weight's memory. The values that
the core compares stay as they were. ``operators.txt`` has how an operator is called, ``operators_not_called.txt`` which
ones are not called and why; ``helpers/search_operators.py`` writes both.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from habana_mp import hmp
from helpers import operators
from helpers.calls_of_operators import Call, Effect, Kind, Prepared, calls_of, effect_of
from helpers.search_operators import not_called, release_of_files, ways
from helpers.seeing_changes import MODES

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]

#: What torch 2.13 does to a weight without counting its version up: it writes values, makes an alias with a version of
#: its own, or changes how the weight is stored. Each number is the place of the weight among the operator's arguments.
UNCOUNTED = {
    "values": {
        *("aten::_cummax_helper values", "aten::_cummin_helper values"),
        *("aten::_fused_sgd_ self", "aten::_fused_sgd_ grads", "aten::_fused_sgd_ momentum_buffer_list"),
        *("aten::_fused_sgd_.tensor_lr self", "aten::_fused_sgd_.tensor_lr momentum_buffer_list"),
        *("aten::rrelu_with_noise noise", "aten::rrelu_with_noise.out noise", "aten::rrelu_with_noise_ noise"),
    },
    "layout": {"aten::resize_ self", "aten::resize_as_ self"},
    "alias": {
        *("aten::_unsafe_view self", "aten::data self", "prim::data a", "aten::set_data new_data"),
        *("aten::set.source_Tensor source", "aten::set_.source_Tensor source"),
        "aten::set_.source_Tensor_storage_offset source",
        *("aten::unsafe_chunk self", "aten::unsafe_split.Tensor self", "aten::unsafe_split_with_sizes self"),
        *("inductor::_alloc_from_pool self", "inductor::_reinterpret_tensor self"),
        # in inference mode
        *("aten::view.dtype self", "prims::view_of_dtype a"),
        # of sparse layouts
        "aten::_gather_sparse_backward grad",
        *(f"aten::_sparse_{layout}_tensor_unsafe values" for layout in ("bsc", "bsr", "csc", "csr")),
        "aten::sparse_coo_tensor.indices values",
        *(f"aten::sparse_{layout}_tensor.ccol_row_value values" for layout in ("bsc", "csc")),
        *(f"aten::sparse_{layout}_tensor.ccol_row_value_size values" for layout in ("bsc", "csc")),
        *(f"aten::sparse_{layout}_tensor.crow_col_value values" for layout in ("bsr", "csr")),
        *(f"aten::sparse_{layout}_tensor.crow_col_value_size values" for layout in ("bsr", "csr")),
    },
}

#: So many arguments of torch 2.13 are not tried as a weight.
NOT_CALLED = 3732

KINDS: tuple[tuple[Kind, str], ...] = (
    *(("schema", "no_grad"), ("schema", "inference"), ("samples", "no_grad"), ("samples", "inference")),
    ("other values", "no_grad"),
)
each_kind = pytest.mark.parametrize(("kind", "mode"), KINDS)


@cache
def effects(kind: Kind, mode: str) -> list[tuple[Call, Effect]]:
    """Return each call that does not raise, with what torch did to the weight in it."""
    found = []
    for call in calls_of(kind):
        with MODES[mode]():
            try:
                found.append((call, effect_of(call)))
            except Exception:
                continue
    return found


def problems(found: list[tuple[Call, Effect]], mode: str, *, by_packet: bool = False) -> Iterator[str]:
    prepared = [Prepared(call, effect) for call, effect in found]
    hmp.convert()
    with MODES[mode]():
        for one in prepared:
            if problem := one.problem(by_packet=by_packet):
                yield f"{one.call}: {problem}"


@each_kind
def test_what_an_overload_does_to_a_weight_is_seen(kind: Kind, mode: str) -> None:
    assert list(problems(effects(kind, mode), mode)) == []


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_what_an_operator_does_to_a_weight_is_seen(mode: str) -> None:
    """Called without naming an overload."""
    touching = [(call, effect) for call, effect in effects("schema", mode) if effect.touches]
    assert list(problems(touching, mode, by_packet=True)) == []


@each_kind
def test_no_other_operator_changes_a_weight_uncounted(kind: Kind, mode: str) -> None:
    """A new one is seen where torch has no kernel for it that counts. Else it must be named in ``ops/find.py``."""
    found = {(what, str(call)) for call, effect in effects(kind, mode) for what in effect.uncounted}
    assert found - {(what, name) for what, names in UNCOUNTED.items() for name in names} == set()


def test_each_operator_that_goes_uncounted_is_among_the_calls() -> None:
    """Or the tests above show nothing."""
    found = {str(call) for kind, mode in KINDS for call, effect in effects(kind, mode) if effect.uncounted}
    assert {name for names in UNCOUNTED.values() for name in names} - found == set()


def test_each_call_of_the_file_can_be_made() -> None:
    done = {str(call) for call, _ in effects("schema", "no_grad")}
    assert [name for name in map(str, calls_of("schema")) if name not in done] == []


def names_in_new_process() -> set[str]:
    """The names of the operators that are there before other libraries define theirs."""
    script = "from helpers import operators as all; print(*map(all.name_of, all.schemas()))"
    command = [sys.executable, "-c", script]
    return set(
        subprocess.run(command, cwd=operators.FOLDER.parent, capture_output=True, check=True).stdout.decode().split()
    )


def test_each_operator_is_called_or_has_a_reason() -> None:
    if torch.__version__.partition("+")[0] != release_of_files():
        pytest.skip("the files are those of another release")
    called, reasons = ways(), not_called()
    unknown = []
    of_torch = names_in_new_process()
    for schema in operators.schemas():
        name = operators.name_of(schema)
        positions = operators.tensor_arguments(schema) if name in of_torch else []
        for position, way in zip(positions, called.get(name, ["-"] * len(positions)), strict=True):
            argument = f"{name} {schema.arguments[position].name}"
            if (way == "-") != (argument in reasons):
                unknown.append(argument)
    assert unknown == []
    assert len(reasons) == NOT_CALLED
