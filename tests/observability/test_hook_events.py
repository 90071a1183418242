"""Everything that moves is reported to hooks, by the process that moves it."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from taskharbor import MemoryDriver, Snooze
from taskharbor.core import hooks
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import Cancel, DeadLetter
from taskharbor.core.results import RefusalReason
from taskharbor.core.states import FINAL, Status
from taskharbor.delivery.transport import ItemFailure
from taskharbor.janitor import Janitor
from taskharbor.observability.failure_log import STORE
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.outbox import OutboxRelay
from taskharbor.schedules import Scheduler, ScheduleSpec
from taskharbor.testing.clock import ManualClock
from tests.support.delivery_rig import FIRST, LEASE, DeliveryRig
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, SHORT, Outage, enqueue, meddled, running_worker, stored

if TYPE_CHECKING:
    from taskharbor.core.hooks import HookEvent
    from taskharbor.core.model import DeadTaskEvent, Job
    from taskharbor.runtime import Runtime

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"
MINUTE: Final = timedelta(minutes=1)
E = TypeVar("E")


class Events(list["HookEvent"]):
    """The events that a hook has received."""

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self if isinstance(event, kind)]

    def counts(self) -> dict[str, int]:
        """Return the jobs or messages of each kind of event."""
        counts: Counter[str] = Counter()
        for event in self:
            items = getattr(event, "jobs", None) or getattr(event, "claims", None)
            counts[type(event).__name__] += len(items) if items else getattr(event, "count", 1)
        return dict(counts)


def _nothing(_job: Job) -> None: ...


def test_the_page_of_hooks_lists_exactly_the_events() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+? \| .+? \|$", PAGE.read_text(), re.MULTILINE)

    kinds: tuple[Any, ...] = hooks.HookEvent.__args__
    assert dict(rows) == {kind.__name__: ", ".join(f"`{field.name}`" for field in fields(kind)) for kind in kinds}


def test_a_job_by_messages_is_reported_from_dispatch_to_delete() -> None:
    rig, sent, worked = DeliveryRig(), Events(), Events()
    for _ in range(3):
        rig.enqueue()
    rig.enqueuer(hooks=[sent.append]).tick()
    rig.worker({"run": _nothing}, hooks=[worked.append])

    rig.run()

    assert sent == [hooks.JobsDispatched(queue="default", count=3)]
    assert worked.counts() == dict.fromkeys(
        ("MessagesReceived", "JobsClaimed", "JobsStarted", "JobsSucceeded", "MessagesDeleted"), 3
    )


def test_an_unclaimed_job_is_reported_as_resent() -> None:
    rig, sent = DeliveryRig(), Events()
    rig.enqueue()
    enqueuer = rig.enqueuer(hooks=[sent.append])
    enqueuer.tick()
    rig.run(FIRST.total_seconds() + 1)
    rig.enqueue()

    enqueuer.tick()

    assert sent == [
        hooks.JobsDispatched(queue="default", count=1),
        hooks.JobsResent(queue="default", count=1),
        hooks.JobsDispatched(queue="default", count=1),
    ]


def test_a_refused_claim_is_reported_with_its_reason() -> None:
    rig, events = DeliveryRig(), Events()
    job_id = rig.enqueue()
    rig.enqueuer().tick()
    rig.send_message(job_id)
    rig.worker({"run": _nothing}, hooks=[events.append])

    rig.run()

    [refused] = events.of(hooks.ClaimRefused)
    assert (refused.queue, refused.job_id) == ("default", job_id)
    assert refused.reason in {RefusalReason.LEASED, RefusalReason.FINAL}


def test_a_declined_message_is_reported() -> None:
    rig, events = DeliveryRig(), Events()
    rig.enqueue()
    rig.enqueuer().tick()
    rig.driver.control.pause(["default"], by="ops")
    rig.worker({"run": _nothing}, hooks=[events.append])

    rig.run(1.0)

    assert events.of(hooks.MessagesDeclined) == [hooks.MessagesDeclined(queue="default", count=1)]
    assert [each.reason for each in events.of(hooks.ClaimRefused)] == [RefusalReason.PAUSED]


def test_a_reclaimed_lease_is_reported() -> None:
    driver, events = MemoryDriver(), Events()
    job_id = enqueue(driver, "run")
    lease = timedelta(milliseconds=1)
    driver.reserve("default", token=new_token(), worker="gone", lease=lease, limit=1, overdue_after=MINUTE)

    with running_worker(driver, {"run": _nothing}, lease=SHORT, janitor=False, hooks=[events.append]):
        wait_until(lambda: stored(driver, job_id).status in FINAL)

    assert [each.job_ids for each in events.of(hooks.LeasesExpired)] == [[job_id]]
    [claimed] = events.of(hooks.JobsClaimed)
    assert [claim.is_reclaim for claim in claimed.claims] == [True]


class Clockwork:
    """A runtime and a store clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.store = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
        self.driver = MemoryDriver(clock=self.store)

    def monotonic(self) -> float:
        return self.seconds

    def tick(
        self, janitor: Janitor, every: timedelta = timedelta(seconds=10), *, jump: timedelta = timedelta(0)
    ) -> None:
        self.seconds += every.total_seconds()
        self.store.advance(every + jump)
        janitor.tick()


