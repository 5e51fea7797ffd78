"""The names of precisions."""

from __future__ import annotations

import torch

#: The names of precisions in lists, logs and reports.
PRECISIONS: dict[torch.dtype, str] = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}

#: The names of dtypes that users may pass, in lower case.
_SPELLINGS = {
    **{"bf16": torch.bfloat16, "bfloat16": torch.bfloat16},
    **{"fp16": torch.float16, "float16": torch.float16, "half": torch.float16},
    **{"fp32": torch.float32, "float32": torch.float32, "float": torch.float32},
}


#: Ends a line, and the name of a precision: the operands of a product are in lower precision, its result in float32.
FLOAT32_RESULT = " -> fp32"


def dtype_meant(given: object) -> torch.dtype | None:
    """Returns the dtype for a dtype or one of its names; None for anything else."""
    if isinstance(given, str):
        return _SPELLINGS.get(given.lower().removeprefix("torch."))
    return given if isinstance(given, torch.dtype) else None
