"""Runs the cleanup of a block, also if memory runs out in it."""

from __future__ import annotations

from collections.abc import Callable


def run_cleanup(undo: Callable[[], None]) -> None:
    """Calls ``undo``. If it raises MemoryError, calls it once more, and then raises that error.

    ``undo`` must be safe to call twice. Make it before the block begins: making it needs memory.
    """
    try:
        undo()
    except MemoryError:
        undo()
        raise
