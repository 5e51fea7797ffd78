"""Finds out the abilities of torch.compile on this machine."""

from __future__ import annotations

import shutil

import pytest

HAS_COMPILER = shutil.which("c++") is not None or shutil.which("g++") is not None
#: Backends of torch.compile. Only Inductor needs a C++ compiler.
BACKENDS = ["eager", "aot_eager", *(["inductor"] if HAS_COMPILER else [])]

needs_compiler = pytest.mark.skipif(not HAS_COMPILER, reason="Inductor itself needs a C++ compiler")
