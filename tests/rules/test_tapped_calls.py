"""Functions of torch that are tapped are noticed whether arguments come by position, by keyword or in parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from habana_mp import HmpWarning, hmp
from helpers.each import each
from helpers.probes import BF16, FP32, is_cast

SET_ENABLED = torch.set_autocast_enabled  # a name that was taken before convert

#: Each with the value that is set.
FORMS: dict[str, Callable[[Any, bool], None]] = {
    "positions": lambda set_, value: set_("cpu", value),
    "one keyword": lambda set_, value: set_("cpu", enabled=value),
    "keywords in another order": lambda set_, value: set_(enabled=value, device_type="cpu"),
    "partial": lambda set_, value: functools.partial(set_, "cpu")(value),
    "partial of keywords": lambda set_, value: functools.partial(set_, device_type="cpu")(enabled=value),
    "map": lambda set_, value: [*map(set_, ["cpu"], [value])] and None,
}
OLDER_FORMS: dict[str, Callable[[Any, bool], None]] = {
    "position": lambda set_, value: set_(value),
    "keyword": lambda set_, value: set_(enabled=value),
    "partial": lambda set_, value: functools.partial(set_, value)(),
}


@contextmanager
def entered(set_: Callable[[], None]) -> Iterator[None]:
    """In a region of autocast that is entered by hand, as libraries do."""
    set_()
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        for device in ("cpu", "cuda"):
            torch.set_autocast_enabled(device, False)


@pytest.mark.filterwarnings("ignore:torch.autocast is enabled")
@each("form", [*FORMS.values(), *OLDER_FORMS.values()])
@each("set_enabled", [SET_ENABLED, torch._C.set_autocast_enabled])
def test_every_call_that_switches_autocast_is_noticed(form: Callable[[Any, bool], None], set_enabled: Any) -> None:
    hmp.convert()
    for _ in range(2):
        with entered(lambda: form(set_enabled, True)):
            assert is_cast()
        torch.set_autocast_enabled("cuda", True)  # is noticed; so the next call must be
        with entered(lambda: form(set_enabled, False)):
            assert not is_cast()
            with entered(lambda: form(set_enabled, True)):
                assert is_cast()
            assert not is_cast()
        assert is_cast()


@each(
    "call",
    [
        lambda: torch.set_autocast_enabled(),  # type: ignore[call-overload]  # wrong on purpose
        lambda: torch.set_autocast_enabled("cpu", 1),  # type: ignore[arg-type]  # wrong on purpose
        lambda: torch.set_autocast_enabled(on=False),  # type: ignore[call-overload]  # wrong on purpose
        lambda: torch.set_autocast_dtype(dtype=BF16),  # type: ignore[call-arg]  # wrong on purpose
        lambda: torch.Tensor._make_subclass(nn.Parameter),
        lambda: torch._C._to_dlpack(),
    ],
)
def test_calls_that_torch_refuses_change_nothing(call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, RuntimeError)) as plain:
        call()
    hmp.convert()
    with pytest.raises(plain.type) as ours:
        call()
    assert str(ours.value) == str(plain.value)
    assert is_cast()


SUBCLASSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nn.Parameter": nn.Parameter,
    "positions": lambda values: torch.Tensor._make_subclass(nn.Parameter, values, True),
    "keywords in another order": lambda values: torch.Tensor._make_subclass(data=values, cls=nn.Parameter),
    "partial of keywords": lambda values: functools.partial(torch.Tensor._make_subclass, cls=nn.Parameter)(data=values),
    "of a class": lambda values: nn.Parameter._make_subclass(nn.Parameter, values),
}


@each("make", SUBCLASSES.values())
def test_every_call_that_makes_a_parameter_of_a_lowered_result_is_noticed(
    make: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    hmp.convert()
    value = torch.ones(4, 4) @ torch.ones(4, 4)
    with pytest.warns(HmpWarning, match="habana_mp lowered"):
        made = make(value)
    assert isinstance(made, nn.Parameter)
    assert made.dtype is FP32
    own = torch.ones(4, dtype=BF16)
    assert make(own).data_ptr() == own.data_ptr()


EXPORTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "_to_dlpack": lambda tensor: torch._C._to_dlpack(tensor),
    "_to_dlpack in parts": lambda tensor: functools.partial(torch._C._to_dlpack, tensor)(),
}
if hasattr(torch._C, "_to_dlpack_versioned"):  # torch 2.8 has no keywords either
    EXPORTS |= {
        "_to_dlpack by keyword": lambda tensor: functools.partial(torch._C._to_dlpack, data=tensor)(),
        "_to_dlpack_versioned by keyword": lambda tensor: torch._C._to_dlpack_versioned(copy=False, data=tensor),
    }


@each("name", EXPORTS)
def test_a_weight_that_is_exported_by_any_call_is_not_stale_when_it_is_written_to(name: str) -> None:
    hmp.convert()
    layer, x = nn.Linear(64, 64, bias=False).requires_grad_(False), torch.randn(64, 64)
    for _ in range(5):
        layer(x)  # its cast is cached
    other = torch.utils.dlpack.from_dlpack(EXPORTS[name](layer.weight))
    for value in (2.0, 3.0):
        other.fill_(value)  # has a version of its own
        result = layer(x)
        with hmp.disable_casts():
            expected = nn.functional.linear(x.bfloat16(), layer.weight.bfloat16())
        assert torch.equal(result, expected)
