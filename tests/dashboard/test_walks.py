"""Walks through the pages: without scripts, by keyboard alone, on paper, and a night of an operator."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

from taskharbor.core.ids import JobId
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from tests.dashboard.test_jobs import status_of
from tests.dashboard.test_screens import PAGES
from tests.support.browser import SCREENS
from tests.support.dashboard_rig import CARD_ERROR, seed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite

MAX_TABS = 80


def test_without_scripts_every_page_reads_and_cancel_works(site: UiSite, browser: Browser) -> None:
    jobs = seed(site)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for name, path in PAGES.items():
        answer = page.goto(f"{site.url}/ui{path.format(**jobs)}")
        assert answer is not None
        assert (answer.status, page.locator("h1").count(), len(page.inner_text("main")) > 40) == (200, 1, True), name
    page.goto(f"{site.url}/ui/jobs?queue=payments&status=PENDING")
    page.click("tbody a >> nth=0")
    page.click("text=Cancel…")
    page.click("main button:has-text('Cancel')")

    assert "The job is canceled." in page.inner_text("#note")
    canceled = JobId(UUID(page.inner_text("p.id")))
    assert status_of(site, canceled) is Status.CANCELED
    page.click("#note button")
    assert "requeued" in page.inner_text("#note")
    context.close()


def tab_to(screen: Screen, text: str) -> None:
    """Press Tab until an element with this text has the focus."""
    for _ in range(MAX_TABS):
        if (screen.page.evaluate("document.activeElement.textContent") or "").strip().startswith(text):
            return
        screen.page.keyboard.press("Tab")
    raise AssertionError(text)


def test_the_keyboard_alone_logs_in_and_replays_a_group(locked: UiSite, screen: Screen) -> None:
    [job_id] = locked.enqueue("charge.card", queue="payments", max_attempts=1)
    locked.settle(locked.claim("payments"), Outcome.fail("hopeless", failure=CARD_ERROR))
    locked.roll_up()
    keyboard = screen.page.keyboard
    screen.go("/dead")
    for _ in range(MAX_TABS):
        if screen.page.evaluate("document.activeElement.id") == "key":
            break
        keyboard.press("Tab")
    keyboard.type(locked.key("admin"))
    keyboard.press("Enter")
    screen.page.wait_for_selector("h1:has-text('Dead letters')")
    keyboard.press("j")
    keyboard.press("Enter")
    screen.page.wait_for_selector("h1:has-text('stripe.CardError')")
    tab_to(screen, "Replay…")
    keyboard.press("Enter")
    screen.page.wait_for_selector("dialog[open]")
    tab_to(screen, "Requeue")
    keyboard.press("Enter")

    screen.page.wait_for_selector("#note:has-text('starts in 5 s')")
    assert "Requeue 1 job" in screen.text("h1")
    [operation] = locked.driver.operations.recent(limit=1)
    assert screen.page.url.endswith(f"/operations/{operation.id}")
    assert status_of(locked, job_id) is Status.DEAD


def test_a_printed_job_is_one_sheet_of_paper(seeded: UiSite, screen: Screen) -> None:
    screen.go(f"/jobs/{seeded.jobs['dead']}")

    paper = screen.page.pdf(format="A4", margin={"top": "15mm", "right": "15mm", "bottom": "15mm", "left": "15mm"})

    SCREENS.mkdir(parents=True, exist_ok=True)
    (SCREENS / "job.pdf").write_bytes(paper)
    assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 1
    screen.page.emulate_media(media="print")
    text = screen.text()
    for part in ("Timeline", "Errors", "Facts", 'File "charge.py", line 88', "became a dead letter"):
        assert part in text
    for hidden in ("Requeue…", "By command line"):
        assert hidden not in text
