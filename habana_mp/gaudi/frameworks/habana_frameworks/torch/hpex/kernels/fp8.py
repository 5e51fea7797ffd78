"""fp8, which is for Gaudi's own kernels."""

from __future__ import annotations

from typing import Any


class Fp8Ops:
    """Raises NotImplementedError when it is called."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError(
            "`Fp8Ops` is not in habana_mp's stand-in for Gaudi: fp8 is for Gaudi's own kernels; use bfloat16, by "
            "hmp.convert or torch.autocast"
        )
