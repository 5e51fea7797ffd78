"""The operations: which of torch's functions a list name stands for, and how each may be treated.

This is the one place where names are known. Everything here is data; :mod:`habana_mp._policy` turns it into rules.

A *builtin* is one of torch's own C functions or Tensor methods, known by its name: ``matmul`` is both ``torch.matmul``
and ``Tensor.matmul``. Most list names are the name of their builtin; the tables below hold the others.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F

from habana_mp import _core
from habana_mp._reached_inside import MADE_OF_PRODUCTS
from habana_mp._sums import SUMS

_T = TypeVar("_T")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---- names ---------------------------------------------------------------------------------------------------------

#: A list name that is no builtin's: the builtins that it means. Python operators, modules, functions of
#: ``torch.nn.functional`` that lead to a builtin of another name, and names of ATen.
SPELLINGS: dict[str, str] = {
    # operators
    "truediv": "__truediv__ __div__ __rtruediv__",
    "floordiv": "__floordiv__ floor_divide",
    "mod": "__mod__ remainder",
    "radd": "__radd__",
    "rmul": "__rmul__",
    "rtruediv": "__rtruediv__",
    "rdiv": "__rtruediv__",
    "__rdiv__": "__rtruediv__",
    "__rsub__": "rsub",
    "__pow__": "pow",
    "__rpow__": "pow",
    "rpow": "pow",
    "__rmatmul__": "matmul",
    "rmatmul": "matmul",
    "iadd": "__iadd__",
    "isub": "__isub__",
    "imul": "__imul__",
    "itruediv": "__idiv__",
    "__itruediv__": "__idiv__",
    "idiv": "__idiv__",
    "ipow": "pow_",
    "__ipow__": "pow_",
    # functions of torch.nn.functional
    "cross_entropy": "cross_entropy_loss",
    "grouped_mm": "_grouped_mm",
    "grid_sample": "grid_sampler",
    "dropout1d": "feature_dropout",
    "dropout2d": "feature_dropout",
    "dropout3d": "feature_dropout",
    "interpolate": "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_nearest_exact1d _upsample_nearest_exact2d "
    "_upsample_nearest_exact3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
    "pad": "pad constant_pad_nd",
    "unfold": "unfold im2col",
    # modules
    "LSTMCell": "lstm_cell",
    "GRUCell": "gru_cell",
    "RNNCell": "rnn_tanh_cell rnn_relu_cell",
    "LSTM": "lstm",
    "GRU": "gru",
    "RNN": "rnn_tanh rnn_relu",
    # ATen
    "multi_dot": "linalg_multi_dot",
    "_thnn_fused_gru_cell": "gru_cell",
    "multilabel_margin_loss_forward": "multilabel_margin_loss",
    "mkldnn_rnn_layer": "mkldnn_rnn_layer lstm",
}

#: What else an operation is called or reached by. A name that is listed itself is not taken along by its family:
#: ``div`` covers ``/`` unless ``truediv`` is in a list of its own right.
FAMILIES: dict[str, str] = {
    "add": "__add__ __radd__",
    "sub": "subtract __sub__ rsub",
    "mul": "multiply __mul__ __rmul__",
    "div": "divide true_divide __truediv__ __div__ __rtruediv__",
    "matmul": "__matmul__ linalg_matmul",
    "cat": "concat concatenate",
    "remainder": "__mod__",
    "acos": "arccos",
    "asin": "arcsin",
    "atan": "arctan",
    "atan2": "arctan2",
    "clamp": "clip",
    "outer": "ger",
    "softmax": "special_softmax _softmax",
    "log_softmax": "special_log_softmax _log_softmax",
    "logsumexp": "special_logsumexp",
    "log1p": "special_log1p",
    "expm1": "special_expm1",
    "exp2": "special_exp2",
    "erf": "special_erf",
    "erfc": "special_erfc",
    "erfinv": "special_erfinv",
    "sigmoid": "special_expit",
    "logit": "special_logit",
    "sinc": "special_sinc",
    "xlogy": "special_xlogy",
    "nll_loss": "nll_loss_nd nll_loss2d",
    "max_pool1d": "max_pool1d_with_indices",
    "max_pool2d": "max_pool2d_with_indices",
    "max_pool3d": "max_pool3d_with_indices",
    "norm": "linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm nuclear_norm",
    "cross": "linalg_cross",
    "inverse": "linalg_inv",
    "batch_norm": "native_batch_norm _native_batch_norm_legit",
    "layer_norm": "native_layer_norm",
    "group_norm": "native_group_norm",
    "dropout": "native_dropout",
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "_convolution": "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
}


@dataclass(frozen=True)
class Parts:
    """The operations that decide how exact another one is, which torch computes as one of them."""

    names: str
    are_all: bool = False
    """Does the whole compute nothing besides? Only then a list that lowers each of them lowers it."""
    follow: bool = False
    """Does a float32 list mean them too where it names the whole? So it is with losses that are also written by their
    parts; `log` stands for more than a logarithm in a loss."""


#: An operation that torch computes as one, below what a list can reach, while lists name parts of it: unless a list
#: names it itself, it runs in float32 where one of these is in the float32 list.
#:
#: Not here, since the results of torch's kernels are as exact as one rounding lets them be:
#: `scaled_dot_product_attention` beside `softmax`, `logsumexp` beside `log`. Nor matrix products (`linear` beside
#: `addmm`): lists name each of them. Nor what torch writes in Python (`softmin`, `norm`, `normalize`): there lists
#: reach the parts.
COMPOSED: dict[str, Parts] = {
    "cross_entropy_loss": Parts(
        "log_softmax special_log_softmax _log_softmax nll_loss nll_loss_nd nll_loss2d", are_all=True, follow=True
    ),
    "nll_loss_nd": Parts("nll_loss nll_loss2d", are_all=True),
    "binary_cross_entropy_with_logits": Parts("binary_cross_entropy", follow=True),
    "kl_div": Parts("log xlogy"),
    "poisson_nll_loss": Parts("exp log"),
    "soft_margin_loss": Parts("exp log1p"),
    "cosine_embedding_loss": Parts("cosine_similarity"),
    "triplet_margin_loss": Parts("pairwise_distance norm linalg_vector_norm"),
    "pairwise_distance": Parts("norm linalg_vector_norm"),
    "cosine_similarity": Parts("norm linalg_vector_norm"),
    "dist": Parts("norm linalg_vector_norm"),
    "linalg_norm": Parts("linalg_vector_norm linalg_matrix_norm"),
    "softmax": Parts("_softmax", are_all=True),
    "log_softmax": Parts("_log_softmax", are_all=True),
    "layer_norm": Parts("native_layer_norm", are_all=True),
    "group_norm": Parts("native_group_norm", are_all=True),
    "batch_norm": Parts("native_batch_norm", are_all=True),
    "instance_norm": Parts("batch_norm native_batch_norm"),
    "max_pool1d": Parts("max_pool1d_with_indices", are_all=True),
    "max_pool2d": Parts("max_pool2d_with_indices", are_all=True),
    "max_pool3d": Parts("max_pool3d_with_indices", are_all=True),
}

#: Names of lists that are in use although this torch has nothing of that name, and why.
EXPLAINED: dict[str, str] = {
    "embedding_bag_sum_fwd": "a kernel of the HPU for DLRM, not an operation of torch",
    "embedding_bag_sum_bwd": "a kernel of the HPU for DLRM, not an operation of torch",
}

# ---- rules where the lists are silent ------------------------------------------------------------------------------

#: Of rule 2, what torch itself computes in the precision of the tensors with dimensions where one without any is wider.
PROMOTES = _names("""
    __add__ __radd__ add subtract __sub__ rsub sub __mul__ __rmul__ mul multiply
    __div__ __truediv__ div divide true_divide floor_divide __mod__ fmod remainder pow
    arctan2 atan2 copysign fmax fmin hypot logaddexp logaddexp2 maximum minimum nextafter
    special_xlog1py special_xlogy xlogy
    addcdiv addcmul where
