"""Every death is reported by the process that caused it, and reaches the publisher if there is one."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.hooks import JobDead
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import PUBLISHER_AWAY
from taskharbor.core.outcome import MAX_RELEASES, DeadLetter
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.harbor import Harbor
from taskharbor.janitor import Janitor
from taskharbor.outbox import CLOSE_AFTER, OutboxRelay, relay_for, to_callable
from taskharbor.testing.clock import ManualClock
from taskharbor.worker import Worker
from tests.support.delivery_rig import DeliveryRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, SHORT, Outage, ended, enqueue, meddled, running_worker, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.model import DeadTaskEvent, Job, OutboxRow
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
HOUR: Final = timedelta(hours=1)
SOON: Final = timedelta(milliseconds=100)


class Clockwork:
    """A runtime and a store clock that a test advances, for a janitor."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.store = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        self.driver = MemoryDriver(clock=self.store)

    def monotonic(self) -> float:
        return self.seconds

    def janitor(self, driver: Driver | None = None, **options: Any) -> Janitor:
        """Return a janitor that has compared the clocks."""
        made = Janitor(cast("Runtime", self), driver or self.driver, lease=LEASE, **options)
        self.tick(made, 2, LEASE / 3)
        return made

    def tick(self, janitor: Janitor, times: int = 1, every: timedelta = timedelta(minutes=1)) -> None:
        for _ in range(times):
            self.seconds += every.total_seconds()
            self.store.advance(every)
            janitor.tick()

    def hold(self, **fields: Any) -> JobId:
        """Reserve a job for its last attempt, with a lease that expires after a minute."""
        job_id = enqueue(self.driver, "run", max_attempts=1, **fields)
        token, minute = new_token(), timedelta(minutes=1)
        self.driver.reserve("default", token=token, worker="gone", lease=minute, limit=1, overdue_after=HOUR)
        return job_id


def deaths(events: list[Any]) -> list[JobDead]:
    return [event for event in events if isinstance(event, JobDead)]


