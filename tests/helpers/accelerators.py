"""Accelerators of the core, some of which a build may lack."""

from __future__ import annotations

import pytest

from habana_mp import _core


def needs_accelerator(name: str) -> pytest.MarkDecorator:
    """For tests of what that one does, or of what it is told."""
    return pytest.mark.skipif(name not in _core.accelerators, reason=f"this build is without src/accel/{name}")