""")

#: Rule 2: several inputs whose dtypes must agree or are promoted: all go to the widest among them.
WIDEST = PROMOTES | _names("""
    dist float_power heaviside lerp
    block_diag cartesian_prod cat column_stack concat concatenate dstack hstack meshgrid row_stack stack vstack
    _chunk_cat
    bilinear cross dot inner kron linalg_cross linalg_vecdot ger outer tensordot vdot
    allclose equal isclose
    binary_cross_entropy cosine_embedding_loss cosine_similarity cross_entropy_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss pairwise_distance poisson_nll_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss _softmax_backward_data
    _log_softmax_backward_data aten::_softmax_backward_data aten::_log_softmax_backward_data
""")

#: Rule 4: torch raises where the dtypes differ: the other inputs follow the first one.
FIRST_INPUT = _names("""
    addbmm addmm addmv baddbmm bmm chain_matmul einsum linalg_matmul linalg_multi_dot linear matmul __matmul__ mm mv
    _grouped_mm
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution
    batch_norm native_batch_norm _native_batch_norm_legit aten::_batch_norm_with_update
    group_norm native_group_norm instance_norm layer_norm native_layer_norm rms_norm
    nll_loss nll_loss_nd nll_loss2d
    embedding_bag _embedding_bag prelu scaled_dot_product_attention
    fractional_max_pool2d fractional_max_pool3d _weight_int8pack_mm
    torch_nn::_linear_cross_entropy_batch_chunked torch_nn::_linear_cross_entropy_batch_chunked_no_reduction
    gru gru_cell lstm lstm_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
    _unsafe_masked_index_put_accumulate index_add index_copy index_put index_reduce masked_scatter put
    _sparse_mm _sparse_addmm scatter scatter_add scatter_reduce select_scatter slice_scatter diagonal_scatter
