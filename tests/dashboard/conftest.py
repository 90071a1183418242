from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor import Harbor, MemoryDriver
from tests.support.browser import WIDE, Screen, open_browser
from tests.support.dashboard_rig import HistoryClock, seed, seed_history, serve_site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.support.dashboard_rig import UiSite


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests; each test has a context of its own."""
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def seeded() -> Iterator[UiSite]:
    """A dashboard with something to show. Tests of the module share it and change nothing."""
    clock = HistoryClock(timedelta(minutes=59))
    with serve_site(harbor=Harbor(MemoryDriver(clock=clock)), label="production") as site:
        seed_history(site, clock)
        site.jobs = seed(site)
        yield site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[UiSite]:
    """A dashboard on an empty store, without keys."""
    with serve_site(f"sqlite:///{tmp_path}/jobs.db") as made:
        yield made


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[UiSite]:
    """A dashboard that needs keys."""
    with serve_site(f"sqlite:///{tmp_path}/jobs.db", needs_keys=True) as made:
        yield made


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[UiSite]:
    """A read-only dashboard without keys."""
    with serve_site(f"sqlite:///{tmp_path}/jobs.db", read_only=True) as made:
        yield made


@pytest.fixture
def screen(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Screen]:
    """A page of the browser for the site that the test uses. It fails if anything went wrong on it."""
    names = [name for name in ("seeded", "site", "locked", "reading") if name in request.fixturenames]
    url = request.getfixturevalue(names[0]).url
    context = browser.new_context(viewport={"width": WIDE, "height": 800}, locale="en-US", timezone_id="Europe/Berlin")
    shown = Screen(context, url)
    yield shown
    shown.check()
    context.close()
