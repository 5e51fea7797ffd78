"""Attributes of modules and classes that are replaced and restored."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class ExchangedAttributes:
    """The replaced attributes with their former values, the latest one last."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def exchange(self, owner: Any, name: str, value: Any) -> None:
        """Sets this attribute on ``owner`` itself; inherited attributes stay unchanged."""
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def put_back(self) -> None:
        while self._before:
            owner, name, before = self._before.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
