"""Sync handlers that run past their timeout: Python cannot stop a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.cli.main import ExitCode
from taskharbor.core.errors import JobTimedOut
from taskharbor.core.failure import Failure
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.service import LOST_SLOTS_EXIT
from taskharbor.worker.execution import StopReason
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, LONG, ended, enqueue, running_worker, stored, worker_for
from tests.worker.conftest import BY_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context
    from tests.support.manual_worker import Rig

BRIEF: Final = timedelta(milliseconds=500)  # a busy machine may take a while to start the handler
SECOND: Final = timedelta(seconds=1)
IN_MEMORY: Final = pytest.mark.parametrize("driver", ["memory", BY_MESSAGES], indirect=True)
"""Only in memory: on a slow disk the lease might expire too early."""


def test_at_the_timeout_the_log_names_the_job_and_shows_the_stack_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    [execution] = rig.start()

    rig.pass_time(19)
    before = caplog.text
    rig.pass_time(3)

    [line] = [record for record in caplog.records if "still running at its timeout" in record.getMessage()]
    assert "still running" not in before
    assert line.levelno == logging.WARNING
    assert f"job {execution.claim.job.id} (greet) attempt 1" in line.getMessage()
    assert "its timeout of 20 s" in line.getMessage()
    assert "isolate=True makes a task that can be killed" in line.getMessage()
    assert "in _wait" in line.getMessage()
    assert "self.may_end.wait(LIMIT_SECONDS)" in line.getMessage()


def test_a_cancel_that_came_first_does_not_hide_the_timeout(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    [execution] = rig.start()
    execution.stop(StopReason.CANCEL)

    rig.pass_time(22)
    rig.end()

    assert "still running at its timeout" in caplog.text
    assert rig.reported == [(execution, Outcome.cancel(StopReason.CANCEL.value))]


def test_a_slot_is_lost_one_lease_after_the_timeout_and_free_when_the_handler_returns(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    [execution] = rig.start()

    rig.pass_time(28.9)
    before = rig.slots.lost_slots
    rig.pass_time(0.2)
    lost = rig.slots.lost_slots
    rig.end()

    assert (before, lost, rig.slots.lost_slots) == (0, 1, 0)
    assert rig.changes == [1, 0]
    assert "1 of 4 slots lost" in caplog.text
    assert f"job {execution.claim.job.id} (greet): its handler returned" in caplog.text


def test_a_worker_with_half_of_its_slots_lost_is_asked_to_end_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.start()
    rig.pass_time(10)
    rig.start()

    rig.pass_time(25)
    after_one = list(rig.ends)
    rig.pass_time(20)

    assert (after_one, rig.ends, rig.timeouts.is_exhausted) == ([], [True], True)
    assert f"2 of 4 slots lost; draining, then ending with exit code {LOST_SLOTS_EXIT}" in caplog.text


def test_slots_lost_while_a_worker_stops_do_not_postpone_its_end(rig: Rig) -> None:
    rig.start(jobs=2)
    rig.request_stop()

    rig.pass_time(45)

    assert (rig.ends, rig.timeouts.is_exhausted, rig.slots.lost_slots) == ([True], False, 2)


class Stuck:
    """A sync handler whose first attempt does not return until it may."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.tokens: list[Any] = []

    def __call__(self, _job: Job, ctx: Context) -> str:
        self.tokens.append(ctx.claim.lease.token)
        if len(self.tokens) > 1:
            return "of the second"
        self.began.set()
        assert self.may_end.wait(LIMIT_SECONDS)
        return "of the first"


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck()
    yield made
    made.may_end.set()


def _outcomes(driver: Driver, job_id: JobId) -> list[AttemptOutcome]:
    return [each.outcome for each in driver.inspector.attempts([job_id])]


async def _sleeps(_job: Job) -> None:
    await asyncio.sleep(LIMIT_SECONDS)


def _polls(_job: Job, ctx: Context) -> None:
    while True:
        ctx.raise_if_cancelled()
        threading.Event().wait(0.01)


