"""Gaudi's attention."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from habana_mp import hmp


class FusedSDPA:
    """``FusedSDPA.apply(...)``: :func:`torch.nn.functional.scaled_dot_product_attention`.

    Convert's lists decide on its precision as they decide on torch's function. The parameters that choose how Gaudi
    computes it (``softmax_mode``, ``recompute_mode``) change nothing here.
    """

    @staticmethod
    def apply(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: Any = "None",
        recompute_mode: bool | None = None,
        valid_seq_len: Tensor | None = None,
        seq_padding_type: str = "left",
        return_dropout_mask: bool = False,
        return_attn_probs: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        sink: Tensor | None = None,
    ) -> Any:
        """Returns the attention's result; with ``return_attn_probs`` also its probabilities.

        Args:
            query, key, value: As in torch. Keys and values may have fewer heads than queries.
            attn_mask: As in torch, also together with ``is_causal``.
            dropout_p, is_causal, scale: As in torch.
            valid_seq_len: The number of valid tokens of each sequence.
            seq_padding_type: The side of the tokens that are not valid, ``"left"`` or ``"right"``.
            window_size: The numbers of keys before and after its own that a query sees; -1 for all.
            sink: One score for each head, which takes part in the softmax and has no value.

        A query that sees no key has a result of zeros.

        Raises:
            ValueError: ``seq_padding_type`` is another word, or ``attn_mask`` holds integers.
            NotImplementedError: ``return_dropout_mask`` is true.
        """
        if return_dropout_mask:
            raise NotImplementedError(
                "`return_dropout_mask` is not in habana_mp's stand-in for Gaudi: torch's attention does not tell which "
                "values it dropped. Compute the attention from `torch.softmax` and `torch.dropout`"
            )
        allowed = _allowed(query, key, is_causal, valid_seq_len, seq_padding_type, window_size)
        if return_attn_probs or sink is not None:
            return _in_parts(query, key, value, attn_mask, allowed, dropout_p, scale, sink, return_attn_probs)
        options: dict[str, Any] = {"scale": scale, "enable_gqa": query.shape[-3] != key.shape[-3]}
        only_causal = is_causal and attn_mask is None and valid_seq_len is None and window_size == (-1, -1)
        if only_causal:
            return F.scaled_dot_product_attention(query, key, value, None, dropout_p, True, **options)
        mask = _joined(query, attn_mask, allowed)
        result = F.scaled_dot_product_attention(query, key, value, mask, dropout_p, False, **options)
        # Torch's releases return zeros or NaN for a query without a key, also in the gradients.
        return result if allowed is None else result.masked_fill(~allowed.any(-1, keepdim=True), 0)


def _allowed(
    query: Tensor,
    key: Tensor,
    is_causal: bool,
    valid_seq_len: Tensor | None,
    seq_padding_type: str,
    window_size: tuple[int, int],
) -> Tensor | None:
    """Returns the keys that each query sees, of shape (tokens, keys) or (batch, 1, tokens, keys); None for all."""
    if seq_padding_type not in ("left", "right"):
        raise ValueError(f'`seq_padding_type` must be "left" or "right"; got {seq_padding_type!r}')
    tokens, keys = query.shape[-2], key.shape[-2]
    before, after = window_size
    if not is_causal and valid_seq_len is None and before < 0 and after < 0:
        return None
    own = torch.arange(tokens, device=query.device)[:, None]
    other = torch.arange(keys, device=query.device)
    allowed = torch.ones(tokens, keys, dtype=torch.bool, device=query.device)
    if is_causal:
        allowed &= other <= own
    if before >= 0:
        allowed &= other >= own - before
    if after >= 0:
        allowed &= other <= own + after
    if valid_seq_len is None:
        return allowed
    lengths = valid_seq_len.to(query.device).long().view(-1, *[1] * (query.dim() - 1))
    is_valid = other < lengths if seq_padding_type == "right" else other >= keys - lengths
    return allowed & is_valid


def _joined(query: Tensor, attn_mask: Tensor | None, allowed: Tensor | None) -> Tensor | None:
    """Returns one mask for both, in which a query without a key has all keys. Numbers beyond the range of the query's
    precision become its largest ones."""
    if allowed is not None:
        allowed = allowed | ~allowed.any(-1, keepdim=True)
    if attn_mask is None:
        return allowed
    if attn_mask.dtype is torch.bool:
        return attn_mask if allowed is None else attn_mask & allowed
    if not attn_mask.is_floating_point():
        raise ValueError(f"`attn_mask` must be boolean or floating-point; got {attn_mask.dtype}: use `mask.bool()`")
    with hmp.disable_casts():
        mask = attn_mask
        if mask.dtype is not query.dtype:
            largest = torch.finfo(query.dtype).max
            mask = mask.to(torch.promote_types(mask.dtype, query.dtype))  # which holds the largest number
            mask = torch.where(mask.isinf(), mask, mask.clamp(-largest, largest)).to(query.dtype)
        return mask if allowed is None else mask.masked_fill(~allowed, -math.inf)


def _repeated(query: Tensor, given: Tensor) -> Tensor:
    """Returns keys or values with as many heads as the query has."""
    return given.repeat_interleave(query.shape[-3] // given.shape[-3], -3)


def _in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    allowed: Tensor | None,
    dropout_p: float,
    scale: float | None,
    sink: Tensor | None,
    return_attn_probs: bool,
) -> Any:
    """Returns the attention from its definition."""
    mask = _joined(query, attn_mask, None)
    key, value = _repeated(query, key), _repeated(query, value)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = (query @ key.transpose(-2, -1)).float() * factor
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    if sink is not None:
        column = sink.to(scores.dtype).view(-1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    sees_nothing = scores.isneginf().all(-1, keepdim=True)
    probabilities = torch.softmax(scores.masked_fill(sees_nothing, 0), -1).masked_fill(sees_nothing, 0)
    probabilities = (probabilities if sink is None else probabilities[..., :-1]).to(query.dtype)
    result = torch.dropout(probabilities, dropout_p, dropout_p > 0) @ value
    return (result, probabilities) if return_attn_probs else result
