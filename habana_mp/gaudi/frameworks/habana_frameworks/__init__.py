"""habana_mp's stand-in for Gaudi's package: the names that scripts use, on the device that there is."""

from __future__ import annotations

__version__ = "1.13.0"