def janitor_of(clockwork: Clockwork, events: Events) -> Janitor:
    """Return a janitor that has compared the clocks."""
    janitor = Janitor(cast("Runtime", clockwork), clockwork.driver, lease=timedelta(seconds=30), hooks=[events.append])
    for _ in range(2):
        clockwork.tick(janitor)
    return janitor


def test_expired_leases_are_reported_by_the_janitor() -> None:
    clockwork, events = Clockwork(), Events()
    janitor = janitor_of(clockwork, events)
    job_ids = [enqueue(clockwork.driver, "run") for _ in range(2)]
    clockwork.driver.reserve("default", token=new_token(), worker="gone", lease=MINUTE, limit=2, overdue_after=MINUTE)

    for _ in range(8):
        clockwork.tick(janitor)

    assert [sorted(each.job_ids) for each in events.of(hooks.LeasesExpired)] == [sorted(job_ids)]


def test_a_clock_jump_is_reported() -> None:
    clockwork, events = Clockwork(), Events()
    janitor = janitor_of(clockwork, events)

    clockwork.tick(janitor, jump=timedelta(hours=1))

    assert events == [hooks.ClockJumped(jump=timedelta(hours=1))]


def test_published_events_are_reported() -> None:
    rig, events = DeliveryRig(), Events()
    answers = [None, ItemFailure("Away", "away", is_permanent=False), ItemFailure("Bad", "bad", is_permanent=True)]

    def publish(dead: list[DeadTaskEvent]) -> list[ItemFailure | None]:
        return answers[: len(dead)]

    def fail(_job: Job) -> None:
        raise DeadLetter("no")

    for _ in answers:
        rig.enqueue()
    rig.enqueuer().tick()
    rig.worker({"run": fail}, dead_letter_queue=None)
    rig.run()
    caller = hook_caller(events)

    OutboxRelay(rig.driver, cast("Any", publish), call_hooks=caller).tick()

    assert events == [hooks.EventsPublished(count=1, failed=1, given_up=1)]


def hook_caller(events: Events) -> HookCaller:
    return HookCaller([events.append], logging.getLogger("taskharbor"))


def test_a_fired_schedule_is_reported_as_enqueued() -> None:
    clock, events = ManualClock(datetime(2030, 1, 1, 0, 30, tzinfo=UTC)), Events()
    driver = MemoryDriver(clock=clock)
    scheduler = Scheduler(driver, hooks=[events.append])
    scheduler.put([ScheduleSpec(name="hourly", cron="0 * * * *", type="report", queue="mail")])

    clock.advance(timedelta(minutes=31))
    scheduler.tick()
    run = scheduler.run_now("hourly")

    fired, by_hand = events.of(hooks.JobsEnqueued)
    assert [(job.type, job.queue) for job in fired.jobs] == [("report", "mail")]
    assert [result.existed for result in fired.results] == [False]
    assert [job.id for job in by_hand.jobs] == [run.id]


def test_an_outage_is_reported_when_it_begins_and_ends() -> None:
    driver, outage, events = MemoryDriver(), Outage(), Events()
    with running_worker(meddled(driver, outage), {"run": _nothing}, hooks=[events.append]):
        outage.begin()
        wait_until(lambda: events.of(hooks.OutageBegan) != [])
        outage.end()
        wait_until(lambda: events.of(hooks.OutageEnded) != [])

    [began] = events.of(hooks.OutageBegan)
    [ended] = events.of(hooks.OutageEnded)
    assert (began.service, ended.service) == (STORE, STORE)
    assert "unavailable" in str(began.exception)
    assert ended.duration > timedelta(0)


