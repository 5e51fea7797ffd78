"""The errors and warnings of habana_mp."""

from __future__ import annotations

import warnings

from habana_mp.common.places import line_of_user


class HmpWarning(UserWarning):
    """A warning of habana_mp about a problem that does not stop the program."""


class ListError(ValueError):
    """Operation lists that cannot be used. The message has one line per problem, with its file and line."""


def warn(text: str) -> None:
    """Warns at the line of the user's code."""
    warnings.warn_explicit(text, HmpWarning, *line_of_user())
