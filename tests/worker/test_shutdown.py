"""Shutdown of a worker: no job is lost, and no attempt is counted."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.hooks import AttemptReturned, JobsClaimed
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, LONG, NOW, SHORT, Hold, Outage, enqueue, meddled, stored, worker_for

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver


def _was_released(driver: Driver, job_id: JobId) -> bool:
    job = stored(driver, job_id)
    outcomes = [each.outcome for each in driver.inspector.attempts([job_id])]
    return (job.status.is_waiting, job.attempt_count, outcomes) == (True, 0, [AttemptOutcome.RELEASED])


def _begun(count: int) -> tuple[list[Job], Any]:
    """Return a list for the jobs that have begun, and a function that waits for *count* of them."""
    began: list[Job] = []
    return began, lambda: wait_until(lambda: len(began) == count)


def test_running_jobs_may_finish_within_the_grace(driver: Driver) -> None:
    may_end = threading.Event()
    began, wait = _begun(2)

    def run(job: Job) -> None:
        began.append(job)
        assert may_end.wait(LIMIT_SECONDS)

    async def run_async(job: Job) -> None:
        began.append(job)
        while not may_end.is_set():  # noqa: ASYNC110  a threading event
            await asyncio.sleep(0.005)

    worker = worker_for(driver, {"run": run, "run.async": run_async})
    worker.start()
    jobs = [enqueue(driver, "run"), enqueue(driver, "run.async")]
    wait()
    worker.begin_stop(LONG)
    late = enqueue(driver, "run")
    may_end.set()
    worker.stop(LONG)

    assert {stored(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}
    assert (stored(driver, late).status.is_waiting, stored(driver, late).attempt_count) == (True, 0)


def test_jobs_that_outlast_the_grace_are_released_and_count_no_attempt(driver: Driver) -> None:
    began, wait = _begun(3)

    async def run_async(job: Job) -> None:
        began.append(job)
        await asyncio.sleep(LIMIT_SECONDS)

    def run(job: Job, ctx: Any) -> None:
        began.append(job)
        while True:
            ctx.raise_if_cancelled()
            threading.Event().wait(0.005)

    worker = worker_for(driver, {"run": run, "run.async": run_async})
    worker.start()
    jobs = [enqueue(driver, each) for each in ("run", "run", "run.async")]
    wait()
    start = time.monotonic()
    worker.stop(timedelta(seconds=0.1))

    assert time.monotonic() - start < LIMIT_SECONDS / 2
    assert all(_was_released(driver, job_id) for job_id in jobs)


def test_a_thread_that_is_stuck_does_not_keep_a_worker_from_stopping(driver: Driver) -> None:
    may_end, ran = threading.Event(), threading.Event()
    began, wait = _begun(1)

    def run(job: Job) -> None:
        began.append(job)
        may_end.wait(LIMIT_SECONDS)
        ran.set()

    worker = worker_for(driver, {"run": run}, concurrency=1)
    worker.start()
    job_id = enqueue(driver, "run")
    wait()
    worker.stop(NOW)
    was_released = _was_released(driver, job_id)
    may_end.set()
    assert ran.wait(LIMIT_SECONDS)

    assert was_released
    assert _was_released(driver, job_id)  # the late return of the handler changed nothing


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_task_that_swallows_its_cancellation_does_not_keep_a_worker_from_stopping(driver: Driver) -> None:
    began, wait = _begun(1)
    may_end, was_cancelled = threading.Event(), threading.Event()

    async def run(job: Job) -> None:
        began.append(job)
        while not may_end.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                was_cancelled.set()

    worker = worker_for(driver, {"run": run})
    worker.start()
    job_id = enqueue(driver, "run")
    wait()
    worker.stop(NOW)
    was_released = _was_released(driver, job_id)
    may_end.set()

    assert was_cancelled.is_set()
    assert was_released


def test_jobs_claimed_before_the_stop_and_received_after_it_are_released(driver: Driver) -> None:
    hold, ran = Hold("reserve", "claim"), list[Any]()
    worker = worker_for(meddled(driver, hold), {"run": ran.append})
    hold.is_on.set()
    job_id = enqueue(driver, "run")
    worker.start()
    assert hold.came.wait(LIMIT_SECONDS)
    worker.begin_stop(LONG)
    hold.may_go.set()

    worker.stop(LONG)
    assert ran == []
    assert _was_released(driver, job_id)


def test_jobs_of_a_claim_whose_reply_was_lost_are_released(driver: Driver) -> None:
    outage, ran = Outage("reserve", "claim", "read_back", commits=True), list[Any]()
    worker = worker_for(meddled(driver, outage), {"run": ran.append})
    outage.begin()
    job_id = enqueue(driver, "run")
    worker.start()
    wait_until(lambda: "read_back" in outage.refused)
    worker.begin_stop(LONG)
    outage.end()

    worker.stop(LONG)
    assert ran == []
    assert _was_released(driver, job_id)


def test_a_worker_without_jobs_stops_at_once_while_the_store_is_away(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage()
    worker = worker_for(meddled(driver, outage), {"run": print}, lease=LONG)
    worker.start()
    outage.begin()
    wait_until(lambda: outage.refused.count("read_back") > 1)
    start = time.monotonic()
    worker.stop(LONG)

    assert time.monotonic() - start < LONG.total_seconds() / 2  # neither the grace nor a lease
    assert [record for record in caplog.records if "reading back claims failed" in record.getMessage()] == []


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_store_that_never_comes_back_does_not_keep_a_worker_from_stopping(driver: Driver) -> None:
    outage = Outage()
    began, wait = _begun(1)

    async def run(job: Job) -> None:
        began.append(job)
        await asyncio.sleep(LIMIT_SECONDS)

    worker = worker_for(meddled(driver, outage), {"run": run}, lease=SHORT)
    worker.start()
    job_id = enqueue(driver, "run")
    wait()
    outage.begin()
    start = time.monotonic()
    worker.stop(NOW)

    assert time.monotonic() - start < LIMIT_SECONDS / 2
    assert stored(driver, job_id).status is Status.PROCESSING


def test_a_store_that_takes_heartbeats_but_no_outcomes_does_not_keep_a_worker_from_stopping() -> None:
    def refuse(verb: str, call: Any) -> Any:
        if verb == "settle":
            raise StoreUnavailable("read-only")
        return call()

    driver = MemoryDriver()
    worker = worker_for(meddled(driver, refuse), {"run": lambda _job: None}, lease=SHORT)
    worker.start()
    job_id = enqueue(driver, "run")
    wait_until(lambda: stored(driver, job_id).status is Status.PROCESSING)
    start = time.monotonic()
    worker.stop(NOW)

    assert time.monotonic() - start < LIMIT_SECONDS / 2


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_job_is_released_once_however_long_that_takes(driver: Driver) -> None:
    hold, events = Hold("settle"), list[Any]()
    began, wait = _begun(1)

    async def run(job: Job) -> None:
        began.append(job)
        await asyncio.sleep(LIMIT_SECONDS)

    worker = worker_for(meddled(driver, hold), {"run": run}, hooks=[events.append])
    worker.start()
    job_id = enqueue(driver, "run")
    wait()
    hold.is_on.set()
    worker.begin_stop(NOW)
    assert hold.came.wait(LIMIT_SECONDS)
    end = time.monotonic() + 1.2  # by then the worker would have released it without waiting for the handler
    wait_until(lambda: time.monotonic() > end)
    hold.may_go.set()
    worker.stop(NOW)

    assert _was_released(driver, job_id)
    reported = [type(event) for event in events if isinstance(event, JobsClaimed | AttemptReturned)]
    assert reported == [JobsClaimed, AttemptReturned]


def test_no_outcome_is_sent_for_a_stuck_job_whose_lease_is_lost() -> None:
    driver, calls = MemoryDriver(), list[str]()
    began, saw_stop, may_end = threading.Event(), threading.Event(), threading.Event()

    def run(_job: Job, ctx: Any) -> None:
        began.set()
        wait_until(lambda: ctx.is_cancelled)
        saw_stop.set()
        may_end.wait(LIMIT_SECONDS)

    def note(verb: str, call: Any) -> Any:
        calls.append(verb)
        return call()

    worker = worker_for(meddled(driver, note), {"run": run}, lease=SHORT, concurrency=1, janitor=False)
    worker.start()
    job_id = enqueue(driver, "run")
    assert began.wait(LIMIT_SECONDS)
    driver.maintenance.report_clock_jump(expected=driver.inspector.now() + LONG, lease=NOW)  # cuts every lease
    assert saw_stop.wait(LIMIT_SECONDS)
    worker.stop(NOW)
    may_end.set()

    assert "settle" not in calls
    assert stored(driver, job_id).attempt_count == 1


def test_a_worker_that_stops_leaves_the_list(driver: Driver) -> None:
    worker, other = (worker_for(driver, {"run": print}, name=name) for name in ("one", "two"))
    for each in (worker, other):
        each.start()
    wait_until(lambda: len(driver.inspector.workers()) == 2)

    worker.stop(LONG)
    ids = [each.id for each in driver.inspector.workers()]
    other.stop(LONG)

    assert (ids, driver.inspector.workers()) == (["two"], [])


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_record_that_cannot_be_removed_does_not_keep_a_worker_from_stopping(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage("remove_worker")
    outage.begin()
    worker = worker_for(meddled(driver, outage), {"run": print}, name="one")
    worker.start()
    wait_until(lambda: bool(driver.inspector.workers()))

    worker.stop(LONG)

    assert worker.is_over
    assert "worker record not removed: store unavailable" in caplog.text


def test_a_worker_that_never_started_stops_at_once() -> None:
    worker = worker_for(MemoryDriver(), {})

    worker.stop()

    assert worker.is_over


def test_stopping_twice_and_from_a_handler_is_safe(driver: Driver) -> None:
    worker = worker_for(driver, {})
    worker.register("run", lambda _job: worker.begin_stop(LONG))
    job_id = enqueue(driver, "run")
    worker.start()
    wait_until(lambda: worker.is_over)
    worker.stop(NOW)
    worker.stop(NOW)

    assert stored(driver, job_id).status is Status.SUCCEEDED


def test_a_grace_may_be_cut_short(driver: Driver) -> None:
    began, wait = _begun(1)

    async def run(job: Job) -> None:
        began.append(job)
        await asyncio.sleep(LIMIT_SECONDS)

    worker = worker_for(driver, {"run": run})
    worker.start()
    job_id = enqueue(driver, "run")
    wait()
    worker.begin_stop(LONG)
    worker.stop(NOW)

    assert _was_released(driver, job_id)


def test_threads_and_descriptors_are_released(driver: Driver) -> None:
    def once() -> tuple[int, int]:
        worker = worker_for(driver, {"run": lambda _job: None, "run.async": _nothing}, concurrency=4)
        for job_type in ("run", "run.async") * 2:
            enqueue(driver, job_type)
        worker.drain(LONG)
        wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("taskharbor-handler")])
        gc.collect()
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    threads, descriptors = once()
    counts = [once() for _ in range(6)]

    assert counts[-1][0] <= threads + 1
    assert counts[-1][1] <= descriptors + 10  # connections of the driver; a leaked event loop would add 3 each time


async def _nothing(_job: Job) -> None: ...