""")

#: In-place operations with more than one tensor (rule 3); those whose name is an operation's with ``_`` are found.
IN_PLACE = _names("""
    __iadd__ __isub__ __imul__ __idiv__ __imod__ __ifloordiv__ addr_
    arctan2_ atan2_ clip_ copysign_ divide_ fill_ fill_diagonal_ float_power_ floor_divide_ fmod_ hypot_ index_fill_
    index_put_ ldexp_ lerp_ masked_fill_ multiply_ nextafter_ pow_ remainder_ subtract_ true_divide_ xlogy_
""")

#: Rule 8: no kernel for the lower precisions (on a CPU; most of them nowhere), or none to rely on: the CPU's grid
#: samplers compute positions and offsets in the lower precision, and beyond some 180 x 180 pixels read and write
#: elsewhere; the second line's add up in it, and stand still after some hundred values; the third's rounds two terms
#: to it, of which nothing is left but their difference.
NO_KERNEL = _names("""
    grid_sampler grid_sampler_2d grid_sampler_3d
    adaptive_avg_pool3d histc segment_reduce
    binary_cross_entropy_with_logits
    _sparse_softmax _sparse_log_softmax
    _grid_sampler_2d_cpu_fallback _upsample_bilinear2d_aa _upsample_bicubic2d_aa cdist complex
    polar stft istft
    fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_ihfft2
    fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn
    cholesky cholesky_inverse cholesky_solve geqrf inverse logdet _lu_with_info lu_solve orgqr ormqr pinverse qr
    slogdet det svd triangular_solve
    linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve
    linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matrix_norm
    linalg_matrix_power linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex
    linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve linalg_vander matrix_exp
    linalg_matrix_exp histogram histogramdd _histogramdd_bin_edges _histogramdd_from_bin_cts
    nanquantile quantile pdist sparse_sampled_addmm _standard_gamma _sample_dirichlet _dirichlet_grad
    binomial fused_moving_avg_obs_fake_quant quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic
    avg_pool3d ctc_loss _ctc_loss multi_margin_loss multilabel_margin_loss nuclear_norm
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
    special_chebyshev_polynomial_w special_erfcx special_i1 special_i1e special_hermite_polynomial_h
    special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
    special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
    special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
    special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
    special_zeta smm hspmm sspaddmm
    local_response_norm lp_pool3d lu pca_lowrank svd_lowrank
""")

#: Rule 8: a kernel for the lower precisions, but not for both of them, or not for all arguments. Without one they are
#: called again in float32.
KERNEL_FOR_SOME = _names("linalg_norm view_as_complex")

#: Rule 9: operations that refuse a Python number beyond the range of their tensor's dtype.
SATURATING = _names("""
    clamp clamp_ clamp_max clamp_max_ clamp_min clamp_min_ clip clip_ constant_pad_nd fill fill_ fill_diagonal_
    full_like hardshrink hardtanh hardtanh_ index_fill index_fill_ index_put index_put_ masked_fill masked_fill_
    new_full pad pow scatter scatter_ softshrink threshold threshold_