@IN_MEMORY
@pytest.mark.parametrize("handler", [_sleeps, _polls])
def test_the_traceback_of_a_timeout_shows_where_the_handler_stopped(
    handler: Callable[..., object], driver: Driver
) -> None:
    with running_worker(driver, {"run": handler}):
        job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
        ended(driver, job_id)

    [attempt] = driver.inspector.attempts([job_id])
    assert attempt.failure is not None
    assert attempt.outcome is AttemptOutcome.TIMED_OUT
    assert f"in {handler.__name__}\n" in attempt.failure.traceback
    assert "_call_" not in attempt.failure.traceback  # it begins in the handler
    assert (
        attempt.failure.fingerprint == Failure.of(JobTimedOut(job_id, BRIEF)).fingerprint
    )  # one group of dead letters


def test_a_sync_handler_that_returns_after_its_timeout_is_recorded_as_timed_out(driver: Driver, stuck: Stuck) -> None:
    with running_worker(driver, {"run": stuck}):
        job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
        assert stuck.began.wait(LIMIT_SECONDS)
        began = time.monotonic()
        wait_until(lambda: time.monotonic() >= began + BRIEF.total_seconds())
        stuck.may_end.set()
        job = ended(driver, job_id)

    assert (job.status, job.result) == (Status.DEAD, None)
    assert "ran longer than its timeout" in (job.last_error or "")
    assert _outcomes(driver, job_id) == [AttemptOutcome.TIMED_OUT]


@IN_MEMORY
def test_a_job_runs_again_while_its_old_handler_still_runs_in_the_same_worker(driver: Driver, stuck: Stuck) -> None:
    with running_worker(driver, {"run": stuck}, lease=SECOND, concurrency=4) as worker:
        job_id = enqueue(driver, "run", timeout=BRIEF)
        job = ended(driver, job_id)
        shown = _lost_slots_shown(driver, 1)
        lost = worker.lost_slots
        stuck.may_end.set()
        wait_until(lambda: worker.lost_slots == 0)
        gone = _lost_slots_shown(driver, 0)

    first, second = stuck.tokens
    assert first != second
    assert (job.status, job.attempt_count, job.result) == (Status.SUCCEEDED, 2, b'"of the second"')
    assert stored(driver, job_id).result == b'"of the second"'
    assert _outcomes(driver, job_id) == [AttemptOutcome.LOST]
    assert (lost, shown, gone) == (1, True, True)


@IN_MEMORY
def test_a_job_runs_again_though_its_async_handler_ignores_its_cancellation(driver: Driver) -> None:
    may_end, tokens, cancellations = threading.Event(), list[Any](), list[bool]()

    async def run(_job: Job, ctx: Context) -> str:
        tokens.append(ctx.token)
        if len(tokens) > 1:
            return "of the second"
        while not may_end.is_set():
            try:
                await asyncio.sleep(BRIEF.total_seconds())
            except asyncio.CancelledError:  # as a loop does that catches everything and tries again
                cancellations.append(True)
        return "of the first"

    with running_worker(driver, {"run": run}, lease=SECOND, concurrency=4) as worker:
        job_id = enqueue(driver, "run", timeout=BRIEF)
        job = ended(driver, job_id)
        shown = _lost_slots_shown(driver, 1)
        lost = worker.lost_slots
        may_end.set()
        wait_until(lambda: worker.lost_slots == 0)

    assert tokens[0] != tokens[1]
    assert (job.status, job.attempt_count, job.result) == (Status.SUCCEEDED, 2, b'"of the second"')
    assert _outcomes(driver, job_id) == [AttemptOutcome.LOST]
    assert (lost, shown, bool(cancellations)) == (1, True, True)


def _lost_slots_shown(driver: Driver, count: int) -> bool:
    wait_until(lambda: [worker.lost_slots for worker in driver.inspector.workers()] == [count])
    return True


