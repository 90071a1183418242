"""The documentation site in a real browser, opened as files: search, themes, a narrow screen, no errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pytest
from playwright.sync_api import sync_playwright

from tests.support.chromium import ARGUMENTS, find_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

LIMIT_MS: Final = 30_000
PAGES: Final = (
    "index",
    "tutorials/first-job",
    "crashes",
    "reference/cli",
    "reference/http",
    "reference/python",
    "states",
)
NARROW: Final = 375
WIDE: Final = 1280


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = find_chromium()
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found.program, args=list(ARGUMENTS), env={**found.environment}
        )
        yield launched
        launched.close()


class Opened:
    """A page of the site, and everything that a browser complains about on it."""

    def __init__(self, page: Page, site: Path) -> None:
        self.page, self._site = page, site
        self.problems: list[str] = []
        page.on("console", lambda message: self._note(message.text) if message.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: self._note(str(error)))
        page.on("requestfailed", lambda request: self._note(f"failed: {request.url}"))
        page.on("request", lambda request: self._note(request.url) if request.url.startswith("http") else None)

    def _note(self, problem: str) -> None:
        self.problems.append(problem)

    def go(self, name: str) -> None:
        self.page.goto((self._site / f"{name}.html").as_uri())


@pytest.fixture
def opened(browser: Browser, site: Path) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": WIDE, "height": 800})
    context.set_default_timeout(LIMIT_MS)
    opened = Opened(context.new_page(), site)
    yield opened
    context.close()
    assert opened.problems == []


def test_a_search_finds_lease(opened: Opened) -> None:
    opened.go("index")
    opened.page.fill(".sidebar-search", "lease")
    opened.page.press(".sidebar-search", "Enter")

    assert opened.page.locator('#search-results li a[href*="internals/"]').count() == 0
    opened.page.click('#search-results li a[href*="guarantees.html"]')  # results appear one after the other
    opened.page.wait_for_selector("article h1")

    assert opened.page.inner_text("article h1").startswith("Guarantees")
    assert "lease" in opened.page.inner_text("article")


def color_of(page: Page) -> int:
    """Return how bright the background is, from 0 to 765."""
    color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in color.strip("rgba()").split(",")[:3])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_shows_its_picture(opened: Opened, scheme: Literal["light", "dark"]) -> None:
    opened.page.emulate_media(color_scheme=scheme)
    opened.go("crashes")

    shown = opened.page.eval_on_selector_all(
        "article img",
        "all => all.filter(each => each.offsetParent !== null).map(each => [each.src, each.naturalWidth])",
    )

    assert (color_of(opened.page) > 600) == (scheme == "light")
    assert len(shown) == 3
    assert all(f"-{scheme}.svg" in source and width > 0 for source, width in shown)


def test_a_reader_can_switch_the_theme(opened: Opened) -> None:
    opened.page.emulate_media(color_scheme="light")
    opened.go("index")
    before = color_of(opened.page)

    for _ in range(3):  # as the system, light, dark
        opened.page.click(".theme-toggle-content .theme-toggle, .content-icon-container .theme-toggle")
        if color_of(opened.page) != before:
            return
    pytest.fail("the color of the page did not change")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_narrow_screen(opened: Opened, name: str, scheme: Literal["light", "dark"]) -> None:
    opened.page.set_viewport_size({"width": NARROW, "height": 800})
    opened.page.emulate_media(color_scheme=scheme)
    opened.go(name)

    assert opened.page.evaluate("document.documentElement.scrollWidth") <= NARROW
    assert opened.page.locator("article h1").count() == 1