""")

#: Rule 9: operations that accept such a number and make an infinity of it: it only passes through the first, and
#: bfloat16's range ends so near to float32's that the others' results differ by less than their rounding. (In float16 a
#: product by such a number may well be in range.)
_SATURATING_NUMBERS = _names("where")
_SATURATING_NUMBERS_IN_BF16 = _names("""
    add __add__ __radd__ mul multiply __mul__ __rmul__ sub subtract __sub__ rsub
""")

#: Operations of O2 that run in the lower precision.
GEMM = _names("""
    conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    _grouped_mm addbmm addmm baddbmm bmm dot linear matmul mm mv
""")

#: Those of matrices, and others: with a sparse one they run in float32.
PRODUCTS = GEMM | _names("__matmul__ linalg_matmul addmv _sparse_mm _sparse_addmm")

#: Operations that go through sequences. Torch makes the products of those that lie one after another one by one, if the
#: weights want no gradient: ten times slower in a lower precision. And a weight's gradients are summed over the steps.
#: (A kernel of its own computes most calls of `lstm`.)
TAKES_STEPS = _names("lstm gru rnn_tanh rnn_relu")

#: Operations for which the cast of a weight may be kept: what they return never shares memory with an argument, so
#: nobody can write into a kept cast.
KEEPS_WEIGHTS = GEMM.union(
    MADE_OF_PRODUCTS,
    TAKES_STEPS,
    _names("""
        __matmul__ linalg_matmul addmv bilinear convolution _convolution conv_tbc
        lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell prelu
    """),
)

#: Of these, where torch.autocast on a CPU casts every floating input to the lower precision, as a list does.
CAST_INSIDE = _names("""
    linear matmul __matmul__ mm bmm addmm baddbmm addbmm conv1d conv2d conv3d conv_transpose1d conv_transpose2d
    conv_transpose3d
""")

#: Of these, methods of two tensors, and the function of torch's that does the same: its call takes less, see
#: docs/decisions/0023-holders-and-twins.md.
FUNCTION_TWINS = {"matmul": "matmul", "__matmul__": "matmul", "mm": "mm", "bmm": "bmm"}

#: Of these, what can run from a packed weight, and which function of torch's each of them is.
PACKS_WEIGHTS = {
    "linear": "linear",
    "conv2d": "conv2d",
    "addmm": "addmm",
    "mm": "mm",
    "matmul": "matmul",
    "__matmul__": "matmul",
    "linalg_matmul": "matmul",
}

#: Operations that torch makes one by one for each batch, in a lower precision ten times slower than a copy and one
#: product, where the rows of their first input do not lie evenly and no gradient of the weight is wanted.
WANTS_ROWS = _names("linear matmul __matmul__ linalg_matmul")

#: Floating operations that O2 runs in float32 besides those named in the tables above or in a shipped list.
OTHER_FLOATING = _names("""
    acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d alpha_dropout asinh atan atanh
    avg_pool1d celu cos cumprod cumsum digamma elu erf erfc exp2 feature_alpha_dropout gelu glu hardsigmoid hardswish
    huber_loss lgamma log_sigmoid logcumsumexp logit max_pool1d mish multilabel_soft_margin_loss nansum relu6 rrelu
    selu sigmoid silu sin sinc softshrink sqrt std std_mean tanh upsample_bicubic2d upsample_bilinear2d
    upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var var_mean
    linalg_vector_norm frobenius_norm renorm square sqrt amax amin aminmax max min nanmean nanmedian median
    mode polygamma mvlgamma igamma igammac i0 special_i0 special_i0e special_ndtr special_entr
    special_log1p special_expit special_psi special_gammaln frac expm1 log1p tanhshrink hardtanh hardshrink threshold
    clamp clamp_min clamp_max deg2rad rad2deg sgn hypot cummax cummin trapezoid trapz cumulative_trapezoid diff
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d rms_norm softplus native_dropout
    col2im corrcoef cov ldexp round
""")

#: Operations of shipped lists that only pick values, or places: O2 leaves them to their input's precision.
PICKING = _names("gather nonzero")

#: Operations that give views although their schemas do not say so; see :func:`gives_view`.
_VIEWS_UNTOLD = _names("""
    as_subclass asarray atleast_1d atleast_2d atleast_3d broadcast_tensors conj_physical dequantize
    flatten_dense_tensors meshgrid sum_to_size to_dense unflatten_dense_tensors unsafe_chunk unsafe_split
    unsafe_split_with_sizes
