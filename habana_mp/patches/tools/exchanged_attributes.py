"""Attributes of modules and classes that are replaced and restored."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class ExchangedAttributes:
    """The replaced attributes with their former and their new values, the latest one last."""

    def __init__(self) -> None:
        self._exchanged: list[tuple[Any, str, Any, Any]] = []

    def exchange(self, owner: Any, name: str, value: Any) -> None:
        """Sets this attribute on ``owner`` itself; inherited attributes stay unchanged."""
        self._exchanged.append((owner, name, vars(owner).get(name, _MISSING), value))
        setattr(owner, name, value)

    def put_back(self) -> None:
        """Restores the former values. An attribute that other code has replaced since keeps its present value."""
        while self._exchanged:
            owner, name, before, value = self._exchanged[-1]
            if vars(owner).get(name, _MISSING) is value:
                if before is _MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)
            self._exchanged.pop()
