"""Durations of the public API: each option takes a timedelta or a number of seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import (
    Client,
    DueTaskEnqueuer,
    Harbor,
    JobRequest,
    MemoryDriver,
    PostgresDriver,
    SqliteDriver,
    SqsTransport,
    Worker,
)
from taskharbor.core.durations import as_timedelta
from taskharbor.core.errors import UsageError
from taskharbor.core.ids import new_job_id
from taskharbor.janitor import Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.schedules import ScheduleSpec
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.simulation.queue_service import QueueService

if TYPE_CHECKING:
    from collections.abc import Callable

RULE: Final = "must be a timedelta or a number of seconds"
MINUTE: Final = timedelta(minutes=1)


def _worker(**options: Any) -> Worker:
    return Worker(MemoryDriver(), transport=QueueService(lambda: 0.0), **{"lease": 600} | options)


def _enqueuer(**options: Any) -> DueTaskEnqueuer:
    runtime = ThreadRuntime(sync_threads=1)
    return DueTaskEnqueuer(runtime, MemoryDriver(), QueueService(lambda: 0.0), queues=["mail"], **options)


def _janitor(**options: Any) -> Janitor:
    return Janitor(ThreadRuntime(sync_threads=1), MemoryDriver(), **{"lease": 30} | options)


def _spec(**options: Any) -> ScheduleSpec:
    return ScheduleSpec(name="nightly", cron="0 2 * * *", type="clean", **options)


def _enqueue(**options: Any) -> object:
    return Client(MemoryDriver()).enqueue(JobRequest(type="greet", **options))


def _sqlite(**options: Any) -> object:
    return SqliteDriver(":memory:", **options)


def _postgres(**options: Any) -> object:
    return PostgresDriver("postgresql://nowhere.invalid/", **options)


def _result(**options: Any) -> object:
    return Harbor("memory://").handle(new_job_id()).result(**options)


TAKERS: Final[list[tuple[Callable[..., object], str]]] = [
    *((_worker, name) for name in ("lease", "heartbeat", "grace", "poll", "overdue_after")),
    *((_worker, name) for name in ("visibility", "receive_wait")),
    (lambda **options: _worker().drain(**options), "timeout"),
    (lambda **options: _worker().stop(**options), "grace"),
    *((_enqueuer, name) for name in ("max_idle", "lock", "resend_after", "max_resend")),
    *((_janitor, name) for name in ("lease", "period", "keep")),
    *((_spec, name) for name in ("jitter", "window", "timeout")),
    *((_enqueue, name) for name in ("delay", "timeout")),
    (_sqlite, "deadline"),
    (_postgres, "deadline"),
    (SqsTransport, "answer_within"),
    (_result, "timeout"),
]


@pytest.mark.parametrize("wrong", ["30", True, float("nan"), -1], ids=repr)
@pytest.mark.parametrize(("take", "option"), TAKERS)
def test_a_duration_that_is_text_a_bool_nan_or_negative_is_refused(
    take: Callable[..., object], option: str, wrong: object
) -> None:
    rule = RULE if wrong != -1 else "must"

    with pytest.raises(UsageError, match=rf"{option} is {wrong!r}.*: {rule}"):
        take(**{option: wrong})


def test_a_job_runs_with_an_enqueuer_a_worker_and_a_janitor_that_take_seconds() -> None:
    driver, transport, leases = MemoryDriver(clock=ManualClock()), QueueService(lambda: 0.0), list[timedelta]()
    runtime = ThreadRuntime(sync_threads=1)
    enqueuer = DueTaskEnqueuer(
        runtime, driver, transport, queues=["default"], max_idle=2, lock=3, resend_after=4, max_resend=60.5
    )
    worker = Worker(driver, lease=45, heartbeat=6.5, grace=5, poll=0.5, overdue_after=0)
    worker.register("greet", lambda _job, ctx: leases.append(ctx.claim.lease.expires_at - driver.inspector.now()))

    pause = enqueuer.tick()
    _worker(visibility=300, receive_wait=0.5)
    Client(driver).enqueue(JobRequest(type="greet"))
    worker.drain(timeout=60)
    Janitor(runtime, driver, lease=30, period=1.5, keep=60).tick()

    assert pause <= timedelta(seconds=2)
    assert leases == [timedelta(seconds=45)]


def test_a_request_with_seconds_is_stored_as_one_with_timedeltas() -> None:
    driver = MemoryDriver(clock=ManualClock())
    client = Client(driver)

    seconds = JobRequest(type="greet", delay=60, timeout=1.5)
    spans = JobRequest(type="greet", delay=MINUTE, timeout=timedelta(seconds=1.5))
    ids = [client.enqueue(request).id for request in (seconds, spans)]

    one, other = (driver.inspector.get(ids)[each] for each in ids)
    assert (one.scheduled_for, one.timeout) == (other.scheduled_for, other.timeout)
    assert (one.scheduled_for - driver.inspector.now(), one.timeout) == (MINUTE, timedelta(seconds=1.5))


def test_a_schedule_with_seconds_equals_one_with_timedeltas() -> None:
    seconds = _spec(jitter=60, window=3600, timeout=5)

    assert seconds.options() == _spec(jitter=MINUTE, window=60 * MINUTE, timeout=timedelta(seconds=5)).options()


def test_a_clock_and_a_harness_advance_by_seconds() -> None:
    clock = ManualClock()
    before = clock.now()

    clock.advance(90)
    clock.advance(-30)
    with Harbor().testing() as harness:
        start = harness.clock.now()
        harness.advance(60)

    assert clock.now() - before == harness.clock.now() - start == MINUTE


@pytest.mark.parametrize(("value", "words"), [(1e300, RULE), (None, RULE), (-MINUTE, "must not be negative")])
def test_a_refusal_names_the_option_and_its_value(value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"pause is .*: {words}"):
        as_timedelta(value, "pause")