""")

#: Operations of several tensors that give a view of one alone, or only sum it up.
VIEWS_ONE = _names("cartesian_prod chain_matmul einsum")

# ---- arguments -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Castable:
    """Which arguments of an operation may be cast; without an entry in :data:`ARGUMENTS`, all of them.

    ``positions`` counts from the first argument (a method's tensor is 0); ``kept_keywords`` are never cast, and a
    ``dtype`` among them, or at a position that is not cast, leaves the precision to the rules. Some of the others
    may be cast to float32 but not lower, since the kernels take them in float32 beside a lower input: those in
    ``raised`` everywhere, those in ``off_cpu`` on a CPU.
    """

    positions: tuple[int, ...]
    why: str
    kept_keywords: tuple[str, ...] = ()
    raised: tuple[int, ...] = ()
    raised_keywords: tuple[str, ...] = ()
    off_cpu: tuple[int, ...] = ()
    off_cpu_keywords: tuple[str, ...] = ()


_STATISTICS = Castable(
    (0, 1, 2),
    "running statistics are updated in place; the kernels take float32 weights beside a lower input",
    kept_keywords=("running_mean", "running_var"),
    raised=(1, 2),
    raised_keywords=("weight", "bias"),
)


def _affine(weight: int, bias: int) -> Castable:
    why = "on a CPU the kernels take float32 weights beside a lower input"
    return Castable((0, weight, bias), why, off_cpu=(weight, bias), off_cpu_keywords=("weight", "bias"))


_SOFTMAX_BACKWARD = Castable(
    (0, 1), "its dtype is that of softmax's input and asks for nothing", kept_keywords=("input_dtype",)
)

ARGUMENTS: dict[str, Castable] = {
    "_softmax_backward_data": _SOFTMAX_BACKWARD,
    "_log_softmax_backward_data": _SOFTMAX_BACKWARD,
    "batch_norm": _STATISTICS,
    "native_batch_norm": _STATISTICS,
    "_native_batch_norm_legit": _STATISTICS,
    "aten::_batch_norm_with_update": _STATISTICS,
    "_batch_norm_impl_index": _STATISTICS,
    "cudnn_batch_norm": _STATISTICS,
    "miopen_batch_norm": _STATISTICS,
    "instance_norm": _STATISTICS,
    **dict.fromkeys(
        ("batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts"),
        Castable((0,), "statistics are updated in place", kept_keywords=("running_mean", "running_var")),
    ),
    "layer_norm": _affine(2, 3),
    "native_layer_norm": _affine(2, 3),
    "group_norm": _affine(2, 3),
    "native_group_norm": _affine(1, 2),
    **dict.fromkeys(
        ("fused_moving_avg_obs_fake_quant", "_fused_moving_avg_obs_fq_helper"),
        Castable(
            (0,),
            "what it has observed, scale and zero point are updated in place",
            kept_keywords=("running_min", "running_max", "scale", "zero_point"),
        ),
    ),
    **dict.fromkeys(
        ("fbgemm_linear_fp16_weight", "fbgemm_linear_fp16_weight_fp32_activation"),
        Castable((0, 1, 2), "the result is written into", kept_keywords=("output",)),
    ),
    **dict.fromkeys(
        ("rrelu_with_noise", "rrelu_with_noise_"),
        Castable((0,), "the noise is written into", kept_keywords=("noise",)),
    ),
    **dict.fromkeys(
        ("quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"),
        Castable(
            (0,),
            "scales and zero points are used as they are; `dtype=` is the result's and asks nothing of the input",
            kept_keywords=("scale", "scales", "zero_point", "zero_points", "dtype"),
        ),
    ),
    "scaled_dot_product_attention": Castable(
        (0, 1, 2, 3),
        "on a CPU the kernel takes a float32 mask, whose finfo.min would be an infinity in lower precision",
        off_cpu=(3,),
        off_cpu_keywords=("attn_mask",),
    ),
}

#: The argument that, where it is true, makes the gradient of the first input sparse: keyword and position (beyond all
#: positions where it is a keyword only). A cast cannot pass on such a gradient, so the lists are silent for that call.
SPARSE_GRADIENT: dict[str, tuple[tuple[str], int]] = {
    "embedding": (("sparse",), 4),
    "embedding_bag": (("sparse",), 5),
    "_embedding_bag": (("sparse",), 5),
    "gather": (("sparse_grad",), 255),
}

# ---- where they live -----------------------------------------------------------------------------------------------

#: The builtin that holds ``tensor[key] = value``; it follows the in-place rule.
ASSIGNMENT = "__setitem__"

#: The builtin that holds ``tensor[key]``.
SUBSCRIPT = "__getitem__"

#: What the qualified names of torch's own operators begin with.
_ATEN = "aten::"

#: Operations that torch writes in Python from several others, and that are covered as a whole when they are listed.
COMPOSITES: dict[str, tuple[Any, str]] = {"__rtruediv__": (torch.Tensor, "__rdiv__")}


#: Methods of Tensor by which its memory gets into other hands, or that write without counting the version up.
HANDS_OUT_MEMORY = (
    *("untyped_storage", "numpy", "data_ptr", "const_data_ptr", "apply_", "map_", "map2_", "set_"),
    *("resize_", "resize_as_"),
)

#: Functions that write into their tensors without counting the versions up.
SILENT_WRITERS = (
    *("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"),
    *("_amp_foreach_non_finite_check_and_unscale_", "resize_as_", "set_data"),
)

#: Operations of which the same is true where their result is given to them (``out=``).
COUNT_NO_VERSION = _names("kron")

#: Functions and methods that stand among torch's operations and are none, are the casts themselves, or are watched.
NO_OPERATION = _names("""
    assert_int_or_pair boolean_dispatch handle_torch_function has_torch_function_variadic
    bfloat16 bool byte cdouble cfloat char double float half int long short to type type_as cpu cuda ipu
    mtia xpu item new new_tensor dim ndimension nelement numel size stride tolist retain_grad
    __bool__ __complex__ __float__ __index__ __int__ __len__
    _cummax_helper _cummin_helper _fix_weakref _is_view _use_count _view_func _view_func_unsafe _parse_to
""").union(HANDS_OUT_MEMORY, SILENT_WRITERS)


@dataclass(frozen=True)
class Builtin:
    """One of torch's own objects: where it is reached, and the object."""

    place: str
    object: Any
    shown: Any = None
    """What the log shows for it, where that is another object."""


def _namespaces() -> Iterator[tuple[str, Any]]:
    """The places of torch that hold builtin functions."""
    c: Any = torch._C
    yield "torch", c._VariableFunctions
    for attribute in ("_nn", "_linalg", "_fft", "_special", "_sparse", "_nested"):
        namespace = getattr(c, attribute, None)
        if namespace is not None:
            yield f"torch._C.{attribute}", namespace


def _cached_by_name(function: Callable[[str], _T]) -> Callable[[str], _T]:
    """Cached, but for operators: a library that is imported later may define one, or give it an overload."""
    cached = cache(function)

    @wraps(function)
    def found(name: str) -> _T:
        return function(name) if "::" in name else cached(name)

    return found


@_cached_by_name
def builtins_named(name: str) -> tuple[Builtin, ...]:
    """Every builtin function and Tensor method of that name."""
    found: list[Builtin] = []
    if name.removeprefix(_ATEN) in NO_OPERATION:
        return ()
    if "::" in name:
        return tuple(_of_operator(name))
    is_operator = name.startswith("__") and name.endswith("__")
    # A namespace's own operators are Python's, not operations.
    for place, namespace in () if is_operator else _namespaces():
        candidate = getattr(namespace, name, None)
        if isinstance(candidate, types.BuiltinFunctionType) and _core.can_cover(candidate):
            found.append(Builtin(f"{place}.{name}", candidate))
    method = torch._C.TensorBase.__dict__.get(name)
    if name in (ASSIGNMENT, SUBSCRIPT) or (isinstance(method, types.MethodDescriptorType) and _core.can_cover(method)):
        found.append(Builtin(f"Tensor.{name}", method))
    return tuple(found)


#: Operators of torch's own that are there only once a module of torch has been imported.
_DEFINED_BY = dict.fromkeys(
    (
        "torch_nn::_linear_cross_entropy_batch_chunked",
        "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction",
    ),
    "torch.nn.modules.linear_cross_entropy",
)


def _operator(name: str) -> Any:
    """The operator of torch.ops that is called ``namespace::name``; None where there is none."""
    if name in _DEFINED_BY and importlib.util.find_spec(_DEFINED_BY[name]):
        importlib.import_module(_DEFINED_BY[name])
    if not torch._C._jit_get_schemas_for_operator(name):
        return None
    namespace, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, namespace), operator)


