"""Live updates: a change is on screen within two seconds, held when it would disturb, and one poll serves all tabs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import httpx

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.outcome import Outcome
from tests.support.browser import note_changes, screenshot
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite

FIRST_ROW = "main tr[data-key=mail]"


def waiting(screen: Screen) -> str:
    return screen.page.inner_text(f"{FIRST_ROW} [data-l=Waiting]")


def test_a_new_job_is_on_screen_within_two_seconds(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues")
    screen.page.wait_for_selector("#live:has-text('live')")

    took = []
    for number in range(2, 6):  # the best of four: another process may hold the processor for a while
        site.enqueue(queue="mail")
        site.roll_up()
        began = time.monotonic()
        screen.page.wait_for_selector(f"tr[data-key=mail] [data-l=Waiting]:has-text('{number}')")
        took.append(time.monotonic() - began)
        if took[-1] < 2:
            break

    assert min(took) < 2


def test_an_open_dialog_holds_the_page_and_closing_it_catches_up(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues/mail")
    screen.page.wait_for_selector("#live:has-text('live')")
    tile = screen.page.locator(".tiles b").first
    screen.page.click("text=Pause…")
    screen.page.wait_for_selector("dialog[open]")

    has_seen = note_changes(screen)
    site.enqueue(queue="mail")
    site.roll_up()
    screen.page.wait_for_selector("#live:has-text('held')")
    wait_until(has_seen)
    assert tile.inner_text() == "1"

    screen.page.click("dialog [data-close]")
    wait_until(lambda: tile.inner_text() == "2")


def test_a_row_is_not_replaced_until_it_has_lost_the_focus(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.enqueue(queue="other")
    site.roll_up()
    screen.go("/queues")
    screen.page.wait_for_selector("#live:has-text('live')")
    screen.page.focus(f"{FIRST_ROW} a")

    site.enqueue(queue="mail")
    site.enqueue(queue="other")
    site.roll_up()
    screen.page.wait_for_selector("tr[data-key=other] [data-l=Waiting]:has-text('2')")

    assert waiting(screen) == "1"
    assert screen.page.evaluate("document.activeElement.textContent") == "mail"

    screen.page.evaluate("document.activeElement.blur()")
    screen.page.wait_for_selector(f"{FIRST_ROW} [data-l=Waiting]:has-text('2')")


def test_a_hundred_tabs_share_one_poll_a_second(site: UiSite, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = []
    read = site.driver.inspector.find

    def counted(*args: object, **options: object) -> object:
        polls.append(time.monotonic())
        return read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(site.driver.inspector, "find", counted)
    with site.http(limits=httpx.Limits(max_connections=None)) as client:
        answers = [client.send(client.build_request("GET", "/ui/events"), stream=True) for _ in range(100)]
        assert {each.status_code for each in answers} == {200}
        wait_until(lambda: len(polls) >= 1)
        begin, before = time.monotonic(), len(polls)
        wait_until(lambda: len(polls) >= before + 3)
        assert len(polls) - before <= time.monotonic() - begin + 1.5
        for each in answers:
            each.close()


def test_a_stream_ends_soon_after_its_key_is_revoked(locked: UiSite, screen: Screen) -> None:
    key = locked.key("jobs:read")
    screen.log_in(key)
    screen.page.wait_for_selector("#live:has-text('live')")
    screen.allowed |= {401}

    locked.driver.control.revoke_keys([key.split("_")[1]])
    began = time.monotonic()
    screen.page.wait_for_selector("#live[data-old]", timeout=30_000)

    assert time.monotonic() - began < 25  # ten, and what a busy machine adds
    wait_until(lambda: locked.app.state.taskharbor.open.count == 0)


def test_a_store_that_stops_answering_is_shown_and_recovers(
    site: UiSite, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues")
    screen.page.wait_for_selector("#live:has-text('live')")
    screen.allowed |= {503}

    with monkeypatch.context() as broken:

        def away(*_args: object, **_options: object) -> object:
            raise StoreUnavailable("connection refused")

        for name in ("find", "queues", "workers", "now"):
            broken.setattr(site.driver.inspector, name, away)
        began = time.monotonic()
        screen.page.wait_for_selector("#live[data-old]")
        assert time.monotonic() - began < 15
        screen.go("/queues", expect=503)
        assert "No answer from the store" in screen.text()
        screenshot(screen.page, "store-away-light-1280")
        assert screen.page.locator(".old tr[data-key=mail]").count() == 1

    screen.page.wait_for_selector("main > h1:has-text('Queues')")


def test_the_numbers_of_the_navigation_follow_the_store(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues")
    screen.page.wait_for_selector("#live:has-text('live')")
    assert screen.page.locator(".nav .badge").count() == 0

    site.settle(site.claim("mail"), Outcome.fail("hopeless"))
    site.roll_up()

    screen.page.wait_for_selector(".nav a[data-go=d] .badge:has-text('1')")
    assert screen.text(".nav [aria-current]") == "Queues"
