"""Mixed precision for PyTorch that a person can steer, see and trust.

``import habana_mp as hmp`` and ``from habana_mp import hmp`` give the same functions.
"""

from habana_mp import hmp
from habana_mp.hmp import (
    HmpWarning,
    KeptWeights,
    ListError,
    Report,
    Row,
    convert,
    disable_casts,
    is_converted,
    op_wrap,
    report,
    reset_report,
    restore,
)

__all__ = [
    "HmpWarning",
    "KeptWeights",
    "ListError",
    "Report",
    "Row",
    "convert",
    "disable_casts",
    "hmp",
    "is_converted",
    "op_wrap",
    "report",
    "reset_report",
    "restore",
]
__version__ = "0.1.0"
