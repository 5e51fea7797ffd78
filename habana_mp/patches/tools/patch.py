"""The base class of all patches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from habana_mp.policy.exact import NOTHING_EXACT, ExactCode
from habana_mp.policy.options import Options


@dataclass(frozen=True)
class Settings:
    """The parts of a configuration that patches use."""

    options: Options = field(default_factory=Options)
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
