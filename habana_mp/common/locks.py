"""The locks of the state that this package has once for each process.

A fork waits until other threads have released them. So they are free in a forked child, and torch is either completely
converted or not at all.
"""

from __future__ import annotations

import os
import threading

#: Guards what is installed in torch, and how much the watch records.
installation = threading.RLock()
#: Guards the patches that wait for a module. It is never held during an import, which has locks of its own.
imports = threading.RLock()

#: The order in which a thread may acquire them.
_IN_ORDER = (installation, imports)


def _acquire_all() -> None:
    for lock in _IN_ORDER:
        lock.acquire()


def _release_all() -> None:
    for lock in reversed(_IN_ORDER):
        lock.release()


os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
