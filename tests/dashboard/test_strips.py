"""The strips of the shell: what is wrong with the installation itself, shown only while it is true."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor import Harbor, MemoryDriver
from taskharbor.core.statistics import ROLL_UP, ROLL_UP_PERIOD
from taskharbor.drivers import migrate
from taskharbor.drivers.postgres.schema import MIGRATIONS
from tests.support.dashboard_rig import HistoryClock, serve_site
from tests.support.postgres import NEWEST, database, schema_at
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite


def strips(site: UiSite) -> list[str]:
    """Return the texts of the strips of a page."""
    with site.http() as client:
        page = client.get("/ui/queues").text
    found = re.findall(r'<p class="strip">(.*?)</p>', page, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", "", each).split()) for each in found]


def roll_up(site: UiSite) -> None:
    """Update the counts as a janitor does."""
    assert site.driver.maintenance.claim_duty(ROLL_UP, every=ROLL_UP_PERIOD)
    site.roll_up()


def test_a_store_that_nothing_is_wrong_with_has_no_strip(site: UiSite) -> None:
    before = strips(site)
    roll_up(site)

    assert (before, strips(site)) == ([], [])


def test_counts_over_15_seconds_old_are_pointed_out_until_updated() -> None:
    clock = HistoryClock(timedelta(seconds=42))
    with Harbor(MemoryDriver(clock=clock)) as harbor:
        harbor.driver.maintenance.claim_duty(ROLL_UP, every=ROLL_UP_PERIOD)
        clock.skip(timedelta(seconds=42))
        with serve_site(harbor=harbor) as site:
            [strip] = strips(site)
            roll_up(site)
            wait_until(lambda: strips(site) == [])

    assert re.fullmatch(
        r"Counts and charts are [\d.]+ s old: workers and janitors update them, and none is live\.", strip
    )


def test_a_schema_behind_the_code_is_pointed_out_until_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.dashboard.queries.SCHEMA_SECONDS", 0)
    with database(version=NEWEST - 1) as url, serve_site(url) as site:
        before = strips(site)
        migrate.migrate_up(schema_at(url), MIGRATIONS)
        after = strips(site)

    assert before == ["The schema of the store is behind by 1 migration: taskharbor migrate up."]
    assert after == []


def test_a_strip_disappears_from_an_open_page(screen: Screen, site: UiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    roll_up(site)
    monkeypatch.setattr("taskharbor.dashboard.shell.MAX_COUNT_AGE", -timedelta(hours=1))
    screen.go("/queues")
    assert "Counts and charts are" in screen.text(".strip")

    monkeypatch.setattr("taskharbor.dashboard.shell.MAX_COUNT_AGE", timedelta(hours=1))

    screen.page.wait_for_selector(".strip", state="detached", timeout=30_000)  # checked every 10 s
