"""Ctrl-C between two instructions of convert, of restore and of a second convert.

Afterwards torch is as it was or converted whole, and `restore` leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from habana_mp import _core, hmp
from helpers.interrupts import interrupted_at
from helpers.probes import BF16, FP32, M
from helpers.state_of_torch import assert_torch_is_restored


def codes() -> list[Any]:
    """The code of functions of torch that patches exchange."""
    changed = (torch.Tensor.register_hook, torch.nn.Module._call_impl, torch.nn.Module.__init__)
    more = (torch.utils.checkpoint.checkpoint, torch.nn.functional.normalize, torch.Tensor.__rdiv__)
    return [one.__code__ for one in (*changed, *more)]


def settings_in_force() -> str:
    products, powers = torch.mm(M, M).dtype, torch.exp(M.bfloat16()).dtype
    return {(BF16, BF16): "first", (FP32, BF16): "none", (BF16, FP32): "second"}.get((products, powers), "neither")


def first() -> None:
    hmp.convert(preset="torch-cpu")


def second() -> None:
    hmp.convert("O2", report="modules")


def check(allowed: set[str], before: list[Any]) -> None:
    state = settings_in_force()
    assert state in allowed
    assert hmp.is_converted() == (state != "none")
    hmp.restore()
    assert_torch_is_restored()
    assert codes() == before
    first()
    assert settings_in_force() == "first"
    hmp.restore()
    assert_torch_is_restored()
    assert codes() == before


def interrupt(prepare: Callable[[], None], work: Callable[[], None], allowed: set[str]) -> None:
    """Interrupts the work at nine places, from the first to the last."""
    hmp.restore()
    before = codes()
    prepare()
    last = interrupted_at(None, work)
    hmp.restore()
    for part in range(9):
        prepare()
        interrupted_at(1 + (last - 1) * part // 8, work)
        assert hmp.is_converted() == (_core.installed_count() != 0)
        if work is hmp.restore:
            hmp.restore()
            assert _core.installed_count() == 0
        check(allowed, before)


INTERRUPTED = {
    "convert": (hmp.restore, first, {"none", "first"}),
    "second convert": (first, second, {"none", "first", "second"}),
    "restore": (second, hmp.restore, {"none"}),
}


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupt_leaves_torch_as_it_was_or_converted_whole(name: str) -> None:
    first()
    second()  # what is done once in a process is done
    interrupt(*INTERRUPTED[name])
