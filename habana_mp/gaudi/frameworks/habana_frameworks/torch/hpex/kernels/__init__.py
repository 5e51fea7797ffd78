"""``habana_frameworks.torch.hpex.kernels``: Gaudi's own operators that torch can compute too."""

from __future__ import annotations

import torch
from torch import Tensor

from habana_mp import hmp
from habana_mp.gaudi.finder import NO_FP8, refused

from .attention import FusedSDPA
from .rotary import (
    RotaryPosEmbeddingHelperV1,
    RotaryPosEmbeddingHelperV2,
    RotaryPosEmbeddingHelperV3,
    RotaryPosEmbeddingMode,
    apply_rotary_pos_emb,
)

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

Fp8Ops = refused("Fp8Ops", NO_FP8)


class CustomSoftmax:
    """``CustomSoftmax.apply(scores, flavor)``: the softmax over the last dimension, in the precision of its input."""

    @staticmethod
    def apply(input: Tensor, flavor: int = 0) -> Tensor:
        """Returns the exact softmax for each flavor. On Gaudi flavors 1 and 2 approximate it.

        Raises:
            ValueError: ``flavor`` is not 0, 1 or 2.
        """
        if flavor not in (0, 1, 2):
            raise ValueError(f"`flavor` must be 0, 1 or 2; got {flavor!r}")
        with hmp.disable_casts():
            return torch.softmax(input, -1)


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


class EmbeddingBagPreProc(torch.nn.Module):
    """Prepares the indices of bags for :class:`EmbeddingBag`. Gaudi sorts them for its kernels. Torch's kernels need no
    sorting, so here the indices are only checked."""

    def forward(self, indices: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the indices of all bags, one bag after the other, and the beginning of each bag.

        Raises:
            ValueError: one of them is not one-dimensional, or the first bag does not begin at 0.
        """
        if indices.dim() != 1 or offsets.dim() != 1:
            raise ValueError(
                f"`indices` and `offsets` must have one dimension; got {tuple(indices.shape)}, {tuple(offsets.shape)}"
            )
        if len(offsets) and int(offsets[0]) != 0:
            raise ValueError(f"`offsets` must begin with 0; got {int(offsets[0])}")
        return indices, offsets.to(indices.dtype)


class EmbeddingBag(torch.nn.EmbeddingBag):
    """:class:`torch.nn.EmbeddingBag` with the default mode of Gaudi's operator, ``"sum"`` (torch's is ``"mean"``)."""

    def __init__(self, num_embeddings: int, embedding_dim: int, mode: str = "sum", **options: object) -> None:
        super().__init__(num_embeddings, embedding_dim, mode=mode, **options)  # type: ignore[arg-type]  # torch's


class CustomNms:
    """Non-maximum suppression: of boxes that overlap, only the one with the best score remains."""

    def __call__(self, boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
        return self.nms(boxes, scores, iou_threshold)

    def nms(self, boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
        """Returns the indices of the boxes that remain, the best score first.

        Args:
            boxes: One box per row: left, top, right, bottom.
            scores: One score for each box.
            iou_threshold: A box is removed if its intersection with a better one is more than this part of their union.

        Raises:
            ValueError: ``boxes`` or ``scores`` has a wrong shape.
        """
        if boxes.dim() != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
            raise ValueError(
                "`boxes` must have the shape (N, 4) and `scores` (N,); got "
                f"{tuple(boxes.shape)} and {tuple(scores.shape)}"
            )
        # Scores are compared on the device. The remaining boxes are found on the host, one after the other.
        order = torch.argsort(scores, descending=True, stable=True)
        overlaps = (_overlaps(boxes[order].double()) > iou_threshold).cpu()
        remains = torch.ones(len(order), dtype=torch.bool)
        kept = []
        for i in range(len(order)):
            if remains[i]:
                kept.append(i)
                remains &= ~overlaps[i]
        return order[torch.tensor(kept, dtype=torch.long, device=order.device)]

    def batched_nms(self, boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
        """Like :meth:`nms`, for several classes or images: a box removes only boxes with its number in ``idxs``."""
        if not len(boxes):
            return torch.empty(0, dtype=torch.long, device=boxes.device)
        # The boxes of each class are shifted so far that boxes of two classes never overlap.
        boxes = boxes.double()
        width = boxes.max() - boxes.min() + 1
        return self.nms(boxes + (idxs.to(boxes) * width)[:, None], scores, iou_threshold)


def _overlaps(boxes: Tensor) -> Tensor:
    """Returns the matrix of all pairs of boxes: the area of their intersection, divided by that of their union."""
    sizes = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0)
    areas = sizes.prod(1)
    low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    intersections = (high - low).clamp(min=0).prod(2)
    unions = areas[:, None] + areas - intersections
    return torch.where(unions > 0, intersections / unions, torch.zeros_like(unions))
