"""Quantization, and its observers."""

from __future__ import annotations

from habana_mp.ops.operation import NO_KERNEL, Castable, Operation

_OBSERVED = Castable(
    (0,),
    "what it has observed, scale and zero point are updated in place",
    kept_keywords=("running_min", "running_max", "scale", "zero_point"),
)
_QUANTIZED = Castable(
    (0,),
    "scales and zero points are used as they are; `dtype=` is the result's and asks nothing of the input",
    kept_keywords=("scale", "scales", "zero_point", "zero_points", "dtype"),
)

ROWS = (
    Operation("quantize_per_tensor quantize_per_channel quantize_per_tensor_dynamic", NO_KERNEL, castable=_QUANTIZED),
    Operation("fused_moving_avg_obs_fake_quant", NO_KERNEL, castable=_OBSERVED),
    Operation("_fused_moving_avg_obs_fq_helper", castable=_OBSERVED),
)
