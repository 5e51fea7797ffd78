"""The site of the documents builds without a warning, needs no network, and fits a telephone; its notebook runs.

It needs playwright and the system's Chromium, mkdocs-material, nbclient and ipykernel, which `make test` installs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from nbclient import NotebookClient
from playwright.sync_api import Page, expect

from helpers.browser import chromium
from helpers.processor import as_everywhere

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"


def build(folder: Path) -> list[Path]:
    """Builds the site. Returns its pages, without the one that only a server shows."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr
    return sorted(page for page in folder.rglob("*.html") if page.name != "404.html")


def broken_links(pages: list[Path]) -> list[str]:
    texts = {page: page.read_text("utf-8") for page in pages}
    names = {page: set(re.findall(r' id="?([^" >]+)', text)) for page, text in texts.items()}
    broken = []
    for page, text in texts.items():
        for link in re.findall(r'(?:href|src)="?([^" >]+)', text):
            path, _, name = unquote(link).partition("#")
            target = Path(os.path.normpath(page.parent / path)) if path else page
            if "://" not in link and not (target.exists() and (not name or name in names[target])):
                broken.append(f"{page.name}: {link}")
    return broken


def find_by_search(page: Page, words: str) -> None:
    page.locator(".md-search__input").click()
    page.keyboard.type(words)
    expect(page.locator(".md-search-result__item").first).to_be_visible()


def test_the_site_needs_no_network_fits_a_telephone_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    pages = build(tmp_path)
    texts = [page.read_text("utf-8") for page in pages]
    assert not [text for text in texts if re.search(r"<(p|td)>[-*] ", text)], "a list needs an empty line before it"
    assert broken_links(pages) == []
    asked: list[str] = []
    complaints: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 900})
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        for path in pages:
            page.goto(path.as_uri())
            wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert not wide, f"{path.name} is wider than a telephone"
        page.set_viewport_size({"width": 1280, "height": 900})
        find_by_search(page, "disable_casts")
        links = page.locator("a.md-search-result__link")
        decisions = links.evaluate_all("all => all.map(one => one.getAttribute('href').includes('/decisions/'))")
        assert not any(decisions[:3]), "pages for users come before decisions"
        assert any(decisions)
    assert complaints == []
    assert [url for url in asked if not url.startswith((tmp_path.as_uri(), "data:"))] == []


def outputs(notebook: Any) -> list[Any]:
    """What each cell printed and showed, without the numbers of the run."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    every = [[output.get("data", {"text": output.get("text")}) for output in cell.outputs] for cell in cells]
    return [[{kind: as_everywhere(text) for kind, text in one.items()} for one in outputs] for outputs in every]


def test_the_notebook_shows_what_it_shows_here() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    stored = outputs(notebook)
    NotebookClient(notebook, record_timing=False, timeout=300).execute()
    assert outputs(notebook) == stored, f"run `jupyter execute --inplace {NOTEBOOK.relative_to(ROOT)}`"
