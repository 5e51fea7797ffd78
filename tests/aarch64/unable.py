"""Tests that an emulator of a processor cannot run, and why."""

#: By the beginning of their names.
UNABLE = {
    "tests/host/test_sandbox.py": "its filter would meet the system calls of the emulator",
    "tests/rules/test_decisions.py": "it starts a program that it has compiled, which the system would have to emulate",
}
