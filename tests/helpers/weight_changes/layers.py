"""Changes of the layer's attribute, and of the weight's storage, dtype and parametrization."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from helpers.weight_changes.basics import COLUMN, ROW, SIZE, Way, noise, write


def replaced(of: nn.Linear, n: int) -> None:
    of.weight = nn.Parameter(noise())


def set_in_the_dictionary(of: nn.Linear, n: int) -> None:
    of._parameters["weight"] = nn.Parameter(noise())


def set_data(of: nn.Linear, n: int) -> None:
    of.weight.data = noise()


def set_data_and_back(of: nn.Linear, n: int) -> None:
    """Runs the model with other weights for a while, as with averaged weights."""
    kept = of.weight.data
    of.weight.data = noise()
    of(noise(2, SIZE))
    of.weight.data = kept.add_(n)


def swapped(of: nn.Linear, n: int) -> None:
    torch.utils.swap_tensors(of.weight, nn.Parameter(noise()))


def by_float64(of: nn.Linear, n: int) -> None:
    of.double().weight.data.mul_(n + 1)
    of.float()


def left_in_float16(of: nn.Linear, n: int) -> None:
    of.half().weight.data.mul_(n + 1)


def by_the_meta_device(of: nn.Linear, n: int) -> None:
    of.to("meta").to_empty(device="cpu").reset_parameters()


def on_conversion(of: nn.Linear, n: int, switch: Callable[[bool], None]) -> None:
    """Converts the parameters of a module by another of torch's ways."""
    switch(True)
    try:
        of.double()
        write(of.weight, n)
        of.float()
    finally:
        switch(False)


def noise_state(of: nn.Linear) -> dict[str, torch.Tensor]:
    return {"weight": noise(), "bias": noise(SIZE)}


def storage_emptied(of: nn.Linear, n: int) -> None:
    """Frees the weight between uses, as FSDP does; the memory may come back at the same address."""
    storage = of.weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    of.weight.data.fill_(n)


def without_a_version(of: nn.Linear, n: int) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(of.weight):
        of.weight.add_(n)


def one_element_without_a_version(of: nn.Linear, n: int) -> None:
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(of.weight):
        of.weight[ROW, COLUMN] += n


def _set_version(w: torch.Tensor, version: int) -> None:
    set_versions = torch._C._autograd._unsafe_set_version_counter
    try:
        set_versions((w,), (version,))
    except TypeError:  # older releases take one at a time
        set_versions(w, version)


def version_set_back(of: nn.Linear, n: int) -> None:
    version = of.weight._version
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    _set_version(of.weight, version)


def version_set_back_after_use(of: nn.Linear, n: int) -> None:
    version = of.weight._version
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    of(noise(2, SIZE))
    with torch.no_grad():
        of.weight[ROW, COLUMN] += n
    _set_version(of.weight, version + 1)


# The schema is written out: older releases do not read annotations that are strings.
@torch.library.custom_op("habana_mp_tests::write", mutates_args=("w",), schema="(Tensor(a!) w, int n) -> ()")
def _write(w: torch.Tensor, n: int) -> None:
    w.detach().numpy()[:] += n


def custom_operator(of: nn.Linear, n: int) -> None:
    with torch.no_grad():
        _write(of.weight, n)


def pruned(of: nn.Linear, n: int) -> None:
    prune.random_unstructured(of, "weight", amount=0.4)


def parametrized_and_removed(of: nn.Linear, n: int) -> None:
    parametrizations.weight_norm(of)
    with torch.no_grad():
        of.parametrizations.weight.original0.mul_(n + 1)
    parametrize.remove_parametrizations(of, "weight")


def at_once(change: Callable[[nn.Linear, int], Any]) -> Way:
    return lambda of: partial(change, of)


def in_place(change: Callable[[torch.Tensor, int], Any]) -> Way:
    def changed(of: nn.Linear, n: int) -> None:
        with torch.no_grad():
            change(of.weight, n)

    return at_once(changed)
