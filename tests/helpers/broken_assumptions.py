"""Assumptions of Python that do not hold for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from habana_mp.common import ledger


@contextmanager
def broken(name: str) -> Iterator[None]:
    """While the block runs, this assumption does not hold, and is asked again."""
    with patch.dict(ledger._found, {name: {}}), patch.object(ledger, "_broken", {*ledger._broken, name}):
        yield
