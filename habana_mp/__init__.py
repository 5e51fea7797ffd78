"""Mixed precision for PyTorch that users can control, inspect and trust.

``import habana_mp as hmp`` and ``from habana_mp import hmp`` give the same functions.
"""

import importlib.util
import os
from typing import TYPE_CHECKING, Any

if importlib.util.find_spec("habana_mp._core") is None:
    raise ImportError(
        f"habana_mp in {os.path.dirname(__file__)} has no built core: it is the source folder, or was built for "
        "another Python. If the package is installed, run the script in another folder; else run `pip install .` or "
        "`make build`"
    )
from habana_mp import _core, hmp  # noqa: F401  the core first: it raises if torch cannot be imported
from habana_mp.common.version import __version__ as __version__

if TYPE_CHECKING:
    from habana_mp.hmp import *  # noqa: F403  the names of its `__all__`

__all__ = ["hmp"]
__all__ += hmp.__all__

globals().update({name: one for name, one in vars(hmp).items() if name in hmp.__all__})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(hmp, name)  # what is imported when it is used


def __dir__() -> list[str]:
    return __all__


if os.environ.get("HABANA_MP_GAUDI", "0") not in ("", "0"):
    import habana_mp.gaudi  # noqa: F401  a process that `habana-mp run --gaudi` started, or its child
