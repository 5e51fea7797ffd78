"""The properties of an operation: the columns of the rows in this package.

The types are named tuples, which are created faster than dataclasses: each import of the package creates all rows. For
the same reason the annotations are not strings, which would be compiled one by one.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

#: A function that takes the arguments of a call and returns true or false.
CallPredicate = Callable[..., bool]

Unlisted = Literal["", "widest", "first_input", "in_place", "no_kernel", "kernel_for_some"]

#: Rule 2: the dtypes of several inputs must agree or are promoted: all inputs go to the widest dtype among them.
WIDEST: Final = "widest"
#: Rule 4: torch raises if the dtypes differ: the other inputs follow the first one.
FIRST_INPUT: Final = "first_input"
#: Rule 3: it writes into its first input. Operators, and names that end in ``_``, do not need to declare it.
IN_PLACE: Final = "in_place"
#: Rule 8: no kernel for the lower precisions (on a CPU; most of them on no device), or no reliable one: it runs in
#: float32.
NO_KERNEL: Final = "no_kernel"
#: Rule 8: a kernel for one of the lower precisions only, or not for all arguments. If the kernel is missing, the
#: operation is called again in float32; else rule 4 holds.
KERNEL_FOR_SOME: Final = "kernel_for_some"


class Castable(NamedTuple):
    """The arguments of an operation that may be cast. If its row has no such entry, all may be.

    ``positions`` counts from the first argument (a method's tensor is 0). ``kept_keywords`` are never cast; a ``dtype``
    among them, or at a position that is not cast, leaves the precision to the rules. Some of the other arguments may be
    cast to float32 but not lower, since the kernels take them in float32 beside a lower input: those in ``raised`` on
    all devices, those in ``off_cpu`` on a CPU.
    """

    positions: tuple[int, ...]
    why: str
    kept_keywords: tuple[str, ...] = ()
    raised: tuple[int, ...] = ()
    raised_keywords: tuple[str, ...] = ()
    off_cpu: tuple[int, ...] = ()
    off_cpu_keywords: tuple[str, ...] = ()


class Operation(NamedTuple):
    """A row: one operation, or several with the same properties, and all its special properties. An operation without a
    row can be listed too; it has none."""

    names: str
    """Names, separated by spaces. Each is the name of a *builtin*, a C function of torch or a method of Tensor:
    ``matmul`` is both ``torch.matmul`` and ``Tensor.matmul``. An operator of ``torch.ops`` is ``namespace::name``."""

    unlisted: Unlisted = ""
    """The rule for its inputs if no list names it; "" leaves them to torch."""

    # ---- names -----------------------------------------------------------------------------------------------------

    spellings: str = ""
    """Alternative names in lists: Python operators, modules, functions of ``torch.nn.functional`` that call it, ATen
    names. Several operations may share one; a list that uses it names all of them."""

    family: str = ""
    """Other names or ways to call it, which a list that names it includes. A name that a list holds itself is not
    included: ``div`` includes ``/`` unless a list names ``truediv``."""

    # ---- the arguments of a call -----------------------------------------------------------------------------------

    castable: Castable | None = None
    """The arguments that may be cast. None stands for all, or for those that the operator's schema allows."""

    added: tuple[str, int] | None = None
    """The argument that is added to a product: keyword and position. A float32 result takes it as it is."""

    sparse_gradient: tuple[str, int] | None = None
    """The argument that makes the gradient of the first input sparse if it is true: keyword and position (beyond all
    positions for an argument by keyword only). A cast cannot pass on such a gradient, so the lists are suspended for
    that call."""

    promotes: bool = False
    """True if torch itself computes in the precision of the tensors with dimensions when a tensor without any is wider.
    (For rule 2.)"""

    gives_dimensions: bool = False
    """True if it adds dimensions to tensors without any before it joins them, so that these count as any other. (For
    rule 2.)"""

    saturates: Literal["", "all", "numbers", "numbers in bf16"] = ""
    """The values that rule 9 clamps to the range of the lower precision. "all": Python numbers and tensors without
    dimensions, which the operation would refuse. "numbers": Python numbers, which the operation would turn into
    infinities. "numbers in bf16": the same, for a bf16 list only."""

    # ---- precision -------------------------------------------------------------------------------------------------

    o2: Literal["", "lower", "float32", "input"] = ""
    """How O2 treats it. "": float32 if a list that ships with the package holds it or ``unlisted`` is a rule for its
    inputs' dtypes, else unchanged. "input": unchanged, although such a list holds it."""

    sums: CallPredicate | None = None
    """True for a call that adds up in the lower precision, or whose gradient does. It runs in float32 (rule 8)."""

    wrong_in_bf16: CallPredicate | None = None
    """True for a call whose result or gradient torch gets wrong in bfloat16. It runs in float32 (rule 8)."""

    wrong_if_strided: bool = False
    """True if only a stride other than 1, an output padding, or a kernel with few input channels and long rows can make
    it wrong."""

    # ---- operations that torch computes as one, while lists name their parts ----------------------------------------

    parts: str = ""
    """The operations that decide how exact it is. Unless a list names it, it runs in float32 if one of its parts is in
    the float32 list.

    Three kinds of operations have no ``parts``: those whose results are as exact as one rounding allows (``logsumexp``
    beside ``log``), products that lists name themselves (``linear`` beside ``addmm``), and those that torch implements
    in Python (``softmin``, ``normalize``), where lists apply to the parts."""

    is_only_parts: bool = False
    """True if it computes nothing but its parts. Only then a list that lowers each of its parts lowers it."""

    parts_follow: bool = False
    """True if a float32 list that names the whole applies to the parts too. This is so for losses that users also write
    out as their parts; but ``log``, for example, has other uses than in a loss."""

    # ---- products of matrices --------------------------------------------------------------------------------------

    is_product: bool = False
    """True if it is a product, of matrices or others. With a sparse tensor it runs in float32."""

    made_of_products: bool = False
    """True if torch composes it of matrix products. ``torch.autocast`` applies to those inside."""

    makes_product: CallPredicate | None = None
    """With ``made_of_products``: true for a call that makes a matrix product. None stands for every call."""

    products_inside: bool = False
    """True if torch composes it of matrix products and of other operations, which stay unchanged."""

    is_fused: CallPredicate | None = None
    """With ``products_inside``: true for a call that one kernel computes as a whole. None: there is no such kernel."""

    means_products: bool = False
    """True if its name in a list stands only for the products inside an operation."""

    is_recurrent: bool = False
    """True if it processes sequences. The gradients of a weight are summed over the steps. If the weights need no
    gradient, torch computes the products of the steps one by one: ten times slower in a lower precision."""

    wants_rows: bool = False
    """True if torch computes one product for each batch when the rows of the first input are unevenly spaced and the
    weight needs no gradient. In a lower precision that is ten times slower than a copy and one product."""

    casts_inside: bool = False
    """True if torch.autocast on a CPU casts all its floating inputs to the lower precision, as a list does."""

    # ---- weights ---------------------------------------------------------------------------------------------------

    caches_weights: bool = False
    """True if casts of its weights may be cached. Its result must never share memory with an argument, so that no code
    can write into a cached cast."""

    product_form: Literal[
        "",
        "linear",
        "addmm",
        "mm",
        "matmul",
        "mv",
        "addmv",
        "bmm",
        "convolution",
        "transposed_convolution",
        "rounds_within",
        "other",
    ] = ""
    """The torch function that it calls, or "other", for a call whose lower precision is that of its products: a
    processor without instructions for these computes it in float32 and rounds the result. "rounds_within": torch's
    function rounds within the sum, so each processor does."""

    equivalent: str = ""
    """For a method of two tensors: the equivalent torch function, which is cheaper to call, see
    docs/decisions/0023-holders-and-twins.md."""

    # ---- memory ----------------------------------------------------------------------------------------------------

    gives_view: bool = False
    """True if it returns a view although its schema does not declare it."""

    views_one: bool = False
    """True if it takes several tensors, and with a single one returns a view of it or only sums it."""

    counts_no_version: bool = False
    """True if it writes into ``out=`` without incrementing the version counter."""
