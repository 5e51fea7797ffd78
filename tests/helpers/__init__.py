"""Shared helpers of the tests: data, comparisons, processes. Helpers of a single folder of tests are here too."""

from __future__ import annotations

import pkgutil

import pytest

# Registered before the import of any of them, so that a failing assertion in a helper shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{one.name}" for one in pkgutil.iter_modules(__path__)))
