"""Packages of Python that a test writes and imports."""

from __future__ import annotations

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

#: The modules of the package, by file.
_FILES = {
    "__init__.py": "",
    "inner/__init__.py": "",
    "inner/deep.py": """
        def product(x, y):
            return x @ y
    """,
    "sums.py": """
        def product(x, y):
            return x @ y
    """,
    "arithmetic.py": """
        import torch

        def product(x, y):
            return x @ y

        def by_generator(x, y):
            return next(one @ y for one in [x])

        def through_torch(x):
            return torch.distributions.Normal(x, torch.ones_like(x)).log_prob(x)

        def all_of_them(layer, x):
            y = x @ x
            z = layer(y)
            return y, z, z @ y, torch.softmax(z, -1), (lambda a: a @ a)(x)

        def broken(x):
            y = x @ x
            print(end="")
            z = x @ x
            torch._dynamo.graph_break()
            return y, z, x @ x
    """,
}

_lines = itertools.count()


@contextmanager
def own_package(folder: Path, name: str) -> Iterator[Callable[[str], Any]]:
    """Writes a package of this name. Yields a function that imports one of its modules."""
    for file, source in _FILES.items():
        path = folder / name / file
        path.parent.mkdir(exist_ok=True)
        # Dynamo confuses functions within functions if their code and lines are equal, even if their files differ.
        path.write_text("\n" * next(_lines) + textwrap.dedent(source), encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()

    def imported(module: str = "") -> ModuleType:
        return importlib.import_module(f"{name}.{module}" if module else name)

    try:
        yield imported
    finally:
        sys.path.remove(str(folder))
        for module in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[module]
