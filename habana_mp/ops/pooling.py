"""Pooling, and operations that resize images or sample them between their pixels."""

from __future__ import annotations

from functools import partial

from habana_mp.ops.operation import FIRST_INPUT, NO_KERNEL, Operation

_function = partial(Operation, o2="float32")
_pooling = partial(Operation, is_only_parts=True)
#: ``F.interpolate`` is a name for all operations of this kind.
_resizing = partial(Operation, spellings="interpolate")

_POOLING = (
    _pooling("max_pool1d", family="max_pool1d_with_indices", parts="max_pool1d_with_indices", o2="float32"),
    _pooling("max_pool2d", family="max_pool2d_with_indices", parts="max_pool2d_with_indices"),
    _pooling("max_pool3d", family="max_pool3d_with_indices", parts="max_pool3d_with_indices"),
    _function("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d adaptive_max_pool2d avg_pool1d"),
    Operation("fractional_max_pool2d fractional_max_pool3d", FIRST_INPUT),
    Operation("avg_pool3d lp_pool3d", NO_KERNEL),
    # Adds up in the lower precision: the sum stops growing after a few hundred values.
    Operation("adaptive_avg_pool3d", NO_KERNEL),
)

_RESIZING = (
    _resizing("upsample_nearest1d upsample_nearest2d upsample_nearest3d", o2="float32"),
    _resizing("upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d", o2="float32"),
    _resizing("_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d", o2="float32"),
    _resizing("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", NO_KERNEL),
)

_SAMPLING = (
    # The CPU kernels compute positions and offsets in the lower precision. For images larger than about 180 x 180
    # pixels they read and write out of bounds.
    Operation("grid_sampler", NO_KERNEL, spellings="grid_sample"),
    Operation("grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback", NO_KERNEL),
)

ROWS = (*_POOLING, *_RESIZING, *_SAMPLING)