def errors(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [
        each.getMessage()
        for each in caplog.records
        if each.levelno == logging.ERROR and each.name == logger and "dead letter" in each.getMessage()
    ]


def fail(_job: Job) -> None:
    raise ValueError("the password is hunter2")


def give_up(_job: Job) -> None:
    raise DeadLetter("no such\naddress\x1b[2J")


@pytest.mark.parametrize(
    ("handler", "reason", "line"),
    [
        (fail, "attempts exhausted", "attempts exhausted: ValueError"),
        (give_up, "no such\naddress\x1b[2J", "taskharbor.DeadLetter"),
        (None, "no handler for type 'run' is registered here", "no handler for type 'run' is registered here"),
    ],
    ids=["retries exhausted", "dead letter", "no handler"],
)
def test_a_death_by_an_outcome_calls_hooks_once_and_logs_one_error(
    handler: Callable[[Job], None] | None,
    reason: str,
    line: str,
    driver: Driver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "taskharbor")
    events = list[Any]()

    handlers = {} if handler is None else {"run": handler}
    with running_worker(driver, handlers, hooks=[events.append], unknown_types="dead-letter"):
        job_id = enqueue(driver, "run", max_attempts=1)
        wait_until(lambda: deaths(events) != [])
        job = stored(driver, job_id)

    [dead] = deaths(events)
    assert (dead.job_id, dead.type, dead.queue, dead.life) == (job_id, "run", "default", 1)
    assert (dead.attempt_count, dead.reason, job.dead_reason) == (1, reason, reason)
    [logged] = errors(caplog, "taskharbor.worker")
    took = "" if handler is None else r" after [\d.]+ (ms|s)"
    head = rf"job {job_id} \(run\) attempt 1 of 1: failed{took}; now a dead letter: "
    assert re.fullmatch(head + re.escape(line), logged)


def test_without_hooks_and_without_info_lines_a_death_is_logged(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "taskharbor")

    with running_worker(driver, {"run": fail}):
        job_id = enqueue(driver, "run", max_attempts=1)
        wait_until(lambda: errors(caplog, "taskharbor.worker") != [])

    [logged] = errors(caplog, "taskharbor.worker")
    assert logged.startswith(f"job {job_id} (run) attempt 1 of 1: failed after ")


def test_a_death_whose_reply_was_lost_is_reported_once(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    outage, events = Outage("settle", commits=True), list[Any]()
    outage.begin()

    with running_worker(meddled(driver, outage), {"run": fail}, hooks=[events.append]):
        job_id = enqueue(driver, "run", max_attempts=1)
        wait_until(lambda: len(outage.refused) > 0)
        assert (stored(driver, job_id).status, deaths(events)) == (Status.DEAD, [])
        outage.end()
        wait_until(lambda: deaths(events) != [])

    assert len(deaths(events)) == len(errors(caplog, "taskharbor.worker")) == 1


def test_a_release_past_its_bound_that_kills_a_job_is_reported() -> None:
    events, has_begun, driver = list[Any](), threading.Event(), MemoryDriver()
    job_id = enqueue(driver, "run", max_attempts=1)
    rows = driver._tables.rows  # noqa: SLF001  instead of ten restarts
    rows.jobs[job_id] = replace(rows.jobs[job_id], releases=MAX_RELEASES)

    async def sleep(_job: Job) -> None:
        has_begun.set()
        await asyncio.sleep(LIMIT_SECONDS)

    with running_worker(driver, {"run": sleep}, hooks=[events.append]):
        assert has_begun.wait(LIMIT_SECONDS)

    assert stored(driver, job_id).status is Status.DEAD
    assert [(dead.job_id, dead.reason) for dead in deaths(events)] == [(job_id, "attempts exhausted")]


def test_a_death_by_an_ended_lease_is_reported_once_by_the_janitor_that_caused_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clockwork, events, woken = Clockwork(), list[Any](), list[str]()
    clockwork.driver.maintenance.claim_duty("relay", every=timedelta(days=1))  # this duty would wake the relay, too
    janitors = [clockwork.janitor(hooks=[events.append], relay=lambda: woken.append("relay")) for _ in range(2)]
    job_id = clockwork.hold()
    for _ in range(3):
        for janitor in janitors:
            clockwork.tick(janitor)

    assert stored(clockwork.driver, job_id).status is Status.DEAD
    [dead] = deaths(events)
    assert (dead.job_id, dead.type, dead.queue, dead.life) == (job_id, "run", "default", 1)
    assert (dead.attempt_count, dead.reason, dead.job) == (1, "attempts exhausted", None)
    assert errors(caplog, "taskharbor.janitor") == [
        f"job {job_id} (run) attempt 1: lease expired (worker gone); now a dead letter: attempts exhausted"
    ]
    assert woken == ["relay"]


def test_the_line_of_a_dead_workers_job_has_all_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    clockwork, trace_id = Clockwork(), "0af7651916cd43dd8448eb211c80319c"
    janitor = clockwork.janitor()
    job_id = clockwork.hold(metadata={"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"})
    clockwork.tick(janitor, 2)

    [record] = [each for each in caplog.records if "dead letter" in each.getMessage()]
    fields = ("job_id", "type", "queue", "attempt", "worker", "trace_id")
    assert [getattr(record, name) for name in fields] == [str(job_id), "run", "default", 1, "gone", trace_id]


def test_more_deaths_than_a_batch_are_all_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.janitor.STORE_BATCH", 2)
    clockwork, events = Clockwork(), list[Any]()
    janitor = clockwork.janitor(hooks=[events.append])
    job_ids = {clockwork.hold() for _ in range(5)}
    clockwork.tick(janitor, 2)

    assert sorted(dead.job_id for dead in deaths(events)) == sorted(job_ids)


def test_a_buried_job_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    clockwork, events = Clockwork(), list[Any]()
    janitor = clockwork.janitor(hooks=[events.append])
    job_id = enqueue(clockwork.driver, "run", max_attempts=3)
    rows = clockwork.driver._tables.rows  # noqa: SLF001  no driver call leads to this state
    rows.jobs[job_id] = replace(rows.jobs[job_id], attempt_count=3)
    clockwork.tick(janitor, 2)

    assert [(dead.job_id, dead.attempt_count) for dead in deaths(events)] == [(job_id, 3)]
    assert errors(caplog, "taskharbor.janitor") == [
        f"job {job_id} (run) attempt 3: waiting without attempts left; now a dead letter: attempts exhausted"
    ]


def test_a_worker_reports_deaths_that_its_janitor_causes(driver: Driver) -> None:
    events = list[Any]()
    job_id = enqueue(driver, "other", max_attempts=1, queue="others")
    driver.reserve("others", token=new_token(), worker="gone", lease=SOON, limit=1, overdue_after=HOUR)

    with running_worker(driver, {}, lease=SHORT, hooks=[events.append]):
        ended(driver, job_id)
        wait_until(lambda: deaths(events) != [])

    assert [(dead.job_id, dead.type, dead.queue) for dead in deaths(events)] == [(job_id, "other", "others")]


def test_a_worker_without_a_transport_gives_events_to_its_publisher(driver: Driver) -> None:
    events = list[Any]()

    with running_worker(driver, {"run": fail}, publisher=events.append):
        job_id = enqueue(driver, "run", max_attempts=1)
        wait_until(lambda: events != [])
        wait_until(lambda: event_of(driver, job_id).published_at is not None)

    [event] = events
    assert (event.job_id, event.type, event.error) == (job_id, "run", "ValueError: the password is hunter2")


def test_a_death_is_published_at_once_without_a_janitor() -> None:
    rig, events = DeliveryRig(), list[Any]()
    worker = Worker(rig.driver, runtime=rig.runtime("w"), publisher=events.append, janitor=False)
    worker.register("run", fail)
    worker.start()
    rig.run(5)  # the relay pauses now, for half a minute
    job_id = rig.enqueue(max_attempts=1)
    rig.run(5)

    assert [event.job_id for event in events] == [job_id]


def test_a_harbors_publisher_is_its_workers_publisher() -> None:
    events = list[Any]()
    with Harbor(MemoryDriver(), publisher=events.append) as harbor:

        @harbor.task(max_attempts=1)
        def explode() -> None:
            raise ValueError("boom")

        job_id = explode.enqueue().id
        with_worker = harbor.worker(poll=SOON)
        with_worker.start()
        wait_until(lambda: events != [])
        with_worker.stop(timedelta(0))

    assert [event.job_id for event in events] == [job_id]


def test_events_wait_for_a_publisher_that_is_away_and_repeat_under_one_id() -> None:
    clockwork, published = Clockwork(), list[str]()
    is_away = True

    def publish(event: DeadTaskEvent) -> None:
        published.append(event.event_id)
        if is_away:
            raise ConnectionError("connection refused")

    job_id = clockwork.hold()
    janitor = clockwork.janitor()
    clockwork.tick(janitor, 3)
    relay = relay_for(clockwork.driver, publisher=publish, transport=None, queue=None)
    assert relay is not None
    pauses = [relay.tick()]
    for _ in range(3):
        clockwork.store.advance(pauses[-1])
        pauses.append(relay.tick())
    failed = event_of(clockwork.driver, job_id)
    is_away = False
    clockwork.store.advance(pauses[-1])
    relay.tick()

    assert pauses == [timedelta(seconds=n) for n in (1, 2, 4, 8)]
    assert failed.last_error == "ConnectionError: connection refused"
    assert published == [f"{job_id}:1"] * 5
    assert event_of(clockwork.driver, job_id).published_at is not None


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
def test_one_event_that_a_publisher_refuses_holds_up_no_other(error: type[BaseException]) -> None:
    clockwork, published = Clockwork(), list[JobId]()
    refused, other = clockwork.hold(), clockwork.hold()
    clockwork.tick(clockwork.janitor(), 3)

    def publish(event: DeadTaskEvent) -> None:
        if event.job_id == refused:
            raise error("too long")
        published.append(event.job_id)

    OutboxRelay(clockwork.driver, to_callable(publish)).tick()

    assert published == [other]
    assert f"{error.__name__}: too long" in str(event_of(clockwork.driver, refused).last_error)


class AsyncPublisher:
    async def __call__(self, _event: DeadTaskEvent) -> None:
        """Never awaited."""


async def publish_async(_event: DeadTaskEvent) -> None:
    """Never awaited."""


@pytest.mark.parametrize(
    "publisher", [publish_async, AsyncPublisher(), "https://example.com"], ids=["async", "object", "text"]
)
def test_a_publisher_that_cannot_be_called_or_must_be_awaited_is_refused(publisher: Any) -> None:
    with pytest.raises(UsageError, match="must be a sync function of one DeadTaskEvent"):
        Worker(MemoryDriver(), publisher=publisher)


def test_an_event_whose_publisher_returns_an_awaitable_is_not_published() -> None:
    def publish(event: DeadTaskEvent) -> object:
        return publish_async(event)

    [answer] = to_callable(publish)([cast("DeadTaskEvent", None)])

    assert answer is not None
    assert "must be a sync function" in answer.reason


def test_where_no_publisher_is_known_events_are_closed_and_hold_nothing_back() -> None:
    clockwork = Clockwork()
    janitor = clockwork.janitor()
    job_id = clockwork.hold()
    clockwork.tick(janitor, 3)
    before = event_of(clockwork.driver, job_id)
    clockwork.tick(janitor, 2, CLOSE_AFTER)
    closed = event_of(clockwork.driver, job_id)

    assert (before.given_up_at, closed.last_error) == (None, "no publisher")
    assert closed.given_up_at is not None
    assert clockwork.driver.maintenance.purge(older_than=timedelta(0), limit=10) == 1


def test_a_process_without_a_publisher_closes_no_event_that_another_one_will_publish() -> None:
    clockwork = Clockwork()
    janitor = clockwork.janitor()  # without a publisher
    publisher = OutboxRelay(clockwork.driver, to_callable(lambda _event: None))
    publisher.tick()
    job_id = clockwork.hold()

    days = PUBLISHER_AWAY // timedelta(days=1) - 1
    clockwork.tick(janitor, days, timedelta(days=1))
    is_open = not event_of(clockwork.driver, job_id).is_done
    publisher.tick()

    assert is_open
    assert event_of(clockwork.driver, job_id).published_at is not None


def test_a_publisher_that_never_comes_back_holds_nothing_back_after_a_week() -> None:
    clockwork = Clockwork()
    janitor = clockwork.janitor()
    OutboxRelay(clockwork.driver, to_callable(lambda _event: None)).tick()
    job_id = clockwork.hold()
    clockwork.tick(janitor, 9, timedelta(days=1))

    assert event_of(clockwork.driver, job_id).last_error == "no publisher"


def test_a_job_that_died_once_is_pruned_by_the_janitor() -> None:
    clockwork = Clockwork()
    janitor = clockwork.janitor()
    job_id = clockwork.hold(idempotency_key="once")
    clockwork.tick(janitor, 3)
    driver = clockwork.driver
    driver.requeue([job_id], token=new_token(), budget=1, by="ann", reason="fixed")
    driver.cancel([job_id])
    clockwork.tick(janitor, 9, timedelta(days=1))

    assert driver.inspector.get([job_id]) == {}
    assert driver.inspector.find_by_key("once") == []


def event_of(driver: Driver, job_id: JobId) -> OutboxRow:
    [row] = driver.inspector.outbox([job_id])
    return row
