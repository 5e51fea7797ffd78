"""What every patch is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch

#: Where lists lower: None for everywhere, ``"modules"`` while any module's forward runs, or while that of one of these.
Within = Literal["modules"] | list[torch.nn.Module] | None


@dataclass(frozen=True)
class Settings:
    """What patches ask of a configuration."""

    within: Within = None
    weight_cache: bool = True
    weight_cache_limit: int | None = None
    packed_weights: bool = True
    reuse_memory: bool = True


class Patch(ABC):
    """Something that is put into torch while lists are in force, and taken out again without a trace.

    What it relies on it declares in the ledger (:class:`habana_mp.common.ledger.Assumption`), and asks before.
    """

    def check(self, settings: Settings) -> None:
        """Raise where :meth:`install` could not do without what is missing here. Nothing is changed."""
        return None

    @abstractmethod
    def install(self, settings: Settings) -> None:
        """Put it in. Where it is in already, it follows these settings."""

    @abstractmethod
    def uninstall(self) -> None:
        """Take it out, also what was put in by half. Where nothing is in, this does nothing."""
