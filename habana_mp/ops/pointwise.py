"""Operations that compute each value of the result independently: arithmetic, functions, activations, comparisons."""

from __future__ import annotations

from functools import partial

from habana_mp.ops.operation import FIRST_INPUT, IN_PLACE, NO_KERNEL, WIDEST, Castable, Operation

_promoted = partial(Operation, unlisted=WIDEST, promotes=True)

#: A Python number beyond the range of the tensor's dtype becomes an infinity. The range of bfloat16 ends so close to
#: that of float32 that clamping the number changes the result by less than its rounding. (In float16, a product with
#: such a number may well be in range.)
_sum_or_product = partial(_promoted, saturates="numbers in bf16")

_function = partial(Operation, o2="float32")

#: Operations that refuse a Python number beyond the range of their tensor's dtype.
_refuses_large_numbers = partial(Operation, saturates="all")

_ARITHMETIC = (
    _sum_or_product("add", family="__add__ __radd__"),
    _sum_or_product("sub", family="subtract __sub__ rsub"),
    _sum_or_product("mul", family="multiply __mul__ __rmul__"),
    _sum_or_product("__add__ subtract __sub__ multiply __mul__"),
    _sum_or_product("__radd__", spellings="radd"),
    _sum_or_product("rsub", spellings="__rsub__"),
    _sum_or_product("__rmul__", spellings="rmul"),
    _promoted("div", family="divide true_divide __truediv__ __div__ __rtruediv__"),
    _promoted("divide true_divide"),
    _promoted("__truediv__ __div__", spellings="truediv"),
    Operation("__rtruediv__", spellings="truediv rtruediv rdiv __rdiv__"),
    Operation("__floordiv__", spellings="floordiv"),
    _promoted("floor_divide", spellings="floordiv"),
    _promoted("__mod__", spellings="mod"),
    _promoted("remainder", spellings="mod", family="__mod__"),
    _promoted("fmod"),
    _promoted("pow", spellings="__pow__ __rpow__ rpow", saturates="all"),
    _promoted("addcdiv addcmul"),
    Operation("float_power lerp", WIDEST),
    _function("ldexp"),
    # In place. Most names of this kind end in `_` and need no row.
    Operation("__iadd__", IN_PLACE, spellings="iadd"),
    Operation("__isub__", IN_PLACE, spellings="isub"),
    Operation("__imul__", IN_PLACE, spellings="imul"),
    Operation("__idiv__", IN_PLACE, spellings="itruediv __itruediv__ idiv"),
    Operation("pow_", IN_PLACE, spellings="ipow __ipow__"),
    Operation("__imod__ __ifloordiv__ ldexp_", IN_PLACE),
)

_FUNCTIONS = (
    # Functions of two tensors.
    _promoted("atan2", family="arctan2"),
    _promoted("xlogy", family="special_xlogy"),
    _promoted("arctan2 special_xlogy special_xlog1py"),
    _promoted("copysign fmax fmin hypot logaddexp logaddexp2 maximum minimum nextafter"),
    Operation("heaviside", WIDEST),
    # Functions of one tensor.
    Operation("acos", family="arccos"),
    Operation("asin", family="arcsin"),
    Operation("erfinv", family="special_erfinv"),
    _function("atan", family="arctan"),
    _function("erf", family="special_erf"),
    _function("erfc", family="special_erfc"),
    _function("exp2", family="special_exp2"),
    _function("expm1", family="special_expm1"),
    _function("log1p", family="special_log1p"),
    _function("logit", family="special_logit"),
    _function("sinc", family="special_sinc"),
    _function("acosh asinh atanh cos deg2rad digamma frac i0 igamma igammac lgamma mvlgamma polygamma rad2deg"),
    _function("round sgn sin sqrt square tanh"),
    _function("special_entr special_expit special_gammaln special_i0 special_i0e special_log1p special_ndtr"),
    _function("special_psi"),
    Operation(
        """
        special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
        special_chebyshev_polynomial_w special_erfcx special_i1 special_i1e special_hermite_polynomial_h
        special_hermite_polynomial_he special_laguerre_polynomial_l special_legendre_polynomial_p special_log_ndtr
        special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
        special_ndtri special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
        special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_spherical_bessel_j0
        special_zeta
        """,
        NO_KERNEL,
    ),
    # Returns a tensor without an imaginary part itself, which its schema does not declare.
    Operation("conj_physical", gives_view=True),
)

_ACTIVATIONS = (
    _function("sigmoid", family="special_expit"),
    _function("celu elu gelu glu hardsigmoid hardswish log_sigmoid mish relu6 rrelu selu silu softplus"),
    _function("tanhshrink"),
    Operation("prelu", FIRST_INPUT, caches_weights=True),
    Operation(
        "rrelu_with_noise rrelu_with_noise_",
        castable=Castable((0,), "the noise is written into", kept_keywords=("noise",)),
    ),
)

_LIMITS = (
    _promoted("clamp", saturates="all", family="clip", o2="float32"),
    _promoted("clamp_max clamp_min", saturates="all", o2="float32"),
    _refuses_large_numbers("hardshrink hardtanh softshrink threshold", o2="float32"),
    _refuses_large_numbers("clamp_ clamp_max_ clamp_min_ clip clip_ hardtanh_ threshold_"),
)

_COMPARISONS = (
    Operation("allclose equal isclose", WIDEST),
    # A number only passes through, and would become an infinity.
    _promoted("where", saturates="numbers"),
)

_FILLING = (
    _refuses_large_numbers("fill fill_ full_like new_full fill_diagonal_"),
    _refuses_large_numbers("masked_fill masked_fill_"),
)

ROWS = (*_ARITHMETIC, *_FUNCTIONS, *_ACTIVATIONS, *_LIMITS, *_COMPARISONS, *_FILLING)

#: Operations of this kind without a row.
_WITHOUT_ROWS = """
    abs absolute angle ceil cosh exp fix floor leaky_relu log log10 log2 nan_to_num neg negative positive reciprocal
    relu rsqrt sign sinh tan trunc
"""

_NAMES_IN_ROWS = " ".join(f"{row.names} {row.family}" for row in ROWS if not row.caches_weights)

#: The names of all of them except `prelu`, which takes a weight.
NAMES = frozenset((*_WITHOUT_ROWS.split(), *_NAMES_IN_ROWS.split()))