def _schemas(name: str) -> list[Any]:
    """What the overloads of such an operator take; nothing where there is none."""
    operator = _operator(name)
    return [] if operator is None else [getattr(operator, overload)._schema for overload in operator.overloads()]


def _of_operator(name: str) -> Iterator[Builtin]:
    """The builtins behind ``torch.ops.namespace.name`` and its overloads."""
    operator = _operator(name)
    if operator is None:
        return
    place = f"torch.ops.{name.replace('::', '.')}"
    yield Builtin(place, operator._op, operator)
    # ATen's overloads are torch's own way from one layer to the next; nobody else calls them.
    for overload_name in () if name.startswith(_ATEN) else operator.overloads():
        overload = getattr(operator, overload_name)
        yield Builtin(f"{place}.{overload_name}", overload._op, overload)
        # Where torch 2.15 has something shorter for an operator written in Python, this is called at times.
        dispatched = getattr(overload, "_cpp_dispatch_handle", overload._op)
        if dispatched is not overload._op:
            yield Builtin(f"{place}.{overload_name}", dispatched, overload)


@_cached_by_name
def arguments_of(name: str) -> Castable | None:
    """Which arguments of an operation may be cast; None for all of them."""
    schemas = _schemas(name) if "::" in name and name not in ARGUMENTS else []
    if not schemas:
        return ARGUMENTS.get(name)
    arguments = [(place, one) for schema in schemas for place, one in enumerate(schema.arguments)]
    written = [(place, one) for place, one in arguments if _is_written(one) and not (place == 0 and is_in_place(name))]
    # A dtype that is asked for stays readable; any other argument without tensors, in all overloads, says nothing.
    read = [(place, one) for place, one in arguments if "Tensor" in str(one.type) or one.name == "dtype"]
    positions = {place for place, _ in read} - {place for place, _ in written}
    keywords = {one.name for _, one in read} - {one.name for _, one in written}
    kept = {one.name for _, one in arguments} - keywords
    if not kept and len(positions) == max(len(schema.arguments) for schema in schemas):
        return None
    why = "the others hold no tensor, or are written into"
    return Castable(tuple(sorted(positions)), why, kept_keywords=tuple(sorted(kept)))


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@_cached_by_name
def composite_named(name: str) -> Builtin | None:
    """The Python function of torch of that name, where no builtin stands for it."""
    if name in COMPOSITES:
        owner, attribute = COMPOSITES[name]
        return Builtin(f"Tensor.{attribute}", getattr(owner, attribute))
    # Private functions are parts of operations, or no operations.
    if name in NO_OPERATION or name.startswith("_"):
        return None
    for place, namespace, names in (
        ("torch.nn.functional", F, vars(F)),
        ("torch", torch.functional, torch.functional.__all__),
    ):
        function = getattr(namespace, name, None) if name in names else None
        if isinstance(function, types.FunctionType) and function.__module__.startswith("torch"):
            return Builtin(f"{place}.{name}", function)
    return None


