"""``habana_frameworks.torch.hpex.kernels``: Gaudi's own operators that torch can compute too."""

from __future__ import annotations

from habana_mp.gaudi.finder import NO_FP8, refused

from .attention import FusedSDPA
from .boxes import CustomNms
from .embedding_bags import EmbeddingBag, EmbeddingBagPreProc
from .losses import CTCLoss
from .rotary import (
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingHelperV3,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)
from .softmax import CustomSoftmax

Fp8Ops = refused("Fp8Ops", NO_FP8)

__all__ = [
    "CTCLoss",
    "CustomNms",
    "CustomSoftmax",
    "EmbeddingBag",
    "EmbeddingBagPreProc",
    "Fp8Ops",
    "FusedSDPA",
    "RotaryPosEmbeddingHelperV1",
    "RotaryPosEmbeddingHelperV2",
    "RotaryPosEmbeddingHelperV3",
    "RotaryPosEmbeddingMode",
    "apply_rotary_pos_emb",
]
