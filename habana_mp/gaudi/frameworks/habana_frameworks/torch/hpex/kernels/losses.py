"""Gaudi's losses."""

from __future__ import annotations

import torch
from torch import Tensor

from habana_mp import hmp

__all__ = ["CTCLoss"]


class CTCLoss:
    """``CTCLoss.apply(...)``: :func:`torch.nn.functional.ctc_loss`, in float32."""

    @staticmethod
    def apply(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
    ) -> Tensor:
        """Returns the loss. Targets behind ``target_lengths`` may have any value, such as -100."""
        with hmp.disable_casts():
            return torch.nn.functional.ctc_loss(
                log_probs.float(), targets, input_lengths, target_lengths, blank, reduction, zero_infinity
            )
