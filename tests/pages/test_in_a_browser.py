"""The pages in a headless Chromium: what they show, what a click does, and that no request leaves them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyggml.pages.matrix import matrix_page
from pyggml.pages.range_diff import range_diff_page
from pyggml.series.exchange.range_diff import PatchPair, RangeDiff
from tests.pages.documents import BEFORE, HOSTILE, NOW

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SERIES = RangeDiff(
    "one",
    "two",
    (
        PatchPair(1, 1, "=", "same"),
        PatchPair(2, 3, "!", HOSTILE, ("@@ a.c", " -old", "-+gone", "++new", "++newer")),
        PatchPair(None, 2, ">", "new"),
    ),
)
PAGES = {"matrix": lambda: matrix_page(NOW, BEFORE), "range-diff": lambda: range_diff_page(SERIES)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api",
        reason="no playwright here: pip install playwright (its own browsers are not needed)",
    )
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH")
    with playwright.sync_playwright() as driver:
        options = ["--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        # Chromium refuses its sandbox to root.
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        started = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    contexts = []

    def opened(name: str, scheme: str = "light", width: int = 1200) -> Any:
        file = tmp_path / f"{name}.html"
        file.write_bytes(PAGES[name]())
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
        contexts.append(context)
        page = context.new_page()
        page.requests, page.wrong = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.on("console", lambda message: page.wrong.append(message.text))
        page.goto(file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 380)])
def test_it_is_seen_in_every_light_and_width(
    open_page: Any, tmp_path: Path, name: str, scheme: str, width: int
) -> None:
    page = open_page(name, scheme, width)
    page.screenshot(path=str(tmp_path / f"{name}-{scheme}-{width}.png"), full_page=True)
    assert page.wrong == []
    assert page.requests == [(tmp_path / f"{name}.html").as_uri()]
    # Only tables and differences may be wider than the window, inside a box that scrolls.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert light == (scheme == "light")
    assert page.locator("img").count() == 0


def test_a_cell_tells_why(open_page: Any) -> None:
    page = open_page("matrix")
    page.get_by_role("button", name="tensor 2 device f16: died").click()
    detail = page.locator("#detail")
    assert "ggml/src/ggml-backend-meta.cpp:543" in detail.inner_text()
    assert HOSTILE.replace("\u2028", " ") in detail.inner_text().replace("\u2028", " ")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert "llama-dense, tensor 2 device f16: within the bound" in detail.inner_text()


def test_the_filters(open_page: Any) -> None:
    page = open_page("matrix")
    rows = page.locator("tbody tr:visible")
    assert rows.count() == 2
    page.get_by_role("searchbox").fill("LLAMA")
    assert rows.count() == 1
    assert page.get_by_role("status").inner_text() == "1 of 2 models"
    page.get_by_role("searchbox").fill("")
    page.get_by_label("only models with a bad row").check()
    assert rows.count() == 1
    page.get_by_label("only models with a bad row").uncheck()
    page.get_by_label("only models that changed").check()
    assert rows.count() == 2
    page.get_by_label("colour by the distance").check()
    assert page.get_by_text("1e-9 to 1e-6").is_visible()


def test_what_a_screen_reader_gets(open_page: Any) -> None:
    tree = open_page("matrix").locator("body").aria_snapshot()
    assert '- heading "Matrix of b11549-cpu" [level=1]' in tree
    assert '- columnheader "tensor 2 host f16"' in tree
    assert 'button "llama-dense, tensor 2 host f16: identical, was died"' in tree
    series = open_page("range-diff").locator("body").aria_snapshot()
    assert '- columnheader "verdict"' in series
    assert '- heading "What changed in the patches" [level=2]' in series
    assert "2 lines added, 1 removed" in series
