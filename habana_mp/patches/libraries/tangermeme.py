"""tangermeme compares the sum of attributions with a difference of outputs. It converts inputs to the model's dtype."""

from habana_mp.patches.tools.casts_off import without_casts
from habana_mp.patches.tools.named_functions import Exchange, assumption_of_library

_FUNCTIONS = assumption_of_library("tangermeme", "explain by differences of outputs")

EXCHANGES = (Exchange(without_casts, {"tangermeme.deep_lift_shap": ("deep_lift_shap",)}, _FUNCTIONS),)
