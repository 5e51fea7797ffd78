"""Functions of torch with a kernel for float32 only (rule 8)."""

from __future__ import annotations

from habana_mp.patches.tools.in_float32 import in_float32
from habana_mp.patches.tools.named_functions import Exchange, Table, assumption_of_functions

FLOAT32_ONLY: Table = {
    "torch.ao.nn.quantized.dynamic.modules.linear": ("Linear.forward",),
    "torch.ao.nn.quantized.dynamic.modules.rnn": ("*.forward",),
    "torch.ao.nn.intrinsic.quantized.dynamic.modules.linear_relu": ("LinearReLU.forward",),
}

_QUANTIZED = assumption_of_functions(
    "torch.functions-in-float32",
    "torch has the forwards of dynamically quantized modules",
    "a lowered input is refused by torch",
)

EXCHANGES = (Exchange(in_float32, FLOAT32_ONLY, _QUANTIZED),)