@IN_MEMORY
def test_a_lost_slot_takes_no_job_until_its_handler_returns(driver: Driver, stuck: Stuck) -> None:
    running, most, lock = 0, 0, threading.Lock()
    met = threading.Event()

    def count(_job: Job) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        met.wait(0.05)
        with lock:
            running -= 1

    with running_worker(
        driver, {"run": stuck, "count": count}, lease=SECOND, queues={"default": 3, "side": 3}
    ) as worker:
        enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
        wait_until(lambda: worker.lost_slots == 1)
        jobs = [enqueue(driver, "count") for _ in range(12)]
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert most == 2  # of three in that queue


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_hundred_timeouts_leave_no_more_threads_than_slots(driver: Driver) -> None:
    threads = set[str]()

    def run(_job: Job, ctx: Context) -> None:
        threads.add(threading.current_thread().name)
        wait_until(lambda: ctx.is_cancelled)
        ctx.raise_if_cancelled()

    async def run_async(_job: Job) -> None:
        threads.add(threading.current_thread().name)
        await asyncio.Event().wait()

    brief = timedelta(milliseconds=20)
    jobs = [enqueue(driver, name, timeout=brief, max_attempts=1) for name in ("run", "run.async") * 50]
    worker_for(driver, {"run": run, "run.async": run_async}, concurrency=4, prefetch=0).drain()

    assert {stored(driver, job_id).status for job_id in jobs} == {Status.DEAD}
    assert {each.outcome for each in driver.inspector.attempts(jobs)} == {AttemptOutcome.TIMED_OUT}
    assert len(threads) <= 4 + 1  # and that of the event loop


@IN_MEMORY
def test_a_worker_that_lost_half_of_its_slots_finishes_what_runs_and_ends(driver: Driver, stuck: Stuck) -> None:
    other = threading.Event()

    def slow(_job: Job) -> str:
        assert other.wait(LIMIT_SECONDS)
        return "done"

    # No lease of the neighbor may expire, also on a busy machine.
    worker = worker_for(driver, {"run": stuck, "slow": slow}, lease=3 * SECOND, concurrency=2, grace=LONG)
    worker.start()
    neighbor = enqueue(driver, "slow")
    job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
    wait_until(lambda: worker.is_exhausted)
    late = enqueue(driver, "slow")
    other.set()
    wait_until(lambda: worker.is_over)

    assert stored(driver, neighbor).status is Status.SUCCEEDED
    assert stored(driver, late).attempt_count == 0
    assert stored(driver, job_id).status is Status.DEAD
    assert _outcomes(driver, job_id) == [AttemptOutcome.TIMED_OUT]


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_run_raises_an_exit_code_of_its_own_when_half_of_the_slots_are_lost(driver: Driver, stuck: Stuck) -> None:
    worker = worker_for(driver, {"run": stuck}, lease=SECOND, concurrency=1)
    enqueue(driver, "run", timeout=BRIEF)

    with pytest.raises(SystemExit) as raised:
        worker.run()

    assert raised.value.code == LOST_SLOTS_EXIT
    assert int(ExitCode.SLOTS_LOST) == LOST_SLOTS_EXIT


@IN_MEMORY
def test_drain_ends_though_a_handler_never_returns(driver: Driver, stuck: Stuck) -> None:
    worker = worker_for(driver, {"run": stuck}, lease=SECOND, concurrency=4)
    job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
    drain = threading.Thread(target=worker.drain)
    drain.start()

    drain.join(LIMIT_SECONDS)

    assert not drain.is_alive()
    assert stored(driver, job_id).status in {Status.DEAD, Status.PROCESSING}


@IN_MEMORY
def test_a_shutdown_waits_for_no_lost_slot(driver: Driver, stuck: Stuck) -> None:
    worker = worker_for(driver, {"run": stuck}, lease=SECOND, concurrency=4)
    worker.start()
    enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
    wait_until(lambda: worker.lost_slots == 1)

    began = time.monotonic()
    worker.stop(timedelta(seconds=LIMIT_SECONDS))

    assert time.monotonic() - began < LIMIT_SECONDS / 2


def test_a_shutdown_records_a_handler_that_is_past_its_timeout_as_timed_out(
    driver: Driver, stuck: Stuck, caplog: pytest.LogCaptureFixture
) -> None:
    with running_worker(driver, {"run": stuck}, lease=LONG):
        job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
        wait_until(lambda: "still running at its timeout" in caplog.text)

    assert stored(driver, job_id).status is Status.DEAD
    assert _outcomes(driver, job_id) == [AttemptOutcome.TIMED_OUT]