def test_a_lost_slot_is_reported() -> None:
    driver, events, may_end = MemoryDriver(), Events(), threading.Event()

    def hang(_job: Job) -> None:
        assert may_end.wait(LIMIT_SECONDS)

    with running_worker(driver, {"run": hang}, lease=SHORT, concurrency=4, hooks=[events.append]):
        job_id = enqueue(driver, "run", timeout=timedelta(milliseconds=50), max_attempts=1)
        wait_until(lambda: events.of(hooks.SlotLost) != [])
        may_end.set()

    [lost] = events.of(hooks.SlotLost)
    assert (lost.job.id, lost.lost, lost.total) == (job_id, 1, 4)


def test_every_attempt_ends_with_exactly_one_event() -> None:
    driver, events = MemoryDriver(), Events()

    async def run(job: Job) -> None:
        error = {"fail": ValueError("no"), "snooze": Snooze(3600), "cancel": Cancel("no"), "die": DeadLetter("no")}
        if job.data == "timeout":
            await asyncio.sleep(LIMIT_SECONDS)
        if job.data in error:
            raise error[job.data]

    kinds = ("succeed", "fail", "snooze", "cancel", "die", "timeout")
    for kind in kinds:
        enqueue(driver, "run", kind, timeout=timedelta(seconds=0.1) if kind == "timeout" else None)
    ends = (hooks.JobsSucceeded, hooks.AttemptFailed, hooks.AttemptReturned, hooks.AttemptLost, hooks.JobCanceled)
    with running_worker(driver, {"run": run}, hooks=[events.append]):
        wait_until(lambda: len([each for each in events if isinstance(each, ends)]) == len(kinds))

    [succeeded] = events.of(hooks.JobsSucceeded)
    [returned] = events.of(hooks.AttemptReturned)
    [canceled] = events.of(hooks.JobCanceled)
    failed = {event.job.data: event for event in events.of(hooks.AttemptFailed)}
    assert [job.data for job in succeeded.jobs] == ["succeed"]
    assert (returned.job.data, returned.outcome) == ("snooze", AttemptOutcome.SNOOZED)
    assert (canceled.type, canceled.queue, canceled.job is not None) == ("run", "default", True)
    assert {kind: (event.status, event.failure.is_timeout) for kind, event in failed.items()} == {
        "fail": (Status.FAILED, False),
        "die": (Status.DEAD, False),
        "timeout": (Status.FAILED, True),
    }
    assert [event.job and event.job.data for event in events.of(hooks.JobDead)] == ["die"]
    times = [returned.run_seconds, canceled.run_seconds, *(event.run_seconds for event in failed.values())]
    assert None not in times


def test_a_worker_with_redact_passes_no_exception() -> None:
    driver, events = MemoryDriver(), Events()

    def fail(_job: Job) -> None:
        raise ValueError("the password is hunter2")

    with running_worker(driver, {"run": fail}, hooks=[events.append], redact=lambda _text: "redacted"):
        enqueue(driver, "run", max_attempts=1)
        wait_until(lambda: events.of(hooks.JobDead) != [])

    [failed], [dead] = events.of(hooks.AttemptFailed), events.of(hooks.JobDead)
    assert (failed.exception, dead.exception, failed.failure.message) == (None, None, "redacted")


def test_a_hook_that_raises_system_exit_stops_no_worker() -> None:
    rig, events = DeliveryRig(), Events()

    def leave(_event: HookEvent) -> None:
        raise SystemExit

    for _ in range(2):
        rig.enqueue()
        rig.enqueuer(hooks=[leave, events.append]).tick()
    worker = rig.worker({"run": _nothing}, hooks=[leave, events.append])
    rig.run(2 * LEASE.total_seconds())

    assert not worker.is_over
    assert events.counts()["JobsSucceeded"] == events.counts()["JobsDispatched"] == 2


def test_events_that_all_hooks_ignore_are_not_made() -> None:
    events = Events()

    class Ignoring:
        ignored_events: Final = frozenset({hooks.JobsStarted})

        def __call__(self, event: HookEvent) -> None:
            events.append(event)

    caller = HookCaller([Ignoring()], logging.getLogger(__name__))
    assert not caller.wants(hooks.JobsStarted)
    assert caller.wants(hooks.JobsClaimed)
    assert HookCaller([Ignoring(), events.append], logging.getLogger(__name__)).wants(hooks.JobsStarted)

    rig = DeliveryRig()
    rig.enqueue()
    rig.enqueuer().tick()
    rig.worker({"run": _nothing}, hooks=[Ignoring()])
    rig.run(LEASE.total_seconds())
    assert events.of(hooks.JobsSucceeded)
    assert events.of(hooks.JobsStarted) == []
