"""``from hmp import hmp``, as scripts for release 0.15 write it."""

from __future__ import annotations

from habana_mp import hmp

__all__ = ["hmp"]
