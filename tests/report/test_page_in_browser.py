"""The page of a report in a real browser. Each test also sees that nothing is fetched and no error comes up.

It needs playwright and the system's Chromium, which `make test` installs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Locator, Page, expect

from habana_mp import hmp
from habana_mp.reporting.page import html_page
from helpers import reports
from helpers.browser import chromium, milliseconds_to_open, opened

ENCODER = reports.encoder()
ROWS: list[dict[str, Any]] = ENCODER["rows"]
LAYER = "Encoder.layers.3"
#: Names of the columns that only a report with places has.
PLACED = ["module", "ms", "cast ms", "place"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("report"), ENCODER)


@pytest.fixture
def page(browser: Browser, encoder: Path) -> Iterator[Page]:
    with opened(browser, encoder) as shown:
        yield shown


def written(folder: Path, report: dict[str, Any]) -> Path:
    path = folder / "report.html"
    path.write_text(html_page(report), "utf-8")
    return path


def below(path: str) -> list[dict[str, Any]]:
    return [row for row in ROWS if f"{row['module']}.".startswith(f"{path}.")]


def lines(page: Page) -> Locator:
    return page.locator("#table tbody tr:not(.gap)")


def column(page: Page, title: str) -> list[str]:
    """What the lines of the table that are in the document show in a column."""
    return lines(page).locator(f"td:nth-child({titles(page).index(title) + 1})").all_text_contents()


def titles(page: Page) -> list[str]:
    return page.locator("#table th").all_text_contents()


def treeitem(page: Page, path: str) -> Locator:
    return page.locator(f'[role=treeitem][data-path="{path}"]')


def current(page: Page) -> str:
    """The path of the module where the keyboard is."""
    path: str = page.evaluate(
        "document.getElementById(document.querySelector('#tree').getAttribute('aria-activedescendant')).dataset.path"
    )
    return path


def shows(page: Page, rows: int) -> None:
    """The table's heading says that so many rows are shown."""
    words = f"{rows} of {len(ROWS)} ·" if rows < len(ROWS) else f"{rows} ·"
    expect(page.locator("#operations-count")).to_contain_text(re.compile(f"^{words}"))


# ---- opening -------------------------------------------------------------------------------------------------------


def test_ten_thousand_rows_open_soon_and_scroll_with_few_of_them_in_the_document(
    browser: Browser, tmp_path: Path
) -> None:
    with opened(browser, written(tmp_path, reports.many())) as shown:
        assert milliseconds_to_open(shown) < 20_000
        assert lines(shown).count() < 60
        shown.locator("#table-view").scroll_into_view_if_needed()
        shown.locator("#table-view").evaluate("view => { view.scrollTop = view.scrollHeight }")
        expect(shown.locator("#row-9999")).to_be_in_viewport()
        assert lines(shown).count() < 60


