"""``Trainer(accelerator="hpu")`` of Lightning, whose later releases support HPUs by ``lightning_habana`` only."""

from __future__ import annotations

import importlib.util
from typing import Any

from habana_mp.common.ledger import Assumption, holds
from habana_mp.gaudi.patches.names import Meaning
from habana_mp.patches.tools.code_exchange import Replacement
from habana_mp.patches.tools.exchanged_attributes import ExchangedAttributes
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


_SYNAPSE = Assumption(
    "lightning-habana.version",
    assumed="lightning_habana.utils.resources.get_hpu_synapse_version asks the program hl-smi for the release",
    check="it can be called",
    otherwise="lightning_habana takes the release for 0.0.0, and refuses its precision plugin",
)

#: The release whose names the stand-in has.
RELEASE = "1.23.0"


class HpuRelease(WhenImported):
    """Tells lightning_habana the release, for which it would start Gaudi's program hl-smi."""

    name = "lightning_habana.utils.resources"

    def __init__(self) -> None:
        super().__init__()
        self._attributes = ExchangedAttributes()

    def do(self, module: Any) -> None:
        if holds(_SYNAPSE, lambda: callable(module.get_hpu_synapse_version), self.name):
            self._attributes.exchange(module, "get_hpu_synapse_version", lambda: RELEASE)

    def undo(self, module: Any) -> None:
        self._attributes.put_back()


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

    def _supports_hpus(self) -> bool:
        """True if Lightning has an accelerator for HPUs, of its own (until 2.0) or of the package beside it."""
        own = f"{self.name.removesuffix('.trainer.trainer')}.accelerators.hpu"
        found = (importlib.util.find_spec(name) for name in (own, "lightning_habana"))
        # Later releases lead the first name to a module that only warns.
        return any(spec is not None and spec.name in (own, "lightning_habana") for spec in found)

    def _begin(self, original: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        given = keywords.get("accelerator")
        if isinstance(given, str) and self._meaning.means(given) and not self._supports_hpus():
            real = self._meaning.real_of(given, "Lightning's accelerator").type
            keywords = {**keywords, "accelerator": _NAMES.get(real, real)}
        return original(*arguments, **keywords)
