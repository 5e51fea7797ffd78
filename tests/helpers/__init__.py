"""What several tests use: data, comparisons, processes. What only the tests of one folder use is here too."""

from __future__ import annotations

import pkgutil

import pytest

# Before any of them is imported, so that an assertion in a helper tells what it compared.
pytest.register_assert_rewrite(*(f"{__name__}.{one.name}" for one in pkgutil.iter_modules(__path__)))