def without_overload(name: str) -> str:
    """``pow.Tensor_Scalar`` is ``pow``: an overload has no function of its own in Python."""
    head, dot, _ = name.partition(".")
    return head if dot and head else name


@dataclass(frozen=True)
class Resolved:
    """What a list name means: operation names that have builtins, those meant exactly and those taken along."""

    exact: tuple[str, ...]
    family: tuple[str, ...] = ()


def _has_overload(name: str) -> bool:
    """Is there such an overload of ATen's, where the name has one?"""
    base = without_overload(name)
    if base == name:
        return "." not in name
    operator = _operator(base if "::" in base else _ATEN + base)
    return operator is not None and name[len(base) + 1 :] in operator.overloads()


def _exists(name: str) -> bool:
    return bool(builtins_named(name)) or composite_named(name) is not None


@_cached_by_name
def resolve(name: str) -> Resolved | None:
    """What a list name stands for in this torch; None when it stands for nothing."""
    if not _has_overload(name) or name == SUBSCRIPT:
        return None
    if name.startswith(_ATEN):
        plain = resolve(name.removeprefix(_ATEN))
        if plain is not None:
            return plain
    base = without_overload(name)
    exact = SPELLINGS[base].split() if base in SPELLINGS else [base]
    exact = [one for one in exact if _exists(one)]
    if not exact:
        return None
    family = [one for one in FAMILIES.get(base, "").split() if _exists(one) and one not in exact]
    return Resolved(tuple(exact), tuple(family))


