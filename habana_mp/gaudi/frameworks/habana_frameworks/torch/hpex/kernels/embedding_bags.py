"""Sums of embeddings."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["EmbeddingBag", "EmbeddingBagPreProc"]


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
