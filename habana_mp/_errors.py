"""What habana_mp raises and warns with."""

from __future__ import annotations


class HmpWarning(UserWarning):
    """Something a user should know that stops nothing."""


class ListError(ValueError):
    """An operation list that cannot be used: the message names the file and the line."""
