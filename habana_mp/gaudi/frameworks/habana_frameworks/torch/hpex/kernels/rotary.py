"""Rotary embeddings of positions: pairs of values are rotated by the angle of their position.

They are computed in float32, or in float64 for such inputs, and returned in the precision of the rotated tensor.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from habana_mp import hmp


class RotaryPosEmbeddingMode(enum.Enum):
    """Tells which values of the last dimension form a pair."""

    BLOCKWISE = 0  # a value of the first half and one of the second half
    PAIRWISE = 1  # two neighbours


def apply_rotary_pos_emb(
    p: Tensor,
    cos: Tensor,
    sin: Tensor | None = None,
    position_ids: Tensor | None = None,
    offset: int = 0,
    mode: RotaryPosEmbeddingMode = RotaryPosEmbeddingMode.BLOCKWISE,
) -> Tensor:
    """Returns ``p`` with each pair of values rotated.

    Args:
        p: The tensor to rotate.
        cos: The cosine of each angle, which is broadcast to ``p``. Without ``sin``, cosine and sine of each pair, as
            for :class:`RotaryPosEmbeddingHelperV3`.
        sin: The sine of each angle.
        position_ids: The position of each token, of shape (batch, tokens): it chooses rows of ``cos`` and ``sin``, of
            shape (..., positions, values). ``p`` then has the shape (batch, heads, tokens, values) or (batch, tokens,
            values).
        offset: The position of the first token, without ``position_ids``.
        mode: The way in which values form pairs.
    """
    if sin is None:
        return _rotated_by_cache(p, cos)
    if position_ids is not None:
        cos, sin = (_rows(table, position_ids, p.dim()) for table in (cos, sin))
    elif mode is RotaryPosEmbeddingMode.BLOCKWISE:
        cos, sin = (_from_offset(table, p, offset) for table in (cos, sin))
    exact = _exact_dtype(p, cos)
    with hmp.disable_casts():
        x = p.to(exact)
        if mode is RotaryPosEmbeddingMode.PAIRWISE:
            turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        else:
            first, second = x.chunk(2, -1)
            turned = torch.cat((-second, first), -1)
        return (x * cos.to(exact) + turned * sin.to(exact)).to(p.dtype)


def _exact_dtype(p: Tensor, table: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(p.dtype, table.dtype), torch.float32)


def _rows(table: Tensor, position_ids: Tensor, dimensions: int) -> Tensor:
    """Returns the table's rows for these positions, with an axis for heads if the rotated tensor has one."""
    ids = position_ids.long()
    while table.dim() > 2 and table.shape[0] == 1:
        table = table[0]
    if table.dim() == 2:
        found = table[ids]
    else:  # a table for each sequence of the batch
        each = table.reshape(table.shape[0], *table.shape[-2:])
        ids = ids.expand(each.shape[0], -1)  # one row of positions may stand for all sequences
        found = each.gather(1, ids[..., None].expand(*ids.shape, each.shape[-1]))
    return found.unsqueeze(1) if dimensions == 4 else found


def _from_offset(table: Tensor, p: Tensor, offset: int) -> Tensor:
    """Returns the part of the table for the tokens of ``p``. The axis of positions is the only one, besides the last
    one, along which the table changes.

    Raises:
        ValueError: ``offset`` is given, and the table has no such axis or several of them.
    """
    axes = [axis for axis in range(-table.dim(), -1) if table.shape[axis] != 1]
    if len(axes) != 1 or -axes[0] > p.dim():
        if offset:
            raise ValueError(
                f"`offset` needs a `cos` and `sin` with one axis of positions; got {tuple(table.shape)} for a tensor "
                f"of shape {tuple(p.shape)}"
            )
        return table
    tokens = p.shape[axes[0]]
    return table if not offset and table.shape[axes[0]] == tokens else table.narrow(axes[0], offset, tokens)


def _rotated_by_cache(p: Tensor, cache: Tensor) -> Tensor:
    """Returns ``p`` with neighbours rotated by a cache of cosines and sines. Values behind those of the cache stay.

    ``p`` has the shape (batch, heads, tokens, values) and the cache (batch or 1, tokens, pairs, 2), as in ChatGLM3 and
    later; or (tokens, batch, heads, values) and (tokens, batch or 1, pairs, 2), as in ChatGLM2.

    Raises:
        ValueError: the shapes are others.
    """
    pairs = cache.shape[-2]
    exact = _exact_dtype(p, cache)
    is_readable = p.dim() == cache.dim() == 4 and cache.shape[-1] == 2 and 2 * pairs <= p.shape[-1]
    if is_readable and cache.shape[0] in (1, p.shape[0]) and cache.shape[1] >= p.shape[2]:
        angles = cache[:, : p.shape[2]].unsqueeze(1)
    elif is_readable and cache.shape[0] >= p.shape[0] and cache.shape[1] in (1, p.shape[1]):
        angles = cache[: p.shape[0]].unsqueeze(2)
    else:
        raise ValueError(
            "`rope_cache` must have the shape (batch, tokens, pairs, 2) for a tensor of shape (batch, heads, tokens, "
            f"values); got {tuple(cache.shape)} and {tuple(p.shape)}"
        )
    with hmp.disable_casts():
        cos, sin = angles.to(exact).unbind(-1)
        rotated, rest = p[..., : 2 * pairs], p[..., 2 * pairs :]
        x, y = rotated.to(exact).reshape(*rotated.shape[:-1], pairs, 2).unbind(-1)
        made = torch.stack((x * cos - y * sin, y * cos + x * sin), -1).flatten(-2).to(p.dtype)
    return torch.cat((made, rest), -1) if rest.shape[-1] else made


class RotaryPosEmbeddingHelperV1:
    """``apply(p, cos, sin, offset)``: the positions begin at ``offset``."""

    @staticmethod
    def apply(p: Tensor, cos: Tensor, sin: Tensor, offset: int = 0) -> Tensor:
        return apply_rotary_pos_emb(p, cos, sin, None, offset)


class RotaryPosEmbeddingHelperV2:
    """``apply(p, cos, sin, position_ids)``: each token has its own position."""

    @staticmethod
    def apply(p: Tensor, cos: Tensor, sin: Tensor, position_ids: Tensor | None = None) -> Tensor:
        return apply_rotary_pos_emb(p, cos, sin, position_ids)


class RotaryPosEmbeddingHelperV3:
    """``apply(p, rope_cache)``: neighbours are pairs, and the cache has cosine and sine of each."""

    @staticmethod
    def apply(p: Tensor, rope_cache: Tensor) -> Tensor:
        return apply_rotary_pos_emb(p, rope_cache)
