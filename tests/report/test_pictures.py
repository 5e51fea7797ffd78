"""The pictures of the documents show what their script makes."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from helpers.late import module_of

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pictures_of_the_page_show_the_report_of_their_script(tmp_path: Path) -> None:
    make = module_of(DOCS / "make_screenshots.py")
    wanted = make.contents_of(make.reported(tmp_path))
    assert wanted["headline"].startswith("All ")
    for name, size in make.SIZES.items():
        with Image.open(DOCS / "images" / name) as picture:
            assert picture.size == size
            shown = {key: picture.text[key] for key in wanted}
        assert shown == wanted, f"run `python docs/make_screenshots.py`: {name} shows another report"


def test_the_chart_has_the_cases_and_contenders_of_the_table() -> None:
    chart = (DOCS / "performance.svg").read_text("utf-8")
    table = (DOCS / "performance.md").read_text("utf-8").partition("<!-- models:")[2].partition("<!-- models: end")[0]
    cases = re.findall(r"^\| ((?:train |compiled )?[A-Z][^|]*?) \|", table, re.MULTILINE)
    assert len(cases) > 10
    for case in cases:
        assert case.replace("&", "&amp;") in chart, f"run `python benchmarks/models.py --write`: {case} is not there"
    assert "FP32" in chart
