"""Losses."""

from __future__ import annotations

from functools import partial

from habana_mp.ops.operation import FIRST_INPUT, NO_KERNEL, WIDEST, Operation

_loss = partial(Operation, unlisted=WIDEST)

ROWS = (
    _loss(
        "cross_entropy_loss",
        spellings="cross_entropy",
        parts="log_softmax special_log_softmax _log_softmax nll_loss nll_loss_nd nll_loss2d",
        is_only_parts=True,
        parts_follow=True,
    ),
    Operation("nll_loss", FIRST_INPUT, family="nll_loss_nd nll_loss2d"),
    Operation("nll_loss_nd", FIRST_INPUT, parts="nll_loss nll_loss2d", is_only_parts=True),
    Operation("nll_loss2d", FIRST_INPUT),
    Operation(
        "torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
        FIRST_INPUT,
    ),
    _loss("binary_cross_entropy"),
    # It rounds two terms to the lower precision, and only their difference remains.
    Operation("binary_cross_entropy_with_logits", NO_KERNEL, parts="binary_cross_entropy", parts_follow=True),
    _loss("kl_div", parts="log xlogy"),
    _loss("poisson_nll_loss", parts="exp log"),
    _loss("soft_margin_loss", parts="exp log1p"),
    _loss("cosine_embedding_loss", parts="cosine_similarity"),
    _loss("triplet_margin_loss", parts="pairwise_distance norm linalg_vector_norm"),
    _loss("hinge_embedding_loss huber_loss l1_loss margin_ranking_loss mse_loss smooth_l1_loss"),
    Operation("multilabel_soft_margin_loss", o2="float32"),
    Operation("multilabel_margin_loss", NO_KERNEL, spellings="multilabel_margin_loss_forward"),
    Operation("ctc_loss _ctc_loss multi_margin_loss", NO_KERNEL),
)
