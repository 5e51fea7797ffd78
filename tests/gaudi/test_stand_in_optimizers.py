"""Each optimizer of the stand-in, its clipping and its moving average equal their formulas for a hundred steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.gaudi import gaudi

REFERENCES = Path(__file__).parent / "optimizer_references.py"
NAMES = [
    *("FusedAdagrad", "FusedAdamW", "FusedClipNorm", "FusedEMA", "FusedLamb", "FusedLars"),
    *("FusedResourceApplyMomentum", "FusedSGD"),
]


@pytest.mark.parametrize("how", ["plain", "converted"])
@pytest.mark.parametrize("name", NAMES)
def test_it_equals_its_formula(name: str, how: str) -> None:
    code = f"import runpy, sys; sys.argv[1:] = {[name, how]}; runpy.run_path({str(REFERENCES)!r}, run_name='__main__')"
    gaudi(code)
