"""shap's DeepExplainer compares the sum of its attributions with a difference of the model's outputs."""

from habana_mp.patches.tools.in_float32 import exactly
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_library

_FUNCTIONS = assumption_of_library("shap", "explain by differences of outputs, and are exact")

_EXPLAINER: Table = {"shap.explainers._deep.deep_pytorch": ("PyTorchDeep.__init__", "PyTorchDeep.shap_values")}
EXCHANGES = (Exchange(exactly, _EXPLAINER, _FUNCTIONS),)
