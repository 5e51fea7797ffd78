"""Attributes of modules and classes that are exchanged, and put back."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class ExchangedAttributes:
    """What was exchanged, the last one last."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def exchange(self, owner: Any, name: str, value: Any) -> None:
        """Give ``owner`` itself this attribute; what it inherits stays as it is."""
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def put_back(self) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
