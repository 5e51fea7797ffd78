"""compressai's entropy models round to symbols, which must be the same in `forward`, `compress` and `decompress`."""

EXACT_FUNCTIONS = {
    "compressai.entropy_models.entropy_models": ("Entropy*.*", "Gaussian*.*"),
    "compressai.entropy_models.entropy_models_vbr": ("Entropy*.*",),
}
