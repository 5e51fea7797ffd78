"""Make the pictures of ``docs/report-page.md``: ``python docs/make_screenshots.py``.

It needs what the tests of the page need: Chromium, playwright and pillow. The report that they show is made up.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from habana_mp.reporting.page import html_page

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from helpers import reports  # noqa: E402
from helpers.browser import chromium, opened  # noqa: E402

IMAGES = DOCS / "images"
SIZE = {"width": 1280, "height": 860}
TALLER = {"width": 1280, "height": 920}


def save(name: str, picture: bytes) -> None:
    """With a palette, which takes a third of the room."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "report.html"
        file.write_text(html_page(reports.encoder()), "utf-8")
        with opened(browser, file, viewport=SIZE) as page:
            save("report-page.png", page.screenshot())
        with opened(browser, file, "#module=Encoder.layers.1", viewport=TALLER, color_scheme="dark") as page:
            page.locator("#table tbody tr:not(.gap)").nth(2).click()
            page.evaluate("scrollTo(0, document.querySelector('main').offsetTop - 14)")
            page.mouse.move(0, 0)
            save("report-page-dark.png", page.screenshot())


if __name__ == "__main__":
    main()
