"""The page of a report as a text: nothing is fetched, nothing in the data breaks out, wheels have its files."""

from __future__ import annotations

import base64
import hashlib
import json
import math

import pytest

from habana_mp.reporting.page import html_page
from helpers import reports
from helpers.page_parts import Parts


def test_the_data_in_the_page_is_the_report() -> None:
    report = reports.encoder(2)
    data, _script = Parts(html_page(report)).texts["script"]
    assert json.loads(data) == report


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


def test_a_number_that_json_does_not_know_is_refused() -> None:
    report = reports.encoder(1)
    report["rows"][0]["seconds"] = math.nan
    with pytest.raises(ValueError, match="JSON"):
        html_page(report)
