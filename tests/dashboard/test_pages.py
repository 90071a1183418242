"""What the pages do: pause and resume, find, themes, times, shortcuts; with and without scripts."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import pytest

from tests.support.browser import axe_violations, layout_problems, screenshot
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.support.browser import Screen
    from tests.support.dashboard_rig import UiSite


ROW_HEIGHT: Final = "document.querySelector('tbody td').getBoundingClientRect().height"


def paused(site: UiSite, name: str = "mail") -> bool:
    return any(each.name == name and each.paused_at is not None for each in site.driver.inspector.queues())


def test_a_queue_is_paused_with_a_reason_and_undone(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues/mail")
    screen.page.click("text=Pause…")
    assert axe_violations(screen.page) == []
    screenshot(screen.page, "dialog-light-1280")
    screen.page.fill("dialog #reason", "the mail server is down")
    screen.page.select_option("dialog #lasts", "1800")
    screen.page.click("dialog button:has-text('Pause')")

    screen.page.wait_for_selector(".note:has-text('is paused')")
    screenshot(screen.page, "note-light-1280")
    assert "the mail server is down" in screen.text(".headline")
    [queue] = site.driver.inspector.queues()
    assert queue.paused_until is not None
    assert queue.paused_at is not None
    assert round((queue.paused_until - queue.paused_at).total_seconds()) == 1800
    [entry] = site.driver.inspector.audit(limit=1)
    assert (entry.action, entry.detail) == ("queues.pause", {"why": "the mail server is down", "for": "1800 s"})

    screen.page.click(".note button:has-text('Undo')")
    screen.page.wait_for_selector(".note:has-text('starts jobs again')")
    assert not paused(site)


def test_without_scripts_every_page_reads_and_pause_works(site: UiSite, browser: Browser) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    for path, heading in (("/", "Overview"), ("/queues", "Queues"), ("/find?q=mail", "Found for “mail”")):
        page.goto(f"{site.url}/ui{path}")
        assert page.inner_text("h1") == heading
    page.goto(f"{site.url}/ui/queues/mail")
    page.click("text=Pause…")
    page.fill("#reason", "by hand")
    page.click("main button:has-text('Pause')")

    assert "is paused" in page.inner_text("#note")
    assert paused(site)
    context.close()


def test_the_palette_finds_jobs_queues_and_commands(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue("email.send", queue="mail", idempotency_key="welcome-7")
    site.roll_up()
    screen.go("/queues")
    screen.page.keyboard.press("Control+k")
    for typed, wanted in (
        ("pause ma", "pause queue mail"),
        ("welcome-7", str(job_id)),
        (str(job_id)[:13], str(job_id)),
    ):
        screen.page.fill(".palette input", typed)
        screen.page.wait_for_selector(f".results a:has-text('{wanted}')")
    screenshot(screen.page, "palette-light-1280")
    screen.page.fill(".palette input", "over")
    screen.page.wait_for_selector(".results a:has-text('Overview')")
    screen.page.keyboard.press("Enter")

    screen.page.wait_for_selector("h1:has-text('Overview')")


def test_the_keyboard_alone_reaches_and_pauses_a_queue(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/")
    press = screen.page.keyboard.press
    press("g")
    press("q")
    screen.page.wait_for_selector("h1:has-text('Queues')")
    press("j")
    press("Enter")
    screen.page.wait_for_selector("h1:has-text('mail')")
    while screen.page.evaluate("document.activeElement.textContent") != "Pause…":
        press("Tab")
    press("Enter")
    screen.page.wait_for_selector("dialog[open]")
    while screen.page.evaluate("document.activeElement.textContent") != "Pause":
        press("Tab")
    press("Enter")

    screen.page.wait_for_selector(".note:has-text('is paused')")
    assert paused(site)


def test_shortcuts_that_are_switched_off_stay_off(site: UiSite, screen: Screen) -> None:
    screen.go("/")
    screen.page.keyboard.press("?")
    screen.page.click("dialog label")
    screen.page.click("dialog [data-close]")
    screen.go("/")
    screen.page.keyboard.press("g")
    screen.page.keyboard.press("q")
    screen.page.keyboard.press("/")

    assert screen.page.evaluate("document.activeElement.tagName") == "BODY"
    assert screen.page.url == f"{site.url}/ui/"


GROUNDS: Final = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 21, 27)"}
SEEN_GROUNDS: Final = """
window.__grounds = [];
const see = () => {
  if (document.body) window.__grounds.push(getComputedStyle(document.body).backgroundColor);
  if (window.__grounds.length < 30) requestAnimationFrame(see);
};
requestAnimationFrame(see);
"""
"""Notes the background of each frame that the browser shows, from the first one."""


@pytest.mark.parametrize("system", ["light", "dark"])
@pytest.mark.parametrize("theme", ["system", "light", "dark"])
def test_a_theme_is_shown_from_the_first_frame(
    site: UiSite, screen: Screen, theme: str, system: Literal["light", "dark"]
) -> None:
    screen.page.emulate_media(color_scheme=system)
    screen.go("/queues")
    screen.page.click("summary[aria-label='View and account']")
    assert theme != "system" or axe_violations(screen.page) == []
    screenshot(screen.page, f"menu-{system}-1280")
    with screen.page.expect_navigation():
        screen.page.click(f"button[value={theme}]")
    screen.context.add_init_script(SEEN_GROUNDS)
    screen.go("/queues")

    wanted = system if theme == "system" else theme
    wait_until(lambda: bool(screen.page.evaluate("window.__grounds.length >= 30")))
    assert set(screen.page.evaluate("window.__grounds")) == {GROUNDS[wanted]}
    cookies = "; ".join(f"{each['name']}={each['value']}" for each in screen.context.cookies())
    with site.http() as client:
        page = client.get("/ui/queues", headers={"Cookie": cookies}).text
    assert f'data-theme="{theme}"' in page
    # The browser colors what it paints before the style sheet by this.
    assert f'<meta name="color-scheme" content="{"light dark" if theme == "system" else theme}">' in page


def test_times_are_shown_in_the_form_that_was_chosen(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.driver.control.pause(["mail"], by="ana")
    site.roll_up()
    forms = {
        "ago": r"\d+ s ago|now",
        "utc": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
        "local": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d",
    }
    shown = {}
    for form, pattern in forms.items():
        screen.go("/queues")
        screen.page.click("summary[aria-label='View and account']")
        screen.page.click(f"button[value={form}]")
        screen.page.wait_for_selector(f"html[data-times={form}]")
        wait_until(lambda: bool(re.fullmatch(pattern, screen.text("main time"))))  # noqa: B023  used at once
        shown[form] = screen.text("main time")

    title = screen.page.get_attribute("main time", "title") or ""
    assert shown["utc"] in title
    assert shown["local"] in title
    assert shown["utc"] != shown["local"]


def test_the_id_of_a_job_and_a_command_are_copied(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue(queue="mail")
    screen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    screen.page.clock.install()
    screen.go(f"/jobs/{job_id}")
    screen.page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))  # no timer ends the word before it is read
    screen.page.click(".id .copy")
    screen.page.wait_for_selector(".id .copy:has-text('Copied')")
    copied = [screen.page.evaluate("navigator.clipboard.readText()")]
    screen.page.click(".equivalents summary")
    screen.page.click(".equivalents .copy >> nth=0")
    screen.page.wait_for_selector(".equivalents .copy:has-text('Copied')")
    copied.append(screen.page.evaluate("navigator.clipboard.readText()"))

    assert copied == [str(job_id), f"taskharbor jobs show {job_id}"]


def test_a_change_of_the_job_leaves_the_word_that_its_id_was_copied(site: UiSite, screen: Screen) -> None:
    [job_id] = site.enqueue(queue="mail")
    screen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    screen.page.clock.install()
    screen.go(f"/jobs/{job_id}")
    screen.page.clock.pause_at(datetime.now(UTC) + timedelta(hours=1))
    screen.page.click(".id .copy")
    screen.page.wait_for_selector(".id .copy:has-text('Copied')")
    site.claim("mail")
    screen.page.wait_for_selector(".headline :text('attempt 1')")
    shown = [screen.text(".id .copy")]
    screen.page.clock.run_for(2000)
    shown.append(screen.text(".id .copy"))

    assert shown == ["Copied", "Copy"]


def test_compact_rows_are_lower(site: UiSite, screen: Screen) -> None:
    site.enqueue(queue="mail")
    site.roll_up()
    screen.go("/queues")
    heights = [screen.page.evaluate(ROW_HEIGHT)]
    screen.page.click("summary[aria-label='View and account']")
    screen.page.click("button[value=compact]")
    screen.page.wait_for_selector("html[data-density=compact] tbody tr")
    heights.append(screen.page.evaluate(ROW_HEIGHT))

    assert [round(each) for each in heights] == [36, 28]


def test_read_only_mode_has_no_buttons_and_says_so(screen: Screen, reading: UiSite) -> None:
    reading.enqueue(queue="mail")
    reading.roll_up()
    screen.go("/queues/mail")

    assert screen.page.locator("text=Pause…").count() == 0
    assert "Read only" in screen.text(".strip")


def test_the_login_page_is_accessible_and_leads_back(locked: UiSite, screen: Screen) -> None:
    screen.page.set_viewport_size({"width": 375, "height": 800})
    screen.go("/queues/mail")
    assert screen.page.url.endswith("/ui/login?to=/ui/queues/mail")
    assert axe_violations(screen.page) + layout_problems(screen.page) == []
    screenshot(screen.page, "login-light-375")
    assert screen.page.get_attribute("#key", "autocomplete") == "current-password"

    screen.page.fill("#key", locked.key("jobs:read"))
    screen.page.keyboard.press("Enter")

    screen.page.wait_for_url("**/ui/queues/mail")


def test_a_missing_page_and_a_missing_scope_are_explained(locked: UiSite, screen: Screen) -> None:
    screen.log_in(locked.key("jobs:read"))
    screen.go("/nothing", expect=404)
    assert "Not found" in screen.text()

    screen.go("/queues/mail/pause", expect=403)
    assert "queues:control" in screen.text()
    screenshot(screen.page, "forbidden-light-1280")
    assert axe_violations(screen.page) + layout_problems(screen.page) == []
