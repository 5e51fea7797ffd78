"""Accelerators of the core, some of which a build may lack."""

from __future__ import annotations

import pytest

from habana_mp import _core


def needs_accelerator(name: str) -> pytest.MarkDecorator:
    """Skips a test of this accelerator, or of its interface, if the build lacks it."""
    return pytest.mark.skipif(name not in _core.accelerators, reason=f"this build is without src/accel/{name}")
