"""Reads the environment variables that decide about casts."""

from __future__ import annotations

import os

#: The environment variable that makes a script its own reference in float32: with the value O0 nothing is cast,
#: whatever the script requests.
LEVEL_VARIABLE = "HABANA_MP_OPT_LEVEL"


def level_of_environment() -> str | None:
    """Returns ``"O0"`` if the environment switches all casts off, else None.

    Raises:
        ValueError: the variable has another value.
    """
    given = os.environ.get(LEVEL_VARIABLE, "")
    if given.upper() not in ("", "O0"):
        raise ValueError(f"{LEVEL_VARIABLE} must be O0, which switches all casts off, or unset; got {given!r}")
    return given.upper() or None
