"""``Trainer(accelerator="hpu")`` of Lightning, which no longer supports HPUs."""

from __future__ import annotations

from typing import Any

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.when_imported import WhenImported

_TRAINER = Assumption(
    "lightning.trainer",
    assumed="Lightning's Trainer takes `accelerator`, by name, in a constructor of Python's",
    check="the constructor has code",
    otherwise='Lightning refuses accelerator="hpu"',
)

TRAINERS = ("pytorch_lightning.trainer.trainer", "lightning.pytorch.trainer.trainer")

#: Lightning's names of devices.
_NAMES = {"cuda": "gpu"}


class HpuTrainer(WhenImported):
    """Replaces the accelerator by the real device."""

    def __init__(self, name: str, meaning: Meaning) -> None:
        super().__init__()
        self.name = name
        self._meaning = meaning
        self._replacement: Replacement | None = None

    def do(self, module: Any) -> None:
        if holds(_TRAINER, lambda: hasattr(module.Trainer.__init__, "__code__"), self.name):
            self._replacement = Replacement(module.Trainer.__init__, self._begin)
            self._replacement.install()

    def undo(self, module: Any) -> None:
        if self._replacement is not None:
            self._replacement.uninstall()
            self._replacement = None

    def _begin(self, original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given = keywords.get("accelerator")
        if isinstance(given, str) and self._meaning.means(given):
            real = self._meaning.real_of(given, "Lightning's accelerator").type
            keywords = {**keywords, "accelerator": _NAMES.get(real, real)}
        return original(*arguments, **keywords)
