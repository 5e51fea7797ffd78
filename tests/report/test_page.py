"""The page of a report as a text: nothing is fetched, nothing in the data breaks out, wheels have its files."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from habana_mp.common.paths import PACKAGE
from habana_mp.reporting.page import html_page
from helpers import reports

ROOT = Path(__file__).parents[2]
FOLDER = PACKAGE / "reporting" / "page"
NASTY = "</script><script>window.broken = 1</script>\u2028\u2029\"'`]]><!--<u>&amp; {{style}}.py"


class Parts(HTMLParser):
    """The elements of a page as a browser would take them: ``texts`` by tag, ``attributes`` of all."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts[self._open[-1]][-1] += data


def test_the_data_in_the_page_is_the_report() -> None:
    report = reports.encoder(2)
    data, _script = Parts(html_page(report)).texts["script"]
    assert json.loads(data) == report


def test_nothing_in_the_data_breaks_out_of_its_element() -> None:
    report = reports.encoder(1, script=f"/home/{NASTY}")
    page = html_page(report)
    parts = Parts(page)
    data, script = parts.texts["script"]
    assert json.loads(data) == report
    assert "broken" not in script
    assert data.isascii()
    assert not set(data) & set("<>&")
    assert parts.texts["title"] == [f"{NASTY.split('/')[-1]}: precision of operations"]
    assert "u" not in parts.texts


def test_nothing_is_fetched() -> None:
    parts = Parts(html_page(reports.encoder(1)))
    assert [found for found in parts.attributes if found[1] in ("src", "href", "srcset", "action")] == [
        ("link", "href", "data:,")
    ]
    assert "url(" not in parts.texts["style"][0].replace('url("#', "")
    assert "@import" not in parts.texts["style"][0]


def test_the_policy_of_the_page_allows_its_own_style_and_script_only() -> None:
    parts = Parts(html_page(reports.encoder(1)))
    policy = next(value for tag, name, value in parts.attributes if tag == "meta" and name == "content")
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (parts.texts["style"][0], parts.texts["script"][1])
    ]
    wanted = f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'"
    assert policy == wanted


@pytest.mark.parametrize("change", [{"version": 2}, {"format": "a recipe"}])
def test_what_is_no_report_of_this_version_is_refused(change: dict[str, Any]) -> None:
    given = {**reports.encoder(1), **change}
    with pytest.raises(ValueError, match=r"`report` must be of the format \('habana-mp report', 1\); got"):
        html_page(given)


def test_a_number_that_json_does_not_know_is_refused() -> None:
    report = reports.encoder(1)
    report["rows"][0]["seconds"] = math.nan
    with pytest.raises(ValueError, match="JSON"):
        html_page(report)


def test_wheels_have_the_files_of_the_page(tmp_path: Path) -> None:
    build = (
        "import sys; from scikit_build_core.build import build_wheel\n"
        "build_wheel(sys.argv[1], {'wheel.cmake': 'false', 'build-dir': sys.argv[1] + '/build'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("habana_mp/reporting/page/")}
    wanted = {f"habana_mp/reporting/page/{path.name}" for path in FOLDER.iterdir() if path.is_file()}
    assert {
        "habana_mp/reporting/page/page.html",
        "habana_mp/reporting/page/page.css",
        "habana_mp/reporting/page/page.js",
    } <= wanted
    assert packed == wanted
