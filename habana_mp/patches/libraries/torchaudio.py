"""torchaudio's transforms prepare data: they draw positions, and compute spectra."""

from __future__ import annotations

EXACT_PACKAGES = ("torchaudio.functional", "torchaudio.transforms")
