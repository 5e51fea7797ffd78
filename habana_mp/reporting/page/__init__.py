"""The report as one HTML page, which loads no other file. The diagnosis is a page of the same form.

``page.html`` is the template of all pages, ``page.css`` their style, ``report.html`` the body of the report. Its
scripts are joined in the order of ``_SCRIPTS`` into one module, so that all of them can call the functions of each.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from habana_mp.reporting.records import CachedWeights

FORMAT, VERSION = "habana-mp report", 1

_HERE = Path(__file__).parent
_SCRIPTS = ("dom", "numbers", "report", "window", "head", "tree", "table", "filters", "findings", "page")
_NOT_IN_A_SCRIPT_ELEMENT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def html_page(report: Mapping[str, Any]) -> str:
    """Returns the page of a report, which must be a result of ``Report.to_dict()``."""
    # ASCII, without characters that could end the script element around it.
    data = json.dumps(report, separators=(",", ":"), allow_nan=False).translate(_NOT_IN_A_SCRIPT_ELEMENT)
    weights = CachedWeights(**report["weights"])
    parts = {"data": data, "weights": "" if weights == CachedWeights() else in_html(str(weights))}
    name = Path(report["environment"].get("script") or "habana_mp").name
    script = "\n".join((_HERE / f"{one}.js").read_text("utf-8") for one in _SCRIPTS)
    return page(f"{name}: precision of operations", _HERE / "report.html", parts, script)


def page(title: str, body: Path, parts: Mapping[str, str], script: str = "") -> str:
    """Returns a page with the body of this file, whose parts are put in place of their names in double braces. Its
    Content-Security-Policy allows only our own style and script, and no other requests."""
    style = (_HERE / "page.css").read_text("utf-8")
    policy = f"default-src 'none'; img-src data:; style-src {_source_of(style)}"
    whole = {
        "policy": f"{policy}; script-src {_source_of(script)}" if script else policy,
        "title": in_html(title),
        "style": style,
        "body": _filled(body, {**parts, "script": script}),
    }
    return _filled(_HERE / "page.html", whole)


def in_html(text: str) -> str:
    """Returns the text for HTML. Bytes that are not text, as in a file name, are spelled out as in the log."""
    return html.escape(text.encode("utf-8", "backslashreplace").decode("utf-8"))


def _filled(template: Path, parts: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template.read_text("utf-8"))


def _source_of(text: str) -> str:
    """Returns the source of a script or a style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
