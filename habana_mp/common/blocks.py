"""Blocks of code with an effect on the whole process."""

from __future__ import annotations

from habana_mp import _core


class ProcessBlock:
    """A context manager that begins and ends completely at whatever moment Ctrl-C comes: the core counts, and calls
    `settle` again if it was interrupted."""

    #: How often the block is entered and not yet left, in all threads.
    entrances = 0

    def settle(self) -> None:
        """Begins if the block is entered, ends if it is not, and completes what was done in part."""

    __enter__ = _core.enter_process_block
    __exit__ = _core.leave_process_block
