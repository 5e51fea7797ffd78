"""Access to the values in nested lists, tuples and dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from habana_mp.common.ledger import Assumption, holds

_PYTREE = Assumption(
    "torch.pytree",
    assumed="`torch.utils._pytree` has `tree_map`, with `is_leaf`, and `tree_leaves`",
    check="they are tried on a nest",
    otherwise="code of our own looks into lists, tuples and dictionaries, and no other containers",
)


def _works() -> bool:
    from torch.utils import _pytree

    mapped = _pytree.tree_map(str, ([1], {"a": (2,)}), is_leaf=lambda value: isinstance(value, tuple) and value == (2,))
    return bool(mapped == (["1"], {"a": "(2,)"}) and _pytree.tree_leaves([1, (2,)]) == [1, 2])


def _map(function: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] = lambda _: False) -> Any:
    """Returns the same nest with the function applied to each leaf."""
    if is_leaf(value):
        return function(value)
    if isinstance(value, dict):
        return {key: _map(function, one, is_leaf) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, one, is_leaf) for one in value))
    if type(value) in (list, tuple):
        return type(value)([_map(function, one, is_leaf) for one in value])
    return function(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    _map(found.append, value)
    return found


tree_map: Callable[..., Any] = _map
tree_leaves: Callable[..., list[Any]] = _leaves
if holds(_PYTREE, _works):
    from torch.utils._pytree import tree_leaves, tree_map  # noqa: F401  for other modules
