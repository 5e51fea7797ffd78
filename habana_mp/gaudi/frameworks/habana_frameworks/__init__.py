"""habana_mp's stand-in for Gaudi's package: the names that scripts use, on the available device."""

from __future__ import annotations

__version__ = "1.13.0"
