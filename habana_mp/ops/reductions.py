"""Operations that reduce many values to fewer, or that need a whole row for each value of the result: sums, statistics,
softmax, norms and distances."""

from __future__ import annotations

from functools import partial

from habana_mp.ops.operation import KERNEL_FOR_SOME, NO_KERNEL, WIDEST, Castable, Operation

_function = partial(Operation, o2="float32")
_softmax_backward = partial(
    Operation,
    unlisted=WIDEST,
    castable=Castable(
        (0, 1), "its dtype is that of softmax's input and asks for nothing", kept_keywords=("input_dtype",)
    ),
)

_SUMS = (
    Operation("logsumexp", family="special_logsumexp"),
    _function("cumprod cumsum cumulative_trapezoid diff logcumsumexp nansum trapezoid trapz"),
    # These add up in the lower precision: the sum stops growing after a few hundred values.
    Operation("histc segment_reduce", NO_KERNEL),
)

_STATISTICS = (
    _function("corrcoef cov nanmean std std_mean var var_mean"),
    _function("amax amin aminmax cummax cummin max median min mode nanmedian"),
    Operation("nanquantile quantile", NO_KERNEL),
    Operation("histogram histogramdd _histogramdd_bin_edges _histogramdd_from_bin_cts", NO_KERNEL),
)

_SOFTMAX = (
    Operation("softmax", family="special_softmax _softmax", parts="_softmax", is_only_parts=True),
    Operation("log_softmax", family="special_log_softmax _log_softmax", parts="_log_softmax", is_only_parts=True),
    _softmax_backward("_softmax_backward_data _log_softmax_backward_data"),
    Operation("aten::_softmax_backward_data aten::_log_softmax_backward_data", WIDEST),
    Operation("_sparse_softmax _sparse_log_softmax", NO_KERNEL),
)

_NORMS = (
    Operation("norm", family="linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm nuclear_norm"),
    Operation("linalg_norm", KERNEL_FOR_SOME, parts="linalg_vector_norm linalg_matrix_norm"),
    _function("linalg_vector_norm frobenius_norm renorm"),
    Operation("linalg_matrix_norm nuclear_norm", NO_KERNEL),
)

_DISTANCES = (
    Operation("dist pairwise_distance cosine_similarity", WIDEST, parts="norm linalg_vector_norm"),
    Operation("cdist pdist", NO_KERNEL),
)

ROWS = (*_SUMS, *_STATISTICS, *_SOFTMAX, *_NORMS, *_DISTANCES)
