"""Operations that pick values by index, or that write or add values at places."""

from __future__ import annotations

from functools import partial

from habana_mp.ops import sums
from habana_mp.ops.find import ASSIGNMENT, SUBSCRIPT
from habana_mp.ops.operation import FIRST_INPUT, IN_PLACE, Operation

_bag = partial(Operation, unlisted=FIRST_INPUT, sums=sums.looks_up_unless_sparse(5), sparse_gradient=("sparse", 5))

_PICKING = (
    Operation(SUBSCRIPT, sums=sums.looks_up_by_index),
    Operation("index_select take repeat_interleave", sums=sums.looks_up),
    # O2 leaves them to their input's precision: one picks values only, the other says where they are.
    Operation("gather", o2="input", sparse_gradient=("sparse_grad", 255)),
    Operation("nonzero", o2="input"),
)

_EMBEDDINGS = (
    Operation("embedding", sums=sums.looks_up_unless_sparse(4), sparse_gradient=("sparse", 4)),
    _bag("embedding_bag _embedding_bag"),
)

_WRITING = (
    Operation(ASSIGNMENT, IN_PLACE),
    Operation("index_add", FIRST_INPUT, sums=sums.adds_up),
    Operation("index_put", FIRST_INPUT, sums=sums.adds_up_if_told, saturates="all"),
    Operation("put", FIRST_INPUT, sums=sums.adds_up_if_told),
    Operation("scatter", FIRST_INPUT, saturates="all"),
    Operation("index_fill index_fill_ index_put_ scatter_", saturates="all"),
    Operation("scatter_add scatter_reduce index_copy index_reduce masked_scatter", FIRST_INPUT),
    Operation("select_scatter slice_scatter diagonal_scatter", FIRST_INPUT),
    Operation("_unsafe_masked_index_put_accumulate", FIRST_INPUT),
)

ROWS = (*_PICKING, *_EMBEDDINGS, *_WRITING)
