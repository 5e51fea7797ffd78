"""Each optimizer, kernel, clipping and moving average of the stand-in equals its formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import forked

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    "words",
    [["optimizer_references.py"], ["kernels_and_definitions.py"]],
    ids=" ".join,
)
def test_each_equals_its_formula(words: list[str]) -> None:
    environment = forked.environment_with(HABANA_MP_GAUDI="cpu")
    code = "import habana_mp, runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    done = forked.run(["-c", code, *words], cwd=HERE, environment=environment, timeout=400)
    assert done.returncode == 0, f"{done.stdout[-40:]}{done.stderr}"
