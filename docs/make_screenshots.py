"""Make the pictures of the report's page: ``python docs/make_screenshots.py``.

They show the report of ``examples/encoder.py``. Each picture has in its own text what a test compares with such a
report: the first sentence, and the rows without their times. It needs Chromium, playwright and pillow.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from habana_mp.reporting.page import html_page

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from helpers.browser import chromium, opened  # noqa: E402

SCRIPT = DOCS.parent / "examples" / "encoder.py"
IMAGES = DOCS / "images"
SIZES = {"report-page.png": (1280, 860), "report-page-dark.png": (1280, 920)}


def reported(folder: Path) -> dict[str, Any]:
    """Runs the script, and returns its report, with paths from the root of the project."""
    file = folder / "report.json"
    command = [sys.executable, "-m", "habana_mp", "run", "--report", file, "--detail", "lines", SCRIPT]
    subprocess.run(command, check=True, cwd=SCRIPT.parent, capture_output=True)
    found: dict[str, Any] = json.loads(file.read_text("utf-8").replace(f"{DOCS.parent}/", ""))
    return found


def contents_of(report: dict[str, Any]) -> dict[str, str]:
    """Returns what a picture shows of a report, whatever the machine: the first sentence, and the rows."""
    rows = (f"{row['operation']} {row['precision']} {row['module']} {row['calls']}" for row in report["rows"])
    return {"headline": report["words"][0].partition(". ")[0], "rows": "\n".join(sorted(rows))}


def save(name: str, picture: bytes, report: dict[str, Any]) -> None:
    """With a palette, which takes a third of the room."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    text = PngInfo()
    for key, value in contents_of(report).items():
        text.add_text(key, value, zip=True)
    image.quantize(128, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True, pnginfo=text)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        report = reported(folder)
        file = folder / "report.html"
        file.write_text(html_page(report), "utf-8")
        (light, light_size), (dark, dark_size) = (
            (one, {"width": width, "height": height}) for one, (width, height) in SIZES.items()
        )
        with opened(browser, file, viewport=light_size) as page:
            save(light, page.screenshot(), report)
        with opened(browser, file, "#module=Encoder.layers.1", viewport=dark_size, color_scheme="dark") as page:
            page.locator("#table tbody tr:not(.gap)").nth(2).click()
            page.evaluate("scrollTo(0, document.querySelector('main').offsetTop - 14)")
            page.mouse.move(0, 0)
            save(dark, page.screenshot(), report)


if __name__ == "__main__":
    main()
