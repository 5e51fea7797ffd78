"""The base class of all patches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch

from habana_mp.policy.exact import NOTHING_EXACT, ExactCode

#: Lists lower everywhere (None), while the forward of any module runs (``"modules"``), or while the forward of one of
#: these modules runs.
Within = Literal["modules"] | list[torch.nn.Module] | None


@dataclass(frozen=True)
class Settings:
    """The parts of a configuration that patches use."""

    within: Within = None
    weight_cache: bool = True
    weight_cache_limit: int | None = None
    packed_weights: bool = True
    reuse_memory: bool = True
    exact: ExactCode = NOTHING_EXACT


class Patch(ABC):
    """A change to torch while lists are in force, which is undone completely afterwards.

    A patch declares what it relies on in the ledger (:class:`habana_mp.common.ledger.Assumption`), and checks it first.
    """

    def check(self, settings: Settings) -> None:
        """Raises if something is missing that :meth:`install` cannot do without. Changes nothing."""
        return None

    @abstractmethod
    def install(self, settings: Settings) -> None:
        """Installs the patch. If it is installed already, it follows these settings."""

    @abstractmethod
    def uninstall(self) -> None:
        """Uninstalls the patch, even if it is installed only partly. A no-op if it is not installed."""
