"""Operations whose results may have infinities or NaN on purpose, and operations that the guard sees besides those that
the watch sees."""

from __future__ import annotations

#: Infinite at some numbers, in every precision: the logarithm of zero, the quotient by zero.
POLES = frozenset(
    (
        *("log", "log2", "log10", "log1p", "logit", "atanh", "arctanh", "xlogy", "special_entr", "special_xlog1py"),
        *("special_xlogy", "special_logit", "special_log1p", "lgamma", "special_gammaln", "digamma", "special_psi"),
        *("polygamma", "special_polygamma", "special_zeta", "special_ndtri", "special_log_ndtr", "erfinv"),
        *("special_erfinv", "logsumexp", "special_logsumexp", "logaddexp", "logaddexp2"),
        *("div", "divide", "true_divide", "__truediv__", "__rtruediv__", "__div__", "floor_divide", "__floordiv__"),
        *("reciprocal", "rsqrt", "pow", "__pow__", "__rpow__", "float_power", "ldexp"),
        *("nll_loss", "nll_loss_nd", "nll_loss2d", "kl_div", "cross_entropy_loss"),
        *("special_bessel_y0", "special_bessel_y1", "special_modified_bessel_k0", "special_modified_bessel_k1"),
    )
)

#: Sums: the target of one in place may be a mask.
SUMS = ("add", "__iadd__", "sub", "subtract", "__isub__")

#: Add the values of a mask, or pass them on. A mask's lowest value may become minus infinity there.
MASKING = frozenset(
    (
        *("add", "__add__", "__radd__", "__iadd__", "sub", "subtract", "__sub__", "__isub__", "rsub"),
        *("mul", "multiply", "__mul__", "__rmul__", "__imul__", "neg", "negative", "lerp", "where", "masked_fill"),
        *("masked_scatter", "fill", "full", "full_like", "new_full", "index_fill", "index_put", "index_copy", "copy"),
        *("cat", "concat", "concatenate", "stack", "gather", "to", "type", "type_as", "half", "bfloat16", "float"),
        *("clone", "clamp", "clip", "clamp_min", "clamp_max", "minimum", "maximum", "fmin", "fmax", "__setitem__"),
        *("sum", "cumsum", "mean", "max_pool2d"),
    )
)

#: The guard sees these too, beside the in-place form of every operation that the watch sees.
ALSO_GUARDED = (
    *("std", "var", "std_mean", "var_mean", "nanmean", "nansum", "logcumsumexp", "amax", "amin"),
    *("__iadd__", "__isub__", "__imul__", "__idiv__", "__pow__", "__rpow__", "__setitem__"),
)


def plain(operation: str) -> str:
    """Returns the name of the operation that is not in place."""
    return operation if operation.endswith("__") else operation.rstrip("_")
