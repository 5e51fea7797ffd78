"""Files of torch whose code does not count as user code: it implements operations, or computes for its caller."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import torch

from habana_mp.common.ledger import Assumption, UnmetError, holds
from habana_mp.common.paths import PACKAGE

_FILES = Assumption(
    "torch.files-of-operations",
    assumed="torch's code that says what operations consist of, or hands them on, lies in files that we know",
    check="each is there",
    otherwise="operations that are called in code which has moved elsewhere are decided one by one, as a user's",
)

#: Files that implement operations in Python: for tracing, and for tensors without data. Such an operation was decided
#: as a whole. Its parts are not decided again, just as those of an operation in C++.
_INSIDE = (
    *("_decomp/", "_refs/", "_prims/", "_prims_common/", "_inductor/", "_subclasses/"),
    "_meta_registrations.py",
)
#: Files through which such code calls other operations (``1 - x`` is ``Tensor.__rsub__``), and through which Inductor
#: calls the operators of a graph to learn their results.
_BETWEEN = (
    *("_tensor.py", "functional.py", "nn/functional.py", "_ops.py", "fx/interpreter.py"),
    "fx/passes/fake_tensor_prop.py",
)

#: Files of torch that compute for their caller.
_THROUGH = ("distributions/", "quasirandom.py")


@cache
def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for name in names if holds(_FILES, partial(_is_there, path := _path(name)), name))


def _path(name: str) -> str:
    return str(Path(torch.__file__).parent / name) + "/" * name.endswith("/")


def _is_there(path: str) -> bool:
    if not Path(path).exists():
        raise UnmetError(f"{path} is missing")
    return True


def inside_of_operations() -> tuple[str, ...]:
    """Returns the prefixes of files whose code is a part of an operation that was decided already."""
    return _known(_INSIDE)


def between_operations() -> tuple[str, ...]:
    """Returns the files through which such code calls other operations."""
    return _known(_BETWEEN)


def through_to_callers() -> tuple[str, ...]:
    """Returns the files whose code computes for its caller, including this package."""
    return (*between_operations(), *_known(_THROUGH), f"{PACKAGE}/")
