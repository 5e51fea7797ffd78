"""What patches note for the report beside what the core counts, and what a record has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class _Notes:
    are_taken = True


notes = _Notes()


@contextmanager
def no_notes() -> Iterator[None]:
    """A block in which no thread notes anything for the report, or records it."""
    notes.are_taken = False
    try:
        yield
    finally:
        notes.are_taken = True
