"""What ends a block and must be done, also when memory runs out in the middle of it."""

from __future__ import annotations

from collections.abc import Callable


def surely(undo: Callable[[], None]) -> None:
    """Calls this function, and calls it again if no memory was left. It must be able to run twice, and
    must exist before the block begins: memory may run out as it is made."""
    try:
        undo()
    except MemoryError:
        undo()
        raise
