"""What can be said of an operation: the columns of the rows in this package.

They are named tuples, which are made faster than dataclasses, since each import of the package makes all of them. For
the same reason their types are not left as text, which would be compiled, one by one.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

#: A function that is called with the arguments of a call, and says yes or no to them.
Tells = Callable[..., bool]

Unlisted = Literal["", "widest", "first_input", "in_place", "no_kernel", "kernel_for_some"]

#: Rule 2: several inputs whose dtypes must agree or are promoted: all go to the widest among them.
WIDEST: Final = "widest"
#: Rule 4: torch raises where the dtypes differ: the other inputs follow the first one.
FIRST_INPUT: Final = "first_input"
#: Rule 3: it writes into its first input. This is known by itself of an operator, and of a name that ends in ``_``.
IN_PLACE: Final = "in_place"
#: Rule 8: no kernel for the lower precisions (on a CPU; most of them nowhere), or none to rely on: it runs in float32.
NO_KERNEL: Final = "no_kernel"
#: Rule 8: a kernel for the lower precisions, but not for both of them, or not for all arguments. Without one it is
#: called again in float32; else rule 4 holds.
KERNEL_FOR_SOME: Final = "kernel_for_some"


class Castable(NamedTuple):
    """Which arguments of an operation may be cast; where its row does not say so, all of them.

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


class Operation(NamedTuple):
    """A row: one operation, or several of which the same is true, and all that is peculiar to it. An operation without
    a row can be listed too; nothing is peculiar to it."""

    names: str
    """That of a *builtin*, one of torch's own C functions or methods of Tensor: ``matmul`` is both ``torch.matmul`` and
    ``Tensor.matmul``. An operator of ``torch.ops`` is ``namespace::name``. Between several names there are spaces."""

    unlisted: Unlisted = ""
    """What becomes of its inputs where no list names it; "": torch copes by itself."""

    # ---- names -----------------------------------------------------------------------------------------------------

    spellings: str = ""
    """What lists may call it besides: Python operators, modules, functions of ``torch.nn.functional`` that lead to it,
    names of ATen. Several operations may share one; a list that uses it means all of them."""

    family: str = ""
    """What else it is called or reached by. A name that is listed itself is not taken along by its family: ``div``
    covers ``/`` unless ``truediv`` is in a list of its own right."""

    # ---- the arguments of a call -----------------------------------------------------------------------------------

    castable: Castable | None = None
    """Which arguments may be cast; None: all, or those that the operator's schema allows."""

    sparse_gradient: tuple[str, int] | None = None
    """The argument that, where it is true, makes the gradient of the first input sparse: keyword and position (beyond
    all positions where it is a keyword only). A cast cannot pass on such a gradient, so the lists are silent for that
    call."""

    terms: tuple[str, int] | None = None
    """The argument of a product whose last dimension is the number of its terms: keyword and position."""

    promotes: bool = False
    """Does torch itself compute in the precision of the tensors with dimensions where one without any is wider? (Of
    rule 2.)"""

    gives_dimensions: bool = False
    """True where it gives tensors without dimensions some before it joins them, so that these count as any other. (Of
    rule 2.)"""

    saturates: Literal["", "all", "numbers", "numbers in bf16"] = ""
    """Rule 9: is what is beyond the lower precision's range brought into it? "all" are numbers and tensors without
    dimensions: the operation would refuse them. "numbers": it would make infinities of them."""

    # ---- precision -------------------------------------------------------------------------------------------------

    o2: Literal["", "lower", "float32", "input"] = ""
    """What O2 does with it; "": float32 if it is in a list that ships with the package or ``unlisted`` says something
    of its inputs' dtypes, else nothing. "input": nothing, although it is in such a list."""

    sums: Tells | None = None
    """True for a call that adds up in the lower precision, or whose gradient does. It runs in float32 (rule 8)."""

    wrong_in_bf16: Tells | None = None
    """Does torch compute this call, or its gradient, wrong in bfloat16? Then it runs in float32 (rule 8)."""

    wrong_if_strided: bool = False
    """Can only a stride other than 1 make it wrong?"""

    # ---- torch computes it as one, while lists name parts of it ----------------------------------------------------

    parts: str = ""
    """The operations that decide how exact it is. Unless a list names it itself, it runs in float32 where one of these
    is in the float32 list.

    It says nothing of operations whose results are as exact as one rounding lets them be (``logsumexp`` beside
    ``log``), nor of products (``linear`` beside ``addmm``), each of which lists name, nor of what torch writes in
    Python (``softmin``, ``normalize``), where lists reach the parts."""

    is_only_parts: bool = False
    """Does it compute nothing besides? Only then a list that lowers each of its parts lowers it."""

    parts_follow: bool = False
    """Does a float32 list mean the parts too where it names the whole? So it is with losses that are also written by
    their parts; ``log`` stands for more than a logarithm in a loss."""

    # ---- products of matrices --------------------------------------------------------------------------------------

    is_product: bool = False
    """Is it a product, of matrices or others? With a sparse one it runs in float32."""

    made_of_products: bool = False
    """Does torch make it of matrix products? ``torch.autocast`` reaches those inside of it."""

    makes_product: Tells | None = None
    """If so: does this call make a matrix product? None: every one does."""

    products_inside: bool = False
    """Does torch make it of matrix products and of other things, which stay as they are?"""

    is_fused: Tells | None = None
    """If so: does one kernel compute this call as a whole? None: there is no such kernel."""

    means_products: bool = False
    """Does its name mean only the products inside of an operation, in any list?"""

    takes_steps: bool = False
    """Does it go through sequences? A weight's gradients are summed over the steps. And torch makes the products of the
    steps one by one, if the weights want no gradient: ten times slower in a lower precision."""

    wants_rows: bool = False
    """Does torch make it one by one for each batch where the rows of its first input do not lie evenly and no gradient
    of the weight is wanted? In a lower precision that is ten times slower than a copy and one product."""

    casts_inside: bool = False
    """Does torch.autocast on a CPU cast every floating input of it to the lower precision, as a list does?"""

    # ---- weights ---------------------------------------------------------------------------------------------------

    keeps_weights: bool = False
    """May the cast of a weight be kept? What it returns must never share memory with an argument, so that nobody can
    write into a kept cast."""

    packs: str = ""
    """If it can run from a packed weight: which function of torch's it is."""

    twin: str = ""
    """Of a method of two tensors: the function of torch's that does the same. Its call takes less, see
    docs/decisions/0023-holders-and-twins.md."""

    # ---- memory ----------------------------------------------------------------------------------------------------

    gives_view: bool = False
    """Does it give a view although its schema does not say so?"""

    views_one: bool = False
    """Does it take several tensors, and give a view of one alone, or only sum it up?"""

    counts_no_version: bool = False
    """Does it write into its ``out=`` without counting the version up?"""
