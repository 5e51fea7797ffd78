"""Normalization of batches, layers and groups."""

from __future__ import annotations

from functools import partial

from habana_mp.ops.operation import FIRST_INPUT, NO_KERNEL, Castable, Operation

_with_statistics = partial(
    Operation,
    castable=Castable(
        (0, 1, 2),
        "running statistics are updated in place; the kernels take float32 weights beside a lower input",
        kept_keywords=("running_mean", "running_var"),
        raised=(1, 2),
        raised_keywords=("weight", "bias"),
    ),
)


def _input_and_affine(weight: int, bias: int) -> Castable:
    why = "on a CPU the kernels take float32 weights beside a lower input"
    return Castable((0, weight, bias), why, off_cpu=(weight, bias), off_cpu_keywords=("weight", "bias"))


def _by_native(name: str) -> Operation:
    """Returns the row of an operation that calls only its native one."""
    native = f"native_{name}"
    castable = _input_and_affine(2, 3)
    return Operation(name, FIRST_INPUT, family=native, parts=native, is_only_parts=True, castable=castable)


ROWS = (
    _with_statistics(
        "batch_norm",
        FIRST_INPUT,
        family="native_batch_norm _native_batch_norm_legit",
        parts="native_batch_norm",
        is_only_parts=True,
    ),
    _with_statistics("instance_norm", FIRST_INPUT, parts="batch_norm native_batch_norm"),
    _with_statistics("native_batch_norm _native_batch_norm_legit aten::_batch_norm_with_update", FIRST_INPUT),
    _with_statistics("_batch_norm_impl_index cudnn_batch_norm miopen_batch_norm"),
    Operation(
        "batch_norm_update_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts",
        castable=Castable((0,), "statistics are updated in place", kept_keywords=("running_mean", "running_var")),
    ),
    _by_native("layer_norm"),
    Operation("native_layer_norm", FIRST_INPUT, castable=_input_and_affine(2, 3)),
    _by_native("group_norm"),
    Operation("native_group_norm", FIRST_INPUT, castable=_input_and_affine(1, 2)),
    Operation("rms_norm", FIRST_INPUT),
    Operation("local_response_norm", NO_KERNEL),
)
