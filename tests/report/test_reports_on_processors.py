"""Reports of the same training on several processors are the same, but for times, bytes and cached casts."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

from habana_mp import _core, cli, hmp
from helpers.processes import TESTS, python
from helpers.reports import report, row
from processors import PROCESSORS


def rows(file: Path) -> Counter[tuple[Any, ...]]:
    names = ("module", "operation", "phase", "precision", "reason", "calls")
    return Counter(tuple(one[name] for name in names) for one in json.loads(file.read_text("utf-8"))["rows"])


def test_reports_of_training_steps_have_the_same_rows_on_all_processors(tmp_path: Path) -> None:
    folders = []
    others = [one.settings() for one in PROCESSORS if one.can_run() and one.kernels != _core.kernels_path()]
    for number, settings in enumerate([{}, *others]):
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        done = python("-m", "helpers.training_steps", folders[-1], cwd=TESTS, with_dynamo=True, **settings)
        assert done.returncode == 0, done.stderr
    names = sorted(one.name for one in folders[0].iterdir())
    assert len(names) >= 20
    for name in names:
        for a, b in combinations([one / name for one in folders], 2):
            assert rows(a) == rows(b), name
            assert cli.main(["diff", str(a), str(b)]) == 0, name


def test_casts_of_small_weights_are_no_difference_since_processors_cache_them_or_not() -> None:
    a, b = row("linear", casts=30, needed=10), row("linear", casts=25, needed=5, hits=5)
    assert not hmp.compare(report([a]), report([b])).differs
    assert hmp.compare(report([a]), report([{**b, "casts": 19}])).differs
