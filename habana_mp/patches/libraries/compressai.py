"""compressai's entropy models round to symbols, which must be the same in `forward`, `compress` and `decompress`."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("compressai", "compute entropy models, and are exact")

_MODELS: Table = {
    "compressai.entropy_models.entropy_models": ("Entropy*.*", "Gaussian*.*"),
    "compressai.entropy_models.entropy_models_vbr": ("Entropy*.*",),
}
EXCHANGES = (Exchange(exactly, _MODELS, _FUNCTIONS),)
