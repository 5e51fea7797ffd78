"""Runs ``python`` with the given words in a sandbox.

    PYTHONPATH=tests python -m helpers.sandboxed -m pytest tests/weights

A filter of system calls refuses what gVisor, the profiles of container engines and services of systemd refuse, or what
emulators lack. The filter holds for all processes that this one starts. ``REFUSED_WITH`` names the error of a
refused call: ``EPERM`` (the default), ``ENOSYS``, or ``KILL``, which ends the process instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

#: The numbers of refused calls by machine, from the kernel's table of system calls.
_REFUSED = {
    "x86_64": {"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "perf_event_open": 298}
    | {"get_mempolicy": 239, "move_pages": 279, "userfaultfd": 323, "membarrier": 324, "io_uring_setup": 425},
    "aarch64": {"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "perf_event_open": 241}
    | {"get_mempolicy": 236, "move_pages": 239, "userfaultfd": 282, "membarrier": 283, "io_uring_setup": 425},
}
_LOAD, _EQUALS, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def enter(refused_with: str) -> None:
    """Refuses the calls for this process and its future children. It cannot be undone."""
    numbers = _REFUSED[platform.machine()].values()
    action = _KILL if refused_with == "KILL" else _ERROR | int(getattr(errno, refused_with))
    lines = [
        (_LOAD, 0, 0, 0),  # the number of the system call
        *((_EQUALS, len(numbers) - i, 0, number) for i, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, action),
    ]
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    program = _Program(len(lines), code)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "the filter of system calls was refused")


if __name__ == "__main__":
    enter(os.environ.get("REFUSED_WITH", "EPERM"))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
