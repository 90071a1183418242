"""A night of an operator: a deploy breaks a type, and it is found, paused, fixed and replayed in the browser."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from taskharbor.core.states import Status
from tests.dashboard.test_jobs import status_of
from tests.support.browser import screenshot
from tests.support.cli_processes import started
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite

SHOP: Final = """
import taskharbor

harbor = taskharbor.Harbor({url!r}, version={version!r})

def fee(amount):
    return {fee}

@harbor.task(type="charge.card", queue="payments", max_attempts=1)
def charge_card(n: int) -> int:
    return n + fee(n)

@harbor.task(type="email.send", queue="mail")
def send_email(n: int) -> int:
    return n
"""
JOBS: Final = 12


class Night:
    """What the operator does in the browser: clicks are counted, and each step leaves a picture."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.clicks = self.steps = 0

    def click(self, selector: str) -> None:
        self.screen.page.click(selector)
        self.clicks += 1

    def sees(self, selector: str, step: str) -> None:
        self.screen.page.wait_for_selector(selector)
        self.steps += 1
        screenshot(self.screen.page, f"night-{self.steps:02}-{step}")


def test_a_broken_deploy_is_found_paused_fixed_and_replayed_in_the_browser(
    site: UiSite, screen: Screen, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, night = f"sqlite:///{tmp_path}/jobs.db", Night(screen)
    broken = SHOP.format(url=url, version="5a1b", fee='amount["fee"]')
    fixed = SHOP.format(url=url, version="5a1c", fee="1")
    with started(tmp_path, "worker", "shop.py", app=broken):
        mails = site.enqueue("email.send", 5, queue="mail")
        cards = site.enqueue("charge.card", JOBS, queue="payments", max_attempts=1)
        wait_until(lambda: {status_of(site, each) for each in cards} == {Status.DEAD})
        wait_until(lambda: bool(site.driver.inspector.dead_letter_groups(limit=1)))
        began = time.monotonic()
        screen.go("/")
        night.sees("[data-rule=deaths]:has-text('charge.card')", "overview")
        night.click("[data-rule=deaths] a")
        night.sees("h1:has-text('TypeError')", "group")
        assert "with version 5a1b" in screen.text()
        night.click("tbody a >> nth=0")
        night.sees("pre:has-text('return n + fee(n)')", "traceback")
        night.click("main dl a:has-text('payments')")
        night.sees("h1:has-text('payments')", "queue")
        night.click("text=Pause…")
        screen.page.fill("dialog #reason", "5a1b charges no card")
        night.click("dialog button:has-text('Pause')")
        night.sees(".note:has-text('is paused')", "paused")
    with started(tmp_path, "worker", "shop.py", app=fixed):
        screen.go("/queues/payments")
        night.click("text=Resume…")
        night.click("dialog button:has-text('Resume')")
        night.sees(".note:has-text('starts jobs again')", "resumed")
        screen.go("/dead")
        night.click("text=Replay…")
        assert screen.page.input_value("dialog #rate") == "10"
        screen.page.fill("dialog #reason", "fixed by 5a1c")
        night.sees(f"dialog h1:has-text('Requeue {JOBS} jobs?')", "preview")
        night.click("dialog button:has-text('Requeue')")
        night.sees(".note:has-text('starts in 5 s')", "operation")
        night.sees(f"main:has-text('{JOBS} live again: {JOBS} succeeded')", "replayed")
        night.click("nav a:has-text('Audit')")
        night.sees("td:has-text('queues.pause')", "audit")
        took = time.monotonic() - began

    audit = screen.text()
    assert all(each in audit for each in ("queues.pause", "queues.resume", "operations.create", "5a1b charges no card"))
    assert {status_of(site, each) for each in (*cards, *mails)} == {Status.SUCCEEDED}
    with capsys.disabled():
        sys.stdout.write(f"\nnight: {night.clicks} clicks, {night.steps} pictures, {took:.1f} s\n")
