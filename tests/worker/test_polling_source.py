"""Which jobs a worker claims, how many, and how soon."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import ClockGuard
from taskharbor.runtime import ThreadRuntime
from taskharbor.worker.execution import Execution
from tests.support.stages import StageRecorder, polling_source, slots_without_prefetch, worker_config
from tests.support.waiting import wait_until
from tests.support.worker_rig import (
    LIMIT_SECONDS,
    LONG,
    Hold,
    Outage,
    drained,
    ended,
    enqueue,
    meddled,
    running_worker,
    stored,
    worker_for,
)
from tests.worker.conftest import BY_MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver
    from taskharbor.thread_loop import LoopPause, ThreadLoop

LONG_POLL: Final = timedelta(seconds=30)


class ConcurrencyCounter:
    """A handler that counts how many of its calls run at once, until `may_end` is set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[str] = []
        self.highest: dict[str, int] = {}
        self.may_end = threading.Event()

    def __call__(self, job: Job) -> None:
        with self._lock:
            self._running.append(job.queue)
            self.highest["all"] = max(self.highest.get("all", 0), len(self._running))
            self.highest[job.queue] = max(self.highest.get(job.queue, 0), self._running.count(job.queue))
        assert self.may_end.wait(LIMIT_SECONDS)
        with self._lock:
            self._running.remove(job.queue)


