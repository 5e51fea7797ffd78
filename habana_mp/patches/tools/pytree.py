"""Access to the values in nested lists, tuples and dictionaries, by the private part of torch that torch.func uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from habana_mp.common.ledger import Assumption, holds

_PYTREE = Assumption(
    "torch.pytree",
    assumed="`torch.utils._pytree` has `tree_map`, with `is_leaf`, and `tree_leaves`",
    check="they are tried on a nest",
    otherwise="nothing is found in arguments or results: torch refuses what is lower where it wants float32",
)


def _works() -> bool:
    from torch.utils import _pytree

    mapped = _pytree.tree_map(str, ([1], {"a": (2,)}), is_leaf=lambda value: value == (2,))
    return bool(mapped == (["1"], {"a": "(2,)"}) and _pytree.tree_leaves([1, (2,)]) == [1, 2])


tree_map: Callable[..., Any] = lambda _, value, **__: value  # noqa: E731  # torch's function has this name
tree_leaves: Callable[..., list[Any]] = lambda _: []  # noqa: E731  # likewise
if holds(_PYTREE, _works):
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: F401  # for other modules
