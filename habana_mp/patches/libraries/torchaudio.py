"""torchaudio's transforms prepare data: they draw positions, and compute spectra."""

EXACT_PACKAGES = ("torchaudio.functional", "torchaudio.transforms")
