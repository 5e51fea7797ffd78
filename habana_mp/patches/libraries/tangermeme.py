"""tangermeme compares the sum of attributions with a difference of outputs. It converts inputs to the model's dtype."""

WITHOUT_CASTS = {"tangermeme.deep_lift_shap": ("deep_lift_shap",)}
