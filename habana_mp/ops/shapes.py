"""Operations that join tensors, or return their values in another shape or layout."""

from __future__ import annotations

from habana_mp.ops.operation import WIDEST, Operation

_JOINING = (
    Operation("cat", WIDEST, family="concat concatenate"),
    Operation("concat concatenate _chunk_cat", WIDEST),
    Operation("block_diag stack", WIDEST),
    Operation("column_stack dstack hstack row_stack vstack", WIDEST, gives_dimensions=True),
    Operation("cartesian_prod", WIDEST, views_one=True),
    Operation("meshgrid", WIDEST, gives_dimensions=True, gives_view=True),
)

_PADDING = (
    # They refuse a Python number beyond the range of their tensor's dtype.
    Operation("pad", saturates="all"),
    Operation("constant_pad_nd", spellings="pad", saturates="all"),
)

_UNFOLDING = (
    Operation("unfold"),
    Operation("im2col", spellings="unfold"),
    Operation("col2im", o2="float32"),
)

_VIEWS = (
    Operation("as_subclass asarray atleast_1d atleast_2d atleast_3d broadcast_tensors", gives_view=True),
    Operation("dequantize flatten_dense_tensors sum_to_size to_dense unflatten_dense_tensors", gives_view=True),
    Operation("unsafe_chunk unsafe_split unsafe_split_with_sizes", gives_view=True),
)

ROWS = (*_JOINING, *_PADDING, *_UNFOLDING, *_VIEWS)