def test_a_script_with_a_nasty_name_is_shown_by_that_name(browser: Browser, tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>\u2028\"'`&amp;{{style}}.py"
    with opened(browser, written(tmp_path, reports.encoder(1, script=f"/home/</script><b>/{name}"))) as shown:
        assert shown.locator("h1").text_content() == name
        assert shown.locator("img").count() == 0
        shown.locator("#search").fill("cross_entropy")
        assert column(shown, "place")[0] == f"{name}:57"


def test_the_head_tells_totals_and_their_shares(page: Page) -> None:
    assert page.locator("#first-words, #words p").all_inner_texts() == [
        words.replace("`", "") for words in ENCODER["words"]
    ]
    expect(page.locator("#environment")).to_contain_text("AMD EPYC")
    expect(page.locator("#totals")).to_contain_text(f"{ENCODER['totals']['calls']:,}")
    seconds = {name: of["seconds"] for name, of in ENCODER["totals"]["by_precision"].items()}
    bar = page.locator(".bar-of-precisions .stacked").bounding_box()
    part = page.locator(".bar-of-precisions .is-fp32").bounding_box()
    assert bar is not None
    assert part is not None
    assert part["width"] / bar["width"] == pytest.approx(seconds["fp32"] / sum(seconds.values()), abs=0.01)


def test_a_report_without_modules_and_times_has_a_table_by_calls(browser: Browser, tmp_path: Path) -> None:
    report = reports.operations_only()
    with opened(browser, written(tmp_path, report)) as shown:
        for hidden in ("#modules", "#findings"):
            expect(shown.locator(hidden)).to_be_hidden()
        assert not set(titles(shown)) & set(PLACED)
        assert "operation" in titles(shown)
        calls = sorted((row["calls"] for row in report["rows"]), reverse=True)
        assert column(shown, "calls") == [f"{one:,}" for one in calls]
        expect(shown.locator(".legend")).to_contain_text("calls")


# ---- the tree ------------------------------------------------------------------------------------------------------


def test_a_module_opens_and_closes(page: Page) -> None:
    inner = treeitem(page, f"{LAYER}.attention")
    expect(inner).to_have_count(0)
    treeitem(page, LAYER).locator(".twisty").click()
    expect(inner).to_be_visible()
    expect(treeitem(page, LAYER)).to_have_attribute("aria-expanded", "true")
    treeitem(page, LAYER).locator(".twisty").click()
    expect(inner).to_have_count(0)
    expect(treeitem(page, LAYER)).to_have_attribute("aria-expanded", "false")
    shows(page, len(ROWS))  # opening chooses nothing


def test_the_tree_obeys_the_keyboard(page: Page) -> None:
    page.locator("#tree").focus()
    keys = [
        ("ArrowDown", "Encoder.embeddings"),
        ("ArrowDown", "Encoder.embeddings.word"),
        ("ArrowUp", "Encoder.embeddings"),
        ("ArrowLeft", "Encoder.embeddings"),  # closes it
        ("ArrowDown", "Encoder.layers"),
        ("ArrowUp", "Encoder.embeddings"),
        ("ArrowRight", "Encoder.embeddings"),  # opens it
        ("ArrowRight", "Encoder.embeddings.word"),
        ("ArrowLeft", "Encoder.embeddings"),  # from a leaf to the module around it
        ("End", ""),
        ("Home", "Encoder"),
    ]
    for key, path in keys:
        page.keyboard.press(key)
        assert current(page) == path, key
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    shows(page, len(below("Encoder.embeddings")))
    expect(treeitem(page, "Encoder.embeddings")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    shows(page, len(ROWS))


def test_bars_are_as_long_as_times_and_parted_by_precision(page: Page) -> None:
    def width(path: str, part: str = "") -> float:
        box = treeitem(page, path).locator(f".bar .stacked {part}").bounding_box()
        assert box is not None
        return box["width"]

    seconds = {module["path"]: module["seconds"] for module in ENCODER["modules"]}
    assert width("Encoder.layers") / width("Encoder") == pytest.approx(
        seconds["Encoder.layers"] / seconds["Encoder"], abs=0.02
    )
    fp32 = sum(row["seconds"] for row in below("Encoder") if row["precision"] == "fp32")
    share = fp32 / sum(row["seconds"] for row in below("Encoder"))
    assert width("Encoder", ".is-fp32") / width("Encoder") == pytest.approx(share, abs=0.03)


def test_the_filter_of_the_tree_keeps_what_has_the_text_and_what_is_around_it(page: Page) -> None:
    page.locator("#tree-filter").fill("INTERMEDIATE.dense")
    paths = page.locator("[role=treeitem]").evaluate_all("all => all.map(x => x.dataset.path)")
    layer = "Encoder.layers.0"
    assert paths[:5] == ["Encoder", "Encoder.layers", layer, f"{layer}.intermediate", f"{layer}.intermediate.dense"]
    assert not any("attention" in path for path in paths)
    page.locator("#tree-filter").fill("nothing like it")
    expect(page.locator("#tree-none")).to_be_visible()
    page.locator("#tree-filter").fill("")
    expect(treeitem(page, "Encoder.embeddings")).to_be_visible()


def test_a_module_restricts_the_table_to_what_is_in_it(page: Page) -> None:
    treeitem(page, LAYER).click()
    shows(page, len(below(LAYER)))
    expect(page.locator("#restrictions")).to_contain_text(LAYER)
    page.get_by_role("button", name=f"Do not restrict to {LAYER}").click()
    shows(page, len(ROWS))


# ---- the table -----------------------------------------------------------------------------------------------------


def test_a_heading_sorts_and_sorts_the_other_way_by_the_keyboard(page: Page) -> None:
    heading = page.get_by_role("columnheader", name="operation")
    button = heading.get_by_role("button")
    expect(heading).to_have_attribute("aria-sort", "none")
    button.click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    assert set(column(page, "operation")[:24]) == {"add"}
    page.keyboard.press("Enter")
    expect(heading).to_have_attribute("aria-sort", "descending")
    assert set(column(page, "operation")[:12]) == {"tanh_backward"}
    expect(button).to_be_focused()


def test_every_column_sorts(page: Page) -> None:
    page.set_viewport_size({"width": 1600, "height": 900})  # there is room for all columns

    def sorted_by(title: str) -> Locator:
        heading = page.get_by_role("columnheader", name=title, exact=True)
        if heading.get_attribute("aria-sort") == "none":
            heading.get_by_role("button").click()
        return heading

    numbers = {
        **{"ms": "seconds", "#": "order", "calls": "calls", "casts": "casts"},
        **{"MB cast": "bytes", "cast ms": "cast_seconds", "cached": "hits"},
    }
    for title, key in numbers.items():
        ascending = sorted_by(title).get_attribute("aria-sort") == "ascending"
        assert ascending == (title == "#")
        found = [int(row.removeprefix("row-")) for row in lines(page).evaluate_all("all => all.map(x => x.id)")]
        wanted = sorted(ROWS, key=lambda row: ((1 if ascending else -1) * row[key], row["order"]))
        assert [ROWS[index] for index in found] == wanted[: len(found)], title

    def natural(text: str) -> list[tuple[bool, int, str]]:
        return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", text)]

    for title in ("precision", "module", "place", "reason", "phase"):
        sorted_by(title)
        shown = column(page, title)
        assert shown == sorted(shown, key=natural), title
        assert len(shown) > 20


def test_the_search_looks_at_all_that_is_shown(page: Page) -> None:
    def in_a_field(text: str) -> Callable[[dict[str, Any]], bool]:
        fields = ("operation", "module", "file", "reason", "why", "rule")
        return lambda row: any(text.lower() in str(row[field]).lower() for field in fields)

    one_field = ("SOFTMAX_back", "layers.7.attention", "modeling.py", "widest", "hmp_default_fp32")
    several: dict[str, Callable[[dict[str, Any]], bool]] = {
        "train.py:57": lambda row: row["line"] == 57,
        "linear backward": lambda row: row["phase"] == "backward" and "linear" in row["operation"],
        "fp32": lambda row: row["precision"] == "fp32",
        "bf16 layers.3": lambda row: row["precision"] == "bf16" and "layers.3" in (row["module"] or ""),
    }
    for text, finds in {**{text: in_a_field(text) for text in one_field}, **several}.items():
        wanted = [row for row in ROWS if finds(row)]
        assert wanted
        page.locator("#search").fill(text)
        shows(page, len(wanted))


def test_precisions_are_filtered_one_or_several_at_once(page: Page) -> None:
    counts = {name: sum(row["precision"] == name for row in ROWS) for name in ("bf16", "fp32", "unchanged")}
    buttons = {name: page.locator("#filter-precision").get_by_role("button", name=name) for name in counts}
    buttons["fp32"].click()
    shows(page, counts["fp32"])
    assert set(column(page, "precision")) == {"fp32"}
    expect(buttons["fp32"]).to_have_attribute("aria-pressed", "true")
    buttons["unchanged"].click()
    shows(page, counts["fp32"] + counts["unchanged"])
    buttons["fp32"].click()
    shows(page, counts["unchanged"])
    buttons["unchanged"].click()
    shows(page, len(ROWS))


def test_reasons_and_phases_are_filtered(page: Page) -> None:
    for field, value in (("reason", "widest"), ("phase", "backward")):
        page.locator(f"#filter-{field}").select_option(value)
        shows(page, sum(row[field] == value for row in ROWS))
        page.locator(f"#filter-{field}").select_option("")
        shows(page, len(ROWS))


def test_a_row_is_chosen_by_mouse_and_by_keyboard_and_its_details_are_shown(page: Page) -> None:
    lines(page).nth(2).click()
    expect(lines(page).nth(2)).to_have_attribute("aria-selected", "true")
    row = ROWS[2]
    for text in (row["module"], f"{row['file']}:{row['line']}", row["why"], row["rule"]):
        expect(page.locator("#row-details")).to_contain_text(text)
    page.keyboard.press("ArrowDown")
    expect(lines(page).nth(3)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("End")
    last = page.locator(f"#row-{len(ROWS) - 1}")
    expect(last).to_be_in_viewport()
    expect(last).to_have_attribute("aria-selected", "true")
    expect(page.locator("#table")).to_have_attribute("aria-activedescendant", f"row-{len(ROWS) - 1}")
    page.keyboard.press("Escape")
    expect(page.locator("#row-details")).to_be_hidden()


def test_a_chosen_row_is_told_of_where_it_can_be_seen_and_another_click_lets_it_go(
    browser: Browser, tmp_path: Path
) -> None:
    for width, height in ((1280, 700), (400, 700)):
        with opened(browser, written(tmp_path, reports.many()), viewport={"width": width, "height": height}) as shown:
            lines(shown).nth(1).click()
            expect(shown.locator("#row-details")).to_be_in_viewport(ratio=1)
            lines(shown).nth(1).click()
            expect(shown.locator("#row-details")).to_be_hidden()


def test_the_table_fills_the_window(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, written(tmp_path, reports.many()), viewport={"width": 1280, "height": 1500}) as shown:
        bottom = shown.locator("#table-view").evaluate("view => view.getBoundingClientRect().bottom")
        assert bottom > 1400


def test_what_is_kept_is_called_so_in_its_row_and_in_the_filter_of_reasons(browser: Browser, tmp_path: Path) -> None:
    model = hmp.keep(torch.nn.Sequential(torch.nn.Linear(4, 4)))
    hmp.convert(report="modules")
    hmp.reset_report()
    for one in (model, torch.nn.Linear(4, 4)):
        one(torch.ones(2, 4))
    with opened(browser, written(tmp_path, hmp.report(show=False).to_dict())) as shown:
        assert set(column(shown, "reason")) == {"kept by hmp.keep", "in the list"}
        shown.locator("#filter-reason").select_option(label="kept by hmp.keep (1)")
        assert column(shown, "reason") == ["kept by hmp.keep"]


def test_a_reason_is_not_cut_within_a_word_at_1280(browser: Browser, tmp_path: Path) -> None:
    why = "in no list: runs in its input's precision"
    row = reports.row("relu", "bf16", reason="unlisted", why=why, rule="rule 4", module="Net.layers.0", line=3)
    with opened(browser, written(tmp_path, reports.report([row])), viewport={"width": 1280, "height": 800}) as shown:
        cell = shown.locator("#table td", has_text="in no list")
        assert cell.evaluate("one => one.scrollWidth <= one.clientWidth")
        assert cell.get_attribute("title") == why


# ---- the findings --------------------------------------------------------------------------------------------------


def test_a_finding_chooses_its_rows_and_their_module(page: Page) -> None:
    button = page.locator(".finding").nth(2)
    page.locator("#search").fill("embedding")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    wanted = ENCODER["findings"][2]["rows"]
    found = lines(page).evaluate_all("all => all.map(x => Number(x.id.slice(4)))")
    assert sorted(found) == sorted(wanted)
    expect(page.locator("#search")).to_have_value("")
    expect(treeitem(page, "Encoder.layers.2.intermediate")).to_have_attribute("aria-selected", "true")
    button.click()
    shows(page, len(ROWS))


def test_the_address_keeps_the_choice(browser: Browser, encoder: Path, page: Page) -> None:
    page.locator(".finding").nth(1).click()
    fragment = page.evaluate("location.hash")
    with opened(browser, encoder, fragment) as again:
        shows(again, len(ENCODER["findings"][1]["rows"]))
        expect(again.locator(".finding").nth(1)).to_have_attribute("aria-pressed", "true")
    with opened(browser, encoder, "#module=Nowhere&finding=999") as elsewhere:
        shows(elsewhere, len(ROWS))


# ---- light, dark, paper --------------------------------------------------------------------------------------------


def background(page: Page) -> str:
    colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return colour


def test_the_page_is_light_or_dark_like_the_system(browser: Browser, encoder: Path) -> None:
    found = {}
    for scheme in ("light", "dark"):
        with opened(browser, encoder, color_scheme=scheme) as shown:
            found[scheme] = background(shown)
    assert found["light"] != found["dark"]


def test_on_paper_all_is_open_and_no_control_is_left(page: Page) -> None:
    modules = len(ENCODER["modules"]) + 1
    assert page.locator("[role=treeitem]").count() < modules
    page.emulate_media(media="print")
    expect(page.locator("[role=treeitem]")).to_have_count(modules)
    expect(lines(page)).to_have_count(len(ROWS))
    for control in page.locator("input, select, button.control").all():
        expect(control).to_be_hidden()
    assert page.evaluate(
        "[...document.querySelectorAll('#tree, #table-view, #findings-list')]"
        ".every(x => getComputedStyle(x).overflowY === 'visible')"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.emulate_media(media="screen")
    expect(page.locator("[role=treeitem]")).not_to_have_count(modules)
    assert lines(page).count() < 60


# ---- what a reader finds without scrolling, searching and on a telephone ---------------------------------------------


def test_no_number_is_cut(browser: Browser, tmp_path: Path) -> None:
    report, factor = reports.encoder(2), 10**6
    for row in report["rows"]:
        for name in ("calls", "casts", "bytes", "hits"):
            row[name] *= factor
        row["seconds"] *= factor
    with opened(browser, written(tmp_path, report)) as shown:
        cut = "cells => cells.filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"
        assert shown.locator("#table td.number").evaluate_all(cut) == []
        assert shown.locator("#tree .cost").evaluate_all(cut) == []


def test_on_a_telephone_nothing_scrolls_but_the_page(browser: Browser, encoder: Path) -> None:
    inner = """() => [...document.querySelectorAll("*")].filter(one => {
        const style = getComputedStyle(one);
        const scrolls = (way, whole, seen) => /auto|scroll/.test(way) && whole > seen + 1;
        return one !== document.documentElement && scrolls(style.overflowY, one.scrollHeight, one.clientHeight);
    }).map(one => one.id || one.tagName)"""
    with opened(browser, encoder, viewport={"width": 400, "height": 800}) as shown:
        assert shown.evaluate(inner) == []
        assert shown.evaluate("document.documentElement.scrollWidth") == 400
        assert shown.locator("#table th:visible").all_text_contents() == ["operation", "precision", "ms", "calls"]
        lines(shown).first.click()
        expect(shown.locator("#row-details")).to_contain_text("first input")
