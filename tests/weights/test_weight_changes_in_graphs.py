"""Changes of a weight are seen by compiled code, and those that compiled code makes by others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from habana_mp import _core, hmp
from helpers.compiling import BACKENDS
from helpers.processes import in_threads
from helpers.seeing_changes import MODES, X, as_by_hand, as_by_hand_marks, assert_seen, used
from helpers.weight_changes import MAIN, WAYS
from helpers.weight_changes.basics import SIZE, layer

pytestmark = as_by_hand_marks


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
def test_compiled_code_sees_changes(mode: str) -> None:
    hmp.convert()

    @torch.compile(backend="aot_eager")
    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w, b)

    # Without instructions, torch sums in compiled code, and the package elsewhere.
    hand = F.linear if _core.kernels_multiplies_bfloat16() else run
    for way in MAIN:
        of = layer()
        change = WAYS[way](of)
        for n in (2, 1):
            assert_seen(of, change, mode, n, use=run, hand=hand)
            as_by_hand(of, mode)  # the same weight outside


def add_without_grad(weight: torch.Tensor, by: torch.Tensor) -> None:
    with torch.no_grad():
        weight.add_(by)


def copy_part_without_grad(weight: torch.Tensor, by: torch.Tensor) -> None:
    with torch.no_grad():
        weight[3] = weight[3] + by[3]


WRITTEN_IN_GRAPHS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "no_grad": add_without_grad,
    "a part": copy_part_without_grad,
    "data": lambda weight, by: weight.data.add_(by),
    "detached": lambda weight, by: weight.detach().add_(by),
    "data.copy_": lambda weight, by: weight.data.copy_(weight.data + by),
}


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("write_in_graph", WRITTEN_IN_GRAPHS.values(), ids=WRITTEN_IN_GRAPHS)
def test_what_compiled_code_writes_is_seen(
    write_in_graph: Callable[[torch.Tensor, torch.Tensor], Any], backend: str, mode: str
) -> None:
    """Inductor's code counts no version up in older releases."""
    hmp.convert()
    of, other = layer(), layer()

    @torch.compile(backend=backend)
    def change(weight: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        result = other(X).sum()
        write_in_graph(weight, by)
        return result

    by = torch.zeros(SIZE, SIZE)
    by[3, 5] = 1.0  # none of those that are compared
    for _ in range(3):
        for _ in range(2):
            used(of, "no_grad")
        with MODES[mode]():
            change(of.weight, by)
        as_by_hand(of, "no_grad")


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("mode", ["grad", "no_grad"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_code_that_writes_while_a_thread_uses_the_weight_is_seen(backend: str, mode: str) -> None:
    """Inductor's counts the version up before it writes."""
    hmp.convert()
    of = layer()

    # Older releases read no annotations that are text.
    @torch.library.custom_op("habana_mp_test::used_meanwhile", mutates_args=(), schema="(Tensor x) -> Tensor")
    def used_meanwhile(x: torch.Tensor) -> torch.Tensor:
        in_threads(lambda _: used(of, mode), 1)
        return x.clone()

    used_meanwhile.register_fake(torch.empty_like)

    @torch.compile(backend=backend)
    def change(weight: torch.Tensor, by: torch.Tensor) -> None:
        weight.add_(used_meanwhile(by))

    by = torch.zeros(SIZE, SIZE)
    by[3, 5] = 1.0  # none of those that are compared
    for _ in range(3):
        used(of, mode)
        with torch.no_grad():
            change(of.weight, by)
        as_by_hand(of, mode)
    assert hmp.report(show=False).weights.weights == 2  # with the bias
