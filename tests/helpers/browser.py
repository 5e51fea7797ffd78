"""A real browser for the report's page: the system's Chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

#: Milliseconds after which a wait fails: a machine with other work may be slow.
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)


def path_of_chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        raise RuntimeError(
            "no `chromium` on the PATH: the report's page is tested in a real browser. "
            "`make test` installs it; by hand it is `apt-get install chromium`"
        )
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    path = path_of_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


#: The page's policy refuses playwright's own way to wait for a condition, which needs `eval`.
UNTIL_SHOWN = """patience => new Promise((shown, failed) => {
    setTimeout(() => failed(new Error("the report was not drawn")), patience);
    const look = () => performance.getEntriesByName("report-shown").length ? shown() : setTimeout(look, 10);
    look();
})"""


@contextmanager
def opened(browser: Browser, file: Path, fragment: str = "", **options: Any) -> Iterator[Page]:
    """Opens the page, and yields it when it is drawn. At the end asserts that it loaded no other file and gave no
    warning."""
    options = {"viewport": {"width": 1280, "height": 900}, **options}
    page = browser.new_page(**options)
    page.set_default_timeout(PATIENCE)
    asked: list[str] = []
    complaints: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    page.on("request", lambda request: asked.append(request.url))
    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    try:
        page.goto(file.as_uri() + fragment)
        page.evaluate(UNTIL_SHOWN, PATIENCE)
        yield page
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
        assert complaints == []
    finally:
        page.close()


def milliseconds_to_open(page: Page) -> float:
    """Returns the time from the start of the navigation until the report was drawn."""
    mark: float = page.evaluate("performance.getEntriesByName('report-shown')[0].startTime")
    return mark
