"""Outcomes are reported after their commit, never before."""

from __future__ import annotations

import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from taskharbor.core.errors import OutcomeNotStorable
from taskharbor.core.hooks import AttemptFailed, JobDead, JobsClaimed, JobsStarted, JobsSucceeded
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, SHORT, Hold, Outage, ended, enqueue, meddled, running_worker, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.model import Job
    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import Driver, SettleAnswer


def _nothing(_job: Job) -> None: ...


def kinds(events: list[Any]) -> list[type]:
    """Return the events of jobs, without those of messages and outages."""
    return [type(event) for event in events if isinstance(event, JobsClaimed | JobsStarted | JobsSucceeded)]


def test_a_success_is_reported_only_after_its_commit(driver: Driver) -> None:
    hold, events = Hold("settle"), list[Any]()
    hold.is_on.set()

    with running_worker(meddled(driver, hold), {"run": _nothing}, hooks=[events.append]):
        job_id = enqueue(driver, "run")
        assert hold.came.wait(LIMIT_SECONDS)
        before = kinds(events)
        hold.may_go.set()
        wait_until(lambda: JobsSucceeded in kinds(events))

    assert before == [JobsClaimed, JobsStarted]
    [succeeded] = [event for event in events if isinstance(event, JobsSucceeded)]
    assert [job.id for job in succeeded.jobs] == [job_id]


def test_an_outcome_whose_reply_was_lost_is_recorded_and_reported_once(driver: Driver) -> None:
    outage, events = Outage("settle", commits=True), list[Any]()
    outage.begin()

    with running_worker(meddled(driver, outage), {"run": _nothing}, hooks=[events.append]):
        job_id = enqueue(driver, "run")
        wait_until(lambda: len(outage.refused) > 0)
        assert stored(driver, job_id).status is Status.SUCCEEDED
        assert kinds(events) == [JobsClaimed, JobsStarted]
        outage.end()
        wait_until(lambda: len(kinds(events)) == 3)

    assert kinds(events) == [JobsClaimed, JobsStarted, JobsSucceeded]


def test_failures_and_deaths_are_reported_with_their_reason(driver: Driver) -> None:
    events = list[Any]()

    with running_worker(driver, {"fail": lambda _job: 1 / 0}, hooks=[events.append]):
        enqueue(driver, "fail")
        enqueue(driver, "fail", max_attempts=1)
        wait_until(lambda: len([event for event in events if isinstance(event, AttemptFailed | JobDead)]) == 3)

    retried, given_up = sorted(
        (event for event in events if isinstance(event, AttemptFailed)), key=lambda event: event.retry_at is None
    )
    [dead] = [event for event in events if isinstance(event, JobDead)]
    waiting = Status.ENQUEUED if stored(driver, retried.job.id).sends else Status.FAILED
    assert (retried.failure.type, retried.status) == ("ZeroDivisionError", waiting)
    assert retried.retry_at is not None
    assert retried.retry_at > retried.ended_at
    assert (given_up.job.id, given_up.status) == (dead.job_id, Status.DEAD)
    assert dead.reason == "attempts exhausted"
    for event in (retried, given_up, dead):
        assert isinstance(event.exception, ZeroDivisionError)
        assert event.exception.__traceback__ is not None


def test_a_worker_keeps_its_jobs_during_an_outage_and_continues_afterwards(driver: Driver) -> None:
    outage, ran, may_end = Outage(), list[object](), threading.Event()

    def run(job: Job) -> None:
        ran.append(job.id)
        assert may_end.wait(LIMIT_SECONDS)

    with running_worker(meddled(driver, outage), {"run": run}):
        first = enqueue(driver, "run")
        wait_until(lambda: ran == [first])
        outage.begin()
        second = enqueue(driver, "run")
        may_end.set()
        wait_until(lambda: outage.refused.count("settle") > 1)
        assert stored(driver, first).status is Status.PROCESSING
        assert ran == [first]
        outage.end()
        jobs = [ended(driver, job_id) for job_id in (first, second)]

    assert [(job.status, job.attempt_count) for job in jobs] == [(Status.SUCCEEDED, 1)] * 2


def test_a_job_that_became_due_during_an_outage_runs_after_it(driver: Driver) -> None:
    outage = Outage()

    with running_worker(meddled(driver, outage), {"run": _nothing}):
        outage.begin()
        job_id = enqueue(driver, "run", delay=SHORT / 10)
        wait_until(lambda: driver.inspector.now() > stored(driver, job_id).scheduled_for)
        refused = len(outage.refused)
        wait_until(lambda: len(outage.refused) > refused)
        during = stored(driver, job_id)
        outage.end()
        job = ended(driver, job_id)

    assert during.status in {Status.PENDING, Status.ENQUEUED}  # its message may have been sent
    assert during.attempt_count == 0
    assert (job.status, job.attempt_count) == (Status.SUCCEEDED, 1)


def test_an_outcome_that_could_not_be_recorded_before_its_lease_ended_is_made_again(driver: Driver) -> None:
    outage = Outage("settle", "extend")
    outage.begin()

    with running_worker(meddled(driver, outage), {"run": _nothing}, lease=SHORT):
        job_id = enqueue(driver, "run")
        wait_until(lambda: stored(driver, job_id).attempt_count > 1)
        outage.end()
        job = ended(driver, job_id)

    assert job.status is Status.SUCCEEDED
    assert job.attempt_count == 1 + len(driver.inspector.attempts([job_id]))


