"""The report as one HTML page, which loads no other file.

``page.html`` is the template, ``page.css`` the style. The scripts are joined in the order of ``_SCRIPTS`` into one
module, so that all of them can call the functions of each.
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

FORMAT, VERSION = "habana-mp report", 1

_HERE = Path(__file__).parent
_SCRIPTS = (
    "dom.js",
    "numbers.js",
    "report.js",
    "state.js",
    "window.js",
    "head.js",
    "tree.js",
    "details.js",
    "table.js",
    "findings.js",
    "page.js",
)
_NOT_IN_A_SCRIPT_ELEMENT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def html_page(report: Mapping[str, Any]) -> str:
    """Returns the page of a report, which must be a result of ``Report.to_dict()``."""
    given = (report.get("format"), report.get("version"))
    if given != (FORMAT, VERSION):
        raise ValueError(f"`report` must be of the format {(FORMAT, VERSION)!r}; got {given!r}")
    style = _text("page.css")
    script = "\n".join(_text(name) for name in _SCRIPTS)
    parts = {
        "policy": _policy(style, script),
        "title": html.escape(printable(f"{_script_name(report)}: precision of operations")),
        "style": style,
        "script": script,
        "data": _data(report),
    }
    return filled(_text("page.html"), parts)


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Returns a template with its parts put in place of their names in double braces."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _text(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _script_name(report: Mapping[str, Any]) -> str:
    return Path(report["environment"].get("script") or "habana_mp").name


def printable(text: str) -> str:
    """Returns the text with bytes that are not text spelled out, as in the log. A file name may hold such bytes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _data(report: Mapping[str, Any]) -> str:
    """Returns the report as ASCII JSON, without characters that could end the script element around it."""
    return json.dumps(report, separators=(",", ":"), allow_nan=False).translate(_NOT_IN_A_SCRIPT_ELEMENT)


def _policy(style: str, script: str) -> str:
    """Returns a Content-Security-Policy that allows only our own style and script, and no other requests."""
    return f"default-src 'none'; img-src data:; style-src {source_of(style)}; script-src {source_of(script)}"


def source_of(text: str) -> str:
    """Returns the source of a script or a style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
