"""compressai's entropy models round to symbols, which must be the same in `forward`, `compress` and `decompress`."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("compressai", "compute entropy models, and are exact")

_MODELS = ("Entropy*.*", "Gaussian*.*")
_FILES: Table = {f"compressai.entropy_models.{name}": _MODELS for name in ("entropy_models", "entropy_models_vbr")}
EXCHANGES = (Exchange(exactly, _FILES, _FUNCTIONS, some=True),)