def parts_of(whole: str) -> tuple[str, ...]:
    """Those operations of this torch that decide how exact another one is; see :data:`COMPOSED`."""
    return tuple(one for one in COMPOSED[whole].names.split() if _exists(one))


def saturates(name: str, precision: str = "") -> Literal["", "numbers", "all"]:
    """Rule 9: is what is beyond the lower precision's range brought into it, numbers or tensors without dimensions too?
    ``precision`` is that of the list which holds the operation."""
    if name in SATURATING:
        return "all"
    only_numbers = name in _SATURATING_NUMBERS or (precision == "bf16" and name in _SATURATING_NUMBERS_IN_BF16)
    return "numbers" if only_numbers else ""


def is_in_place(name: str) -> bool:
    """Does the operation write into its first input?"""
    if "::" in name:
        return any(schema.arguments and _is_written(schema.arguments[0]) for schema in _schemas(name))
    return name in IN_PLACE or name == ASSIGNMENT or (name.endswith("_") and not name.endswith("__"))


def target_keywords(name: str) -> tuple[str, ...]:
    """What the first input is called where it is given by keyword: ``input`` in all of torch's functions."""
    schemas = _schemas(name) if "::" in name else []
    return tuple(sorted({schema.arguments[0].name for schema in schemas if schema.arguments})) or ("input",)


def may_be_repeated(name: str) -> bool:
    """May a call that failed be made again with other casts? Not where it may have written into an argument before it
    did; torch's own updates of statistics look at dtypes first."""
    if is_in_place(name):
        return False
    schemas = _schemas(name) if "::" in name and name not in ARGUMENTS else []
    return not any(_is_written(one) and not one.is_out for schema in schemas for one in schema.arguments)


@_cached_by_name
def gives_view(name: str) -> bool:
    """May the result be another view of the memory that an input lies in? Who writes into it means that memory; what
    is written into a view of a cast would be lost."""
    schemas = _schemas(name if "::" in name else _ATEN + name)
    results = [one.alias_info for schema in schemas for one in schema.returns]
    return name in _VIEWS_UNTOLD or any(one is not None and not one.is_write for one in results)


@cache
def computes(name: str) -> bool:
    """Does the operation compute something? Some of torch's only tell of a tensor (``storage_offset``), and would tell
    of a cast. One of somebody else's that gives nothing is there for what it does."""
    if "::" in name or name in WIDEST or is_in_place(name):
        return True
    schemas = _schemas(_ATEN + name)
    return not schemas or any("Tensor" in str(one.type) for schema in schemas for one in schema.returns)


def most_tensors(name: str) -> int:
    """How many arguments of the operation are tensors, in its longest form; 2 where that is not known."""
    schemas = _schemas(name if "::" in name else _ATEN + name)
    counts = [sum("Tensor" in str(one.type) for one in schema.arguments if one.name != "out") for schema in schemas]
    return max(counts, default=2)


@cache
def names_with_rules() -> frozenset[str]:
    """Every operation name that has a rule of its own when no list names it."""
    in_place = {name + "_" for name in WIDEST | FIRST_INPUT | SATURATING if builtins_named(name + "_")}
    return frozenset(
        name
        for name in (
            *(WIDEST | FIRST_INPUT | IN_PLACE | NO_KERNEL | KERNEL_FOR_SOME | SATURATING | in_place),
            *(ASSIGNMENT, *SUMS),
        )
        if builtins_named(name)
    )


@cache
def suggestions() -> tuple[str, ...]:
    """All names that a list may hold, for "did you mean"."""
    names = set(SPELLINGS) | set(FAMILIES) | names_with_rules() | OTHER_FLOATING | set(EXPLAINED)
    for _, namespace in _namespaces():
        names.update(
            name
            for name in dir(namespace)
            if not name.startswith("_") and isinstance(getattr(namespace, name), types.BuiltinFunctionType)
        )
    return tuple(sorted(names))
