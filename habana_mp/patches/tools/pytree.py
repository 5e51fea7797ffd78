"""Access to the values in nested lists, tuples and dictionaries, by the private part of torch that torch.func uses."""

from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["tree_leaves", "tree_map"]
