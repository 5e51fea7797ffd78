"""``habana_frameworks.torch.utils.lib_utils``: the folders of Gaudi's headers and libraries, which are not here."""

from __future__ import annotations

__all__ = ["get_include_dir", "get_lib_dir"]


def get_include_dir() -> str:
    """Raises NotImplementedError: there are no headers."""
    raise NotImplementedError(_missing("get_include_dir", "headers"))


def get_lib_dir() -> str:
    """Raises NotImplementedError: there are no libraries."""
    raise NotImplementedError(_missing("get_lib_dir", "libraries"))


def _missing(name: str, what: str) -> str:
    return (
        f"`{name}` is not in habana_mp's stand-in for Gaudi: kernels of your own for Gaudi are built with its {what}, "
        "and no other device can run them. Write the operation with torch, or as a torch.autograd.Function"
    )
