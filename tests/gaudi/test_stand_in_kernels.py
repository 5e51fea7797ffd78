"""The fused kernels of later releases, compared with their definitions in float64."""

from __future__ import annotations

from pathlib import Path

from helpers.gaudi import gaudi


def test_each_kernel_equals_its_definition() -> None:
    script = Path(__file__).parent / "kernels_and_definitions.py"
    gaudi(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