class ClaimCounter:
    """Counts the jobs that are claimed and whose handlers have not returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed = 0
        self.most_claimed = 0

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        answer = call()
        if verb == "reserve":
            with self._lock:
                self._claimed += len(answer)
                self.most_claimed = max(self.most_claimed, self._claimed)
        return answer

    def end(self, _job: Job) -> None:
        with self._lock:
            self._claimed -= 1


def test_no_more_jobs_run_at_once_than_allowed(driver: Driver) -> None:
    counter = ConcurrencyCounter()
    jobs = [enqueue(driver, "run") for _ in range(12)]

    with running_worker(driver, {"run": counter}, concurrency=3):
        wait_until(lambda: counter.highest.get("all") == 3)
        waiting = [stored(driver, job_id).status.is_waiting for job_id in jobs].count(True)
        counter.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert waiting == 9  # no job was claimed that could not run
    assert counter.highest["all"] == 3


def test_no_job_is_claimed_before_a_slot_is_free_without_prefetch(driver: Driver) -> None:
    claims = ClaimCounter()
    jobs = [enqueue(driver, "run") for _ in range(40)]

    with running_worker(meddled(driver, claims), {"run": claims.end}, concurrency=4, prefetch=0):
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert claims.most_claimed <= 4


def test_a_slot_is_freed_as_soon_as_its_outcome_is_sent(driver: Driver) -> None:
    hold = Hold("settle")
    hold.is_on.set()
    jobs = [enqueue(driver, "run") for _ in range(2)]
    began: list[JobId] = []

    with running_worker(meddled(driver, hold), {"run": lambda job: began.append(job.id)}, concurrency=1):
        wait_until(lambda: len(began) == len(jobs))
        hold.may_go.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}


def test_no_more_jobs_are_claimed_while_the_store_rejects_outcomes(driver: Driver) -> None:
    outage = Outage("settle")
    outage.begin()
    jobs = [enqueue(driver, "run") for _ in range(9)]
    began: list[JobId] = []

    with running_worker(meddled(driver, outage), {"run": lambda job: began.append(job.id)}, concurrency=2):
        wait_until(lambda: len(outage.refused) > 2)
        held = len(began)
        outage.end()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert held <= 4


def test_each_queue_has_a_limit_of_its_own(driver: Driver) -> None:
    counter = ConcurrencyCounter()
    jobs = [enqueue(driver, "run", queue=queue) for queue in ("mail", "default") for _ in range(6)]

    with running_worker(driver, {"run": counter}, queues={"mail": 1, "default": 3}, concurrency=10):
        wait_until(lambda: counter.highest == {"all": 4, "mail": 1, "default": 3})
        counter.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert counter.highest == {"all": 4, "mail": 1, "default": 3}


def test_the_limits_of_all_queues_together_do_not_exceed_that_of_the_worker(driver: Driver) -> None:
    counter = ConcurrencyCounter()
    jobs = [enqueue(driver, "run", queue=queue) for queue in ("mail", "default") for _ in range(4)]

    with running_worker(driver, {"run": counter}, queues={"mail": 3, "default": 3}, concurrency=4):
        wait_until(lambda: counter.highest.get("all") == 4)
        waiting = [stored(driver, job_id).status.is_waiting for job_id in jobs].count(True)
        counter.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert waiting == 4
    assert counter.highest["all"] == 4


def test_a_busy_queue_does_not_starve_another(driver: Driver, request: pytest.FixtureRequest) -> None:
    # With messages the thread of each queue starts late; test_message_source.py checks this in virtual time.
    first = 15 if BY_MESSAGES in request.node.name else 4
    ran: list[str] = []
    for queue in ["busy"] * 30 + ["quiet"] * 3:
        enqueue(driver, "run", queue=queue)

    drained(driver, {"run": lambda job: ran.append(job.queue)}, queues=["busy", "quiet"], concurrency=1)

    assert "quiet" in ran[:first]
    assert len(ran) == 33


def test_jobs_of_other_queues_are_left_alone(driver: Driver) -> None:
    other = enqueue(driver, "run", queue="other")

    drained(driver, {"run": lambda _job: None})

    assert stored(driver, other).status is Status.PENDING


def test_a_paused_queue_gives_nothing(driver: Driver) -> None:
    driver.control.pause(["default"], by="ops")
    job_id = enqueue(driver, "run")

    drained(driver, {"run": lambda _job: None})

    assert stored(driver, job_id).status is Status.PENDING


def test_a_job_starts_long_before_the_next_poll(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.worker.polling_source.MIN_POLL_PAUSE", LONG_POLL)
    started: list[float] = []

    with running_worker(driver, {"run": lambda _job: started.append(time.monotonic())}, poll=LONG_POLL):
        ended(driver, enqueue(driver, "run"))  # by now it has polled, and the next poll is far away
        enqueued = time.monotonic()
        ended(driver, enqueue(driver, "run"))

    assert started[-1] - enqueued < LONG_POLL.total_seconds() / 2


def test_a_job_whose_time_has_come_is_found_by_polling(driver: Driver) -> None:
    with running_worker(driver, {"run": lambda _job: None}, poll=timedelta(milliseconds=20)):
        job = ended(driver, enqueue(driver, "run", delay=timedelta(milliseconds=200)))

    assert job.processing_started_at is None or job.processing_started_at >= job.scheduled_for


def test_a_worker_that_is_full_takes_the_next_job_as_soon_as_one_ends(driver: Driver) -> None:
    jobs = [enqueue(driver, "run") for _ in range(20)]
    start = time.monotonic()

    worker_for(driver, {"run": lambda _job: None}, concurrency=1, poll=LONG_POLL).drain(LONG)

    assert {stored(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}
    assert time.monotonic() - start < LONG_POLL.total_seconds() / 2


def test_a_worker_without_polls_that_is_full_takes_the_next_job_as_soon_as_one_ends(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskharbor.worker.polling_source.MIN_POLL_PAUSE", LONG_POLL)
    jobs = [enqueue(driver, "run") for _ in range(20)]

    with running_worker(driver, {"run": lambda _job: None}, concurrency=1, poll=LONG_POLL):
        wait_until(
            lambda: all(stored(driver, job_id).status is Status.SUCCEEDED for job_id in jobs), limit=LIMIT_SECONDS
        )


def test_a_worker_with_free_slots_does_not_poll_when_a_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskharbor.worker.polling_source.MIN_POLL_PAUSE", LONG_POLL)
    # A scan for expired leases is a call of its own. Whether one is due depends on the time since the last one.
    monkeypatch.setattr(ClockGuard, "may_reclaim", lambda _guard: False)
    driver, polls = MemoryDriver(), list[str]()

    def note(verb: str, call: Callable[[], Any]) -> Any:
        polls.extend([verb] if verb == "reserve" else [])
        return call()

    with running_worker(meddled(driver, note), {"run": lambda _job: None}, concurrency=2, poll=LONG_POLL) as worker:
        source = worker.watched.loops.activities["source"]

        def has_paused() -> bool:
            return not source.state.is_ticking and time.monotonic() - source.state.since > 0.3

        ended(driver, enqueue(driver, "run"))
        wait_until(has_paused)  # the polls of its start are done
        before = len(polls)
        ended(driver, enqueue(driver, "run"))
        wait_until(has_paused)

        assert len(polls) == before + 1


def test_a_slot_freed_during_a_poll_is_used_immediately() -> None:
    driver, runtime = MemoryDriver(), ThreadRuntime(sync_threads=1)
    slots = slots_without_prefetch(runtime, concurrency=2, queues={"full": 1, "other": 1})
    enqueue(driver, "run", queue="full")
    [claim] = driver.reserve("full", token=new_token(), worker="w", lease=LONG, limit=1, overdue_after=LONG)
    execution = Execution(claim, ends_at=time.monotonic() + LIMIT_SECONDS, times_out_at=None)
    slots.fill("full", slots.acquire("full", 1), [execution])

    def end_the_job(verb: str, call: Callable[[], Any]) -> Any:
        assert verb == "reserve"
        slots.remove([execution])
        return call()

    config = worker_config(LONG, queues={"other": 1, "full": 1}, poll=LONG_POLL)  # the last queue is polled first
    store = meddled(driver, end_the_job)

    assert polling_source(runtime, store, slots, StageRecorder(), config, types=["run"]).tick() == timedelta(0)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"queues": []},
        {"queues": {"mail": 0}},
        {"lease": timedelta(milliseconds=99)},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        worker_for(MemoryDriver(), {}, **options)


def test_a_worker_continues_if_its_first_job_ends_during_the_start() -> None:
    driver, ran = MemoryDriver(), list[str]()

    class SlowToStart(ThreadRuntime):
        def serve(
            self, name: str, tick: Callable[[], timedelta | None], between: LoopPause | None = None
        ) -> ThreadLoop:
            loop = super().serve(name, tick, between)
            if name == "source":  # it runs, and cannot be woken yet
                wait_until(lambda: stored(driver, first).status is Status.SUCCEEDED)
            return loop

    first, second = enqueue(driver, "run"), enqueue(driver, "run")
    options: dict[str, Any] = {"concurrency": 1, "runtime": SlowToStart(sync_threads=1), "poll": timedelta(minutes=1)}

    def run(job: Job) -> None:
        threading.Event().wait(0.1)  # until the source has found no free slot, and pauses
        ran.append(str(job.id))

    with running_worker(driver, {"run": run}, **options):
        wait_until(lambda: stored(driver, second).status is Status.SUCCEEDED)

    assert ran == [str(first), str(second)]
