"""shap's DeepExplainer compares the sum of its attributions with a difference of the model's outputs."""

EXACT_FUNCTIONS = {"shap.explainers._deep.deep_pytorch": ("PyTorchDeep.__init__", "PyTorchDeep.shap_values")}
