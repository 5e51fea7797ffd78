"""Non-maximum suppression."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CustomNms"]


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
