"""Runs the sanitizers' exercises of these names.

python tests/trust/exercises.py [--small] NAME...
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sanitize"))

import exercise_casts

for name in sys.argv[1:]:
    if not name.startswith("-"):
        getattr(exercise_casts, name)()
        print(name, flush=True)
