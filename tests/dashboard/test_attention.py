"""Each rule of *Needs attention* is tripped by something that is really broken, and is gone when that is fixed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor import Harbor, MemoryDriver
from taskharbor.core.model import Schedule
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.core.statistics import MINUTE, Metric, StatisticTally, begin_of
from taskharbor.dashboard.attention import RULES, calm_sentence, find_attention, read_facts
from taskharbor.testing.clock import ManualClock
from tests.support.browser import axe_violations, layout_problems, screenshot
from tests.support.dashboard_rig import CARD_ERROR, SMTP_ERROR, UiSite, serve_site

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.browser import Screen


class BrokenStore(UiSite):
    """A store with a clock that tests move, without a server."""

    def __init__(self, harbor: Harbor, clock: ManualClock) -> None:
        self.harbor, self.clock = harbor, clock

    def tripped(self) -> dict[str, str]:
        """Return the rules that are tripped, and the text of each."""
        self.roll_up()
        found = find_attention(read_facts(self.driver.inspector))
        return {each.rule.id: f"{each.subject} {each.text}" for each in found}

    def tally(self, outcome: str, count: int) -> None:
        minute = begin_of(self.clock.now(), MINUTE)
        tally = StatisticTally(minute, Metric.ATTEMPTS, "default", "email.send", outcome, count)
        self.driver.maintenance.record_statistics([tally])


@pytest.fixture
def store() -> Iterator[BrokenStore]:
    clock = ManualClock()
    with Harbor(MemoryDriver(clock=clock)) as harbor:
        made = BrokenStore(harbor, clock)
        made.worker("web-1", queues=("default",))
        yield made


def test_a_healthy_store_needs_nothing(store: BrokenStore) -> None:
    store.enqueue(count=3)
    store.settle(store.claim(count=2), Outcome.ack())

    assert store.tripped() == {}
    assert calm_sentence(read_facts(store.driver.inspector)) == "Nothing needs you. 1 queue, 1 worker, oldest wait 0 s."


def test_a_backlog_without_a_live_worker_needs_attention(store: BrokenStore) -> None:
    store.enqueue(count=19, queue="payments")
    store.clock.advance(20)

    assert store.tripped() == {
        "no-worker": "payments 19 jobs wait, and no live worker serves it; oldest wait 20 s",
    }

    store.worker("web-2", queues=("payments",))
    assert store.tripped() == {}


def test_a_job_that_waits_for_over_a_minute_needs_attention(store: BrokenStore) -> None:
    store.enqueue()
    store.clock.advance(61)
    store.worker("web-1", queues=("default",))

    assert "long-wait" in store.tripped()

    store.claim()
    assert store.tripped() == {}


def test_a_type_that_no_worker_handles_needs_attention(store: BrokenStore) -> None:
    store.enqueue("report.build")

    assert store.tripped() == {
        "unhandled-type": "report.build no live worker of queue default handles this type; its jobs wait"
    }

    store.worker("web-1", queues=("default",), types=("email.send", "report.build"))
    assert store.tripped() == {}


def test_ten_deaths_of_a_known_error_need_attention(store: BrokenStore) -> None:
    store.enqueue(count=1)
    store.settle(store.claim(), Outcome.fail("hopeless", failure=CARD_ERROR))
    store.clock.advance(3600)
    store.worker("web-1", queues=("default",))
    assert store.tripped() == {}

    dead = store.enqueue(count=10)
    store.settle(store.claim(count=10), Outcome.fail("hopeless", failure=CARD_ERROR))
    assert "stripe.CardError: card_declined" in store.tripped()["deaths"]

    store.clock.advance(700)
    store.worker("web-1", queues=("default",))
    assert store.tripped() == {}
    assert len(dead) == 10


def test_a_new_error_needs_attention_and_names_its_version(store: BrokenStore) -> None:
    store.driver.maintenance.record_statistics([], version="4f2c")
    store.clock.advance(1)
    store.enqueue()
    store.settle(store.claim(), Outcome.fail("hopeless", failure=SMTP_ERROR))

    assert store.tripped()["deaths"].endswith(
        "a new error: 1 died in 10 min: SMTPError: 421 try later (first seen with 4f2c)"
    )


def test_a_silent_worker_with_jobs_needs_attention_until_it_is_gone(store: BrokenStore) -> None:
    store.enqueue(count=2)
    store.claim(count=2, worker="web-1")
    store.clock.advance(42)
    store.worker("web-2", queues=("default",))

    assert store.tripped()["silent-worker"] == "web-1 silent for 42 s; it holds 2 jobs"

    store.clock.advance(30)
    store.worker("web-2", queues=("default",))
    store.driver.maintenance.expire(limit=10)
    store.claim(count=1, worker="web-2")
    assert "2 jobs of it are back, 1 started again" in store.tripped()["silent-worker"]

    store.clock.advance(300)
    assert "silent-worker" not in store.tripped()


def test_a_worker_that_lost_slots_needs_attention(store: BrokenStore) -> None:
    store.worker("web-1", queues=("default",), lost_slots=3)
    assert store.tripped() == {"lost-slots": "web-1 3 of 16 slots lost to handlers that do not return"}

    store.worker("web-1", queues=("default",))
    assert store.tripped() == {}


def test_a_schedule_that_does_not_fire_needs_attention(store: BrokenStore) -> None:
    due = store.clock.now() + timedelta(seconds=1)
    nightly = Schedule(
        name="nightly", cron="* * * * *", timezone="UTC", type="email.send", queue="default", payload=b"{}", next_at=due
    )
    store.driver.control.put_schedules([nightly])
    store.clock.advance(90)
    store.worker("web-1", queues=("default",))

    assert store.tripped() == {"late-schedule": "nightly late by 1 min: no process fires it"}

    store.driver.maintenance.advance_schedule("nightly", fired=due, next_at=store.clock.now() + timedelta(minutes=1))
    assert store.tripped() == {}


def test_events_that_no_process_publishes_need_attention(store: BrokenStore) -> None:
    store.driver.maintenance.claim_outbox(limit=1, lock=timedelta(seconds=1))
    store.enqueue()
    store.settle(store.claim(), Outcome.fail("hopeless", failure=CARD_ERROR))
    store.clock.advance(700)
    store.worker("web-1", queues=("default",))

    assert list(store.tripped()) == ["outbox"]

    store.driver.maintenance.claim_outbox(limit=1, lock=timedelta(seconds=1))
    assert store.tripped() == {}


def test_a_queue_where_half_of_the_attempts_fail_needs_attention(store: BrokenStore) -> None:
    store.enqueue()
    store.tally("SUCCEEDED", 6)
    store.tally("FAILED", 5)
    assert store.tripped() == {}

    store.tally("TIMED_OUT", 1)
    assert store.tripped() == {"failing": "default 6 of 12 attempts failed in 10 min"}

    store.tally("SUCCEEDED", 20)
    assert store.tripped() == {}


def test_a_queue_paused_for_over_an_hour_needs_attention(store: BrokenStore) -> None:
    store.enqueue()
    store.driver.control.pause(["default"], by="ana", reason="the mail server is down")
    store.clock.advance(3590)
    assert store.tripped() == {}

    store.clock.advance(20)
    assert store.tripped()["long-pause"] == "default paused by ana for 1 h (the mail server is down); 1 job waits"

    store.driver.control.resume(["default"])
    assert "long-pause" not in store.tripped()


def test_a_backlog_that_no_janitor_has_counted_needs_attention(store: BrokenStore) -> None:
    store.enqueue(queue="payments")
    store.clock.advance(20)
    facts = read_facts(store.driver.inspector)
    uncounted = [replace(each, counts=dict.fromkeys(Status, 0)) for each in facts.queues]

    [found] = find_attention(replace(facts, queues=uncounted))

    assert found.text == "jobs wait, and no live worker serves it; oldest wait 20 s"


def test_every_rule_has_an_id_and_a_way_out() -> None:
    assert len({each.id for each in RULES}) == len(RULES) == 10
    assert all(each.remedy for each in RULES)


def test_the_overview_shows_a_problem_and_its_end(site: UiSite, screen: Screen) -> None:
    site.enqueue(count=19, queue="payments")
    site.roll_up()
    screen.go("/")
    row = screen.page.locator("[data-rule=no-worker]")
    assert "19 jobs wait, and no live worker serves it" in row.inner_text()

    site.worker("web-1", queues=("payments",))

    screen.page.wait_for_selector("text=Nothing needs you. 1 queue, 1 worker")
    assert row.count() == 0


def test_the_first_page_of_an_empty_store_says_what_to_do(site: UiSite, screen: Screen) -> None:
    screen.go("/")
    assert "What to do next" in screen.text()
    assert axe_violations(screen.page) + layout_problems(screen.page) == []
    screenshot(screen.page, "first-light-1280")

    site.enqueue("greet")
    site.roll_up()

    screen.page.wait_for_selector("main tr[data-key=default]")
    assert "What to do next" not in screen.text()


def test_the_first_page_names_the_tasks_of_the_app() -> None:
    harbor = Harbor("memory://")

    @harbor.task
    def greet(name: str, times: int = 1) -> str:
        return name * times

    with serve_site(harbor=harbor) as served, served.http() as client:
        page = client.get("/ui/").text

    assert "taskharbor enqueue greet name=VALUE<" in page
