"""``habana_frameworks.torch.hpex.kernels``: Gaudi's own operators that torch can compute too."""

from __future__ import annotations

from .attention import FusedSDPA
from .boxes import CustomNms
from .embedding_bags import EmbeddingBag, EmbeddingBagPreProc
from .fp8 import Fp8Ops
from .losses import CTCLoss
from .rotary import (
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingHelperV3,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)
from .softmax import CustomSoftmax

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