def test_jobs_of_a_claim_whose_reply_was_lost_still_run(driver: Driver) -> None:
    outage = Outage("reserve", commits=True)
    jobs = [enqueue(driver, "run") for _ in range(3)]
    outage.begin()

    with running_worker(meddled(driver, outage), {"run": _nothing}, concurrency=3):
        wait_until(lambda: len(outage.refused) > 0)
        outage.end()
        ran = [ended(driver, job_id) for job_id in jobs]

    assert [(job.status, job.attempt_count) for job in ran] == [(Status.SUCCEEDED, 1)] * 3


class Picky:
    """A store that cannot hold the result 5."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def settle(self, settlements: Sequence[Settlement]) -> list[SettleAnswer]:
        bad = [each.outcome.result == b"5" for each in settlements]
        kept = [each for each, is_bad in zip(settlements, bad, strict=True) if not is_bad]
        answers = iter(self._driver.settle(kept))
        return [
            OutcomeNotStorable(each.lease.job_id, "DataError") if is_bad else next(answers)
            for each, is_bad in zip(settlements, bad, strict=True)
        ]


def test_an_outcome_that_the_store_cannot_hold_does_not_hold_up_the_others(driver: Driver) -> None:
    with running_worker(cast("Driver", Picky(driver)), {"run": lambda job: job.data}, concurrency=8):
        jobs = [enqueue(driver, "run", n) for n in range(8)]
        ran = {job_id: ended(driver, job_id) for job_id in jobs}

    bad = ran.pop(jobs[5])
    assert {job.status for job in ran.values()} == {Status.SUCCEEDED}
    assert (bad.status, bad.dead_reason) == (Status.DEAD, "its outcome cannot be recorded: DataError")


def test_a_success_survives_a_store_that_fails_in_unknown_ways(driver: Driver) -> None:
    outage = Outage("settle", error=RuntimeError("SQLSTATE 58030"))
    outage.begin()

    with running_worker(meddled(driver, outage), {"run": _nothing}, concurrency=4):
        jobs = [enqueue(driver, "run") for _ in range(4)]
        wait_until(lambda: len(outage.refused) > 8)
        outage.end()
        ran = [ended(driver, job_id) for job_id in jobs]

    assert [(job.status, job.attempt_count) for job in ran] == [(Status.SUCCEEDED, 1)] * 4


def test_attempts_that_end_simultaneously_are_all_recorded_immediately() -> None:
    driver = MemoryDriver()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            meeting = threading.Barrier(16)
            with running_worker(driver, {"meet": lambda _job, meeting=meeting: meeting.wait(LIMIT_SECONDS) and None}):
                jobs = [enqueue(driver, "meet") for _ in range(16)]
                wait_until(lambda jobs=jobs: all(stored(driver, each).status.is_final for each in jobs))  # type: ignore[misc]
    finally:
        sys.setswitchinterval(interval)


def test_a_lease_that_ends_while_its_outcome_is_on_its_way_is_no_error(driver: Driver) -> None:
    hold, events = Hold("settle"), list[Any]()
    hold.is_on.set()

    with running_worker(meddled(driver, hold), {"run": _nothing}, lease=SHORT, hooks=[events.append]):
        job_id = enqueue(driver, "run")
        assert hold.came.wait(LIMIT_SECONDS)
        expires_at = stored(driver, job_id).lease_expires_at
        # The lease is extended until the outcome is committed.
        wait_until(lambda: stored(driver, job_id).lease_expires_at != expires_at)
        hold.may_go.set()
        wait_until(lambda: kinds(events) == [JobsClaimed, JobsStarted, JobsSucceeded])


def test_a_worker_records_that_it_is_alive_and_what_it_runs(driver: Driver) -> None:
    with running_worker(driver, {"b": _nothing, "a": _nothing}, queues=["mail"], concurrency=3, name="w-1"):
        wait_until(lambda: len(driver.inspector.workers()) == 1)
        [record] = driver.inspector.workers()

    assert (record.id, record.queues, record.types, record.concurrency) == ("w-1", ("mail",), ("a", "b"), 3)
    assert record.seen_at is not None
    assert abs(record.seen_at - record.started_at) < timedelta(seconds=20)


def test_a_handler_that_blocks_the_event_loop_does_not_delay_the_outcomes_of_others() -> None:
    driver, recorded = MemoryDriver(), list[bool]()

    async def run(_job: Job) -> None: ...

    async def block(_job: Job) -> None:
        # It runs in the cycle of the loop in which the others have ended, and keeps the loop from its next cycle.
        wait_until(lambda: all(job.status is Status.SUCCEEDED for job in driver.inspector.get(others).values()))
        recorded.append(True)

    others = [enqueue(driver, "run") for _ in range(100)]
    last = enqueue(driver, "block")
    with running_worker(driver, {"run": run, "block": block}, concurrency=len(others) + 1):
        ended(driver, last)

    assert recorded == [True]
