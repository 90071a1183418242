"""Claims ahead of free slots: how many jobs a worker claims, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import MAX_RELEASES, Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.simulation.queue_service import QueueService
from taskharbor.worker import Worker, executor, prefetch
from taskharbor.worker.execution import Execution, ExecutionSlots, StopReason
from taskharbor.worker.prefetch import Prefetch
from tests.support.manual_worker import ManualRuntime
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, LONG, NOW, drained, ended, enqueue, meddled, running_worker, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver

AHEAD: Final = 10
LEASE: Final = timedelta(seconds=30)
FOREVER: Final = 1_000_000


@pytest.fixture
def driver() -> Iterator[Driver]:
    memory = MemoryDriver()
    yield memory
    memory.close()


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers claim `AHEAD` jobs ahead, as after a burst of short jobs, until they release them as overdue."""

    def ahead(self: Any) -> int:
        self._ahead = 0 if self.is_slower else AHEAD
        return int(self._ahead)

    def measure(self: Any, expected: int) -> None:
        self.is_slower = not expected

    monkeypatch.setattr(Prefetch, "ahead", ahead)
    monkeypatch.setattr(Prefetch, "_measure", measure)
    monkeypatch.setattr(Prefetch, "is_slower", False, raising=False)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never release jobs because they wait for long."""
    monkeypatch.setattr(prefetch, "MAX_WAIT_HORIZONS", FOREVER)


class Gate:
    """A sync and an async handler that end when `may_end` is set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self.most_running = 0
        self.began: list[JobId] = []
        self.may_end = threading.Event()

    @property
    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {"sync": self.run_sync, "async": self.run_async}

    def run_sync(self, job: Job) -> None:
        self._begin(job)
        assert self.may_end.wait(LIMIT_SECONDS)
        self._end()

    async def run_async(self, job: Job) -> None:
        self._begin(job)
        while not self.may_end.is_set():  # noqa: ASYNC110  a threading event
            await asyncio.sleep(0.002)
        self._end()

    def _begin(self, job: Job) -> None:
        with self._lock:
            self.began.append(job.id)
            self._running += 1
            self.most_running = max(self.most_running, self._running)

    def _end(self) -> None:
        with self._lock:
            self._running -= 1


def claimed(driver: Driver, jobs: list[JobId]) -> list[JobId]:
    return [job_id for job_id in jobs if stored(driver, job_id).status is Status.PROCESSING]


class Measured:
    """A `Prefetch` whose clock the test moves."""

    def __init__(
        self,
        *,
        concurrency: int = 16,
        limit: int = 1_000,
        lease: timedelta = LEASE,
        on_low: Callable[[], None] = lambda: None,
    ) -> None:
        self.runtime = ManualRuntime()
        self.prefetch = Prefetch(self.runtime, concurrency=concurrency, limit=limit, lease=lease, on_low=on_low)

    def run(self, rate: float, *, windows: int = 2) -> int:
        """Record attempts at *rate* for some windows; return how many jobs to claim ahead then."""
        self.prefetch.ahead()
        for _ in range(windows):
            self.runtime.seconds += 0.125
            self.prefetch.count_recorded(round(rate * 0.125))
            self.prefetch.ahead()
        return self.prefetch.ahead()

    def begin_waiting(self, count: int, *, seconds: float) -> None:
        """Let jobs arrive that find no free place, and begin within *seconds* in the places of others."""
        executions = [cast("Execution", object()) for _ in range(16 + count)]
        self.prefetch.admit(executions)
        self.runtime.seconds += seconds
        self.prefetch.end(16)
        while taken := self.prefetch.take():
            self.prefetch.end(len(taken))


def test_a_worker_claims_ahead_what_it_runs_in_50_ms() -> None:
    assert Measured().run(rate=10_000) == 500


def test_a_worker_claims_ahead_no_more_than_its_prefetch() -> None:
    assert Measured(limit=40).run(rate=10_000) == 40
    assert Measured(limit=0).run(rate=10_000) == 0


@pytest.mark.parametrize("rate", [0, 50, 160, 310])
def test_a_worker_that_ends_fewer_jobs_than_it_has_slots_in_50_ms_claims_none_ahead(rate: float) -> None:
    assert Measured(concurrency=16).run(rate=rate) == 0


def test_one_high_measurement_is_not_enough() -> None:
    measured = Measured()

    assert measured.run(rate=400, windows=1) == 0
    assert measured.run(rate=400, windows=1) == 20
    assert measured.run(rate=8, windows=1) == 0
    assert measured.run(rate=400, windows=1) == 0


def test_one_measurement_is_enough_if_each_slot_was_used_many_times() -> None:
    assert Measured().run(rate=10_000, windows=1) == 500


def test_a_window_without_a_settlement_says_nothing() -> None:
    measured = Measured()
    assert measured.run(rate=10_000) == 500

    assert measured.run(rate=0, windows=1) == 500
    assert measured.run(rate=0, windows=1) == 0


def test_a_worker_that_runs_out_of_jobs_claims_more_ahead() -> None:
    measured = Measured(limit=5_000)
    measured.run(rate=20_000)

    measured.begin_waiting(1_024, seconds=0.02)  # then there were none for a while
    measured.runtime.seconds -= 0.02

    assert measured.run(rate=20_000, windows=1) == 2_000  # at most twice what the recorded attempts say, not 2,560


def test_a_worker_claims_ahead_no_more_than_waiting_jobs_begin_in_50_ms() -> None:
    measured = Measured(limit=5_000)
    measured.run(rate=20_000)

    measured.begin_waiting(500, seconds=0.125)

    assert measured.run(rate=20_000, windows=1) == 200


def test_the_source_is_asked_once_when_few_jobs_are_left() -> None:
    asked: list[int] = []
    measured = Measured(on_low=lambda: asked.append(len(measured.prefetch)))
    measured.run(rate=2_000)
    measured.prefetch.admit([cast("Execution", object())] * (16 + 80))

    for _ in range(4):
        measured.prefetch.end(16)
        measured.prefetch.take()
    assert asked == [48]
    measured.prefetch.admit([cast("Execution", object())] * 60)
    assert len(measured.prefetch.take_ahead(45, lambda _: True)) == 45
    assert asked == [48, 31]


def test_no_few_jobs_are_claimed_while_others_wait() -> None:
    measured = Measured(concurrency=16)
    slots = ExecutionSlots(measured.runtime, measured.prefetch, concurrency=16, queues={"default": 16})
    measured.run(rate=2_000)  # 100 ahead
    assert slots.acquire("default", 92) == 92

    assert slots.acquire("default", 100) == 24
    slots.fill("default", 24, [])
    measured.prefetch.admit([cast("Execution", object())] * 17)
    assert slots.acquire("default", 100) == 0
    slots.fill("default", 92, [])
    assert slots.acquire("default", 100) == 100


def test_waiting_jobs_wait_for_at_most_a_tenth_of_a_short_lease() -> None:
    assert Measured(lease=timedelta(milliseconds=100)).run(rate=10_000) == 100


def test_nothing_is_claimed_ahead_right_after_waiting_jobs_were_released() -> None:
    measured, running, waiting = Measured(), cast("Execution", object()), cast("Execution", object())
    assert measured.run(rate=10_000) == 500
    assert measured.prefetch.admit([running] * 16 + [waiting]) == [running] * 16
    measured.runtime.seconds += 0.1

    assert measured.prefetch.remove_overdue() == []
    measured.runtime.seconds += 0.125
    measured.prefetch.count_recorded(2_500)
    assert measured.prefetch.remove_overdue() == [waiting]
    assert measured.prefetch.ahead() == 0


def test_nothing_is_claimed_while_more_than_half_of_the_jobs_ahead_wait() -> None:
    measured = Measured(concurrency=16)
    slots = ExecutionSlots(measured.runtime, measured.prefetch, concurrency=16, queues={"default": 16})
    slots.is_source_waiting = True
    measured.run(rate=2_000)

    measured.prefetch.admit([cast("Execution", object())] * (16 + 51))
    assert (slots.acquire("default", 1), slots.has_free("default"), slots.is_source_waiting) == (0, False, False)
    measured.prefetch.remove_waiting()
    measured.prefetch.admit([cast("Execution", object())] * 50)
    assert (slots.acquire("default", 1), slots.has_free("default"), slots.is_source_waiting) == (1, True, True)


def test_slots_are_limited_to_the_concurrency_and_the_jobs_claimed_ahead() -> None:
    measured = Measured(concurrency=16)
    slots = ExecutionSlots(measured.runtime, measured.prefetch, concurrency=16, queues={"mail": 16, "default": 16})
    measured.run(rate=2_000)

    acquired = [slots.acquire(queue, 70) for queue in ("mail", "default", "mail")]

    assert acquired == [70, 46, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"queues": {"default": 3}},
        {"queues": {"default": 3, "mail": 5}, "concurrency": 5},
        {"transport": QueueService(lambda: 0.0)},
        {"prefetch": 0},
    ],
    ids=["limit", "limits", "messages", "off"],
)
def test_nothing_is_claimed_ahead_with_queue_limits_with_messages_or_if_turned_off(options: dict[str, Any]) -> None:
    assert Worker(MemoryDriver(), **options).config.prefetch == 0
    assert Worker(MemoryDriver(), queues=["default", "mail"]).config.prefetch > 0


def test_a_negative_prefetch_is_refused() -> None:
    with pytest.raises(UsageError, match="prefetch"):
        Worker(MemoryDriver(), prefetch=-1)


@pytest.mark.usefixtures("fast", "patient")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_jobs_claimed_ahead_wait_until_fewer_than_the_concurrency_run(driver: Driver, kind: str) -> None:
    gate = Gate()
    jobs = [enqueue(driver, kind) for _ in range(30)]

    with running_worker(driver, gate.handlers, concurrency=2):
        wait_until(lambda: len(claimed(driver, jobs)) == 2 + AHEAD)
        wait_until(lambda: len(gate.began) == 2)
        gate.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert gate.most_running == 2
    assert len(gate.began) == len(set(gate.began)) == 30


@pytest.mark.usefixtures("fast", "patient")
def test_sync_and_async_handlers_share_the_concurrency(driver: Driver) -> None:
    gate = Gate()
    jobs = [enqueue(driver, kind) for _ in range(15) for kind in ("sync", "async")]

    with running_worker(driver, gate.handlers, concurrency=3):
        wait_until(lambda: len(gate.began) == 3)
        gate.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert gate.most_running == 3


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiting_jobs_begin_in_the_order_of_their_claims(driver: Driver, kind: str) -> None:
    gate = Gate()
    gate.may_end.set()
    jobs = [enqueue(driver, kind) for _ in range(25)]

    drained(driver, gate.handlers, concurrency=1)

    assert gate.began == jobs


@pytest.mark.usefixtures("fast", "patient")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_does_not_see_the_context_variables_of_the_one_it_waited_for(driver: Driver, kind: str) -> None:
    variable: ContextVar[int] = ContextVar("variable", default=0)
    gate, seen = Gate(), list[int]()

    def run(job: Job) -> None:
        seen.append(variable.get())
        variable.set(1)
        gate.run_sync(job)

    async def run_async(job: Job) -> None:
        seen.append(variable.get())
        variable.set(1)
        await gate.run_async(job)

    jobs = [enqueue(driver, kind) for _ in range(1 + AHEAD)]
    with running_worker(driver, {"sync": run, "async": run_async}, concurrency=1):
        wait_until(lambda: len(gate.began) == 1 and len(claimed(driver, jobs)) == 1 + AHEAD)
        gate.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    assert seen == [0] * (1 + AHEAD)


@pytest.mark.usefixtures("fast", "patient")
def test_many_short_handlers_let_another_one_continue_between_them(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MAX_CYCLE_STARTS", 2)
    monkeypatch.setattr(executor, "MAX_START_SECONDS", LIMIT_SECONDS)  # also on a busy machine
    gate, order = Gate(), list[str]()

    async def spin(_job: Job) -> None:
        while order.count("short") < AHEAD:
            order.append("spin")
            await asyncio.sleep(0)

    async def run_short(_job: Job) -> None:
        order.append("short")

    jobs = [enqueue(driver, kind) for kind in ("async", "spin", *["short"] * AHEAD)]
    with running_worker(driver, {**gate.handlers, "spin": spin, "short": run_short}, concurrency=2):
        wait_until(lambda: len(gate.began) == 1 and len(claimed(driver, jobs)) == 2 + AHEAD)
        gate.may_end.set()
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}

    first = order.index("short")
    assert "spin" in order[first : first + AHEAD]


@pytest.mark.usefixtures("fast", "patient")
def test_jobs_are_claimed_ahead_while_outcomes_are_being_recorded(driver: Driver) -> None:
    began: list[JobId] = []
    may_end, may_settle = threading.Semaphore(0), [threading.Event(), threading.Event()]
    settled: list[int] = []

    def run(job: Job) -> None:
        began.append(job.id)
        assert may_end.acquire(timeout=3 * LIMIT_SECONDS)

    def hold(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "settle" and len(settled) < len(may_settle):
            settled.append(len(began))
            assert may_settle[len(settled) - 1].wait(3 * LIMIT_SECONDS)
        return call()

    jobs = [enqueue(driver, "run") for _ in range(30)]
    with running_worker(meddled(driver, hold), {"run": run}, concurrency=2):
        wait_until(lambda: len(claimed(driver, jobs)) == 2 + AHEAD and len(began) == 2)
        may_end.release()
        wait_until(lambda: len(began) == 3 and len(settled) == 1)
        may_end.release(3)  # settled together, as the first call has not returned
        wait_until(lambda: len(began) == 6)
        may_settle[0].set()
        wait_until(lambda: len(settled) == 2)
        assert len(claimed(driver, jobs)) == 1 + AHEAD  # one was settled; more than half of those ahead wait
        may_end.release()
        wait_until(lambda: len(claimed(driver, jobs)) > 1 + AHEAD)
        may_settle[1].set()
        may_end.release(len(jobs))
        assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}


@pytest.mark.usefixtures("fast", "patient")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_stop_releases_waiting_jobs_first_in_one_statement(driver: Driver, kind: str) -> None:
    gate, settled = Gate(), list[str]()
    jobs = [enqueue(driver, kind, max_attempts=1) for _ in range(2 + AHEAD)]

    def note(verb: str, call: Callable[[], Any]) -> Any:
        settled.extend([verb] if verb == "settle" else [])
        return call()

    with running_worker(meddled(driver, note), gate.handlers, concurrency=2) as worker:
        wait_until(lambda: len(gate.began) == 2 and len(claimed(driver, jobs)) == 2 + AHEAD)
        assert worker.running_jobs == 2
        worker.begin_stop(LONG)
        wait_until(lambda: len(claimed(driver, jobs)) == 2)  # while the handlers run
        assert len(settled) == 1
        gate.may_end.set()
        worker.stop(LONG)

    waiting = [job for job_id in jobs if (job := stored(driver, job_id)).status is Status.PENDING]
    assert [job.attempt_count for job in waiting] == [0] * AHEAD
    assert len(gate.began) == 2
    assert {stored(driver, job_id).status for job_id in gate.began} == {Status.SUCCEEDED}


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_jobs_that_wait_behind_long_handlers_run_in_another_worker(driver: Driver, kind: str) -> None:
    long, short = Gate(), Gate()
    short.may_end.set()
    jobs = [enqueue(driver, kind) for _ in range(2 + AHEAD)]

    with running_worker(driver, long.handlers, concurrency=2):
        wait_until(lambda: len(long.began) == 2)
        with running_worker(driver, short.handlers, concurrency=1, prefetch=0):
            rest = [job_id for job_id in jobs if job_id not in long.began]
            assert {ended(driver, job_id).status for job_id in rest} == {Status.SUCCEEDED}
        assert len(long.began) == 2
        long.may_end.set()


@pytest.mark.usefixtures("fast")
def test_a_release_of_a_waiting_job_never_counts_as_an_attempt(driver: Driver) -> None:
    gate = Gate()
    jobs = [enqueue(driver, "sync", max_attempts=1) for _ in range(3)]
    for _ in range(MAX_RELEASES):
        claims = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=3, overdue_after=LEASE)
        driver.settle([Settlement(claim.lease, Outcome.release()) for claim in claims])

    with running_worker(driver, gate.handlers, concurrency=1):
        wait_until(lambda: len(gate.began) == 1)
        rest = [job_id for job_id in jobs if job_id not in gate.began]
        wait_until(lambda: all(len(driver.inspector.attempts([job_id])) == MAX_RELEASES + 1 for job_id in rest))
        released = [stored(driver, job_id) for job_id in rest]
        assert {(job.status, job.attempt_count, job.releases) for job in released} == {
            (Status.PENDING, 0, MAX_RELEASES)
        }
        gate.may_end.set()


@pytest.mark.usefixtures("fast", "patient")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_waiting_job_can_be_canceled(driver: Driver, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[JobId] = []
    gate, stop = Gate(), Execution.stop

    def note(execution: Execution, reason: StopReason) -> None:
        stop(execution, reason)
        stopped.append(execution.claim.job.id)  # also called for handlers that earlier tests abandoned

    monkeypatch.setattr(Execution, "stop", note)
    jobs = [enqueue(driver, kind) for _ in range(3)]

    with running_worker(driver, gate.handlers, concurrency=1):
        wait_until(lambda: len(gate.began) == 1 and len(claimed(driver, jobs)) == 3)
        canceled, other = (job_id for job_id in jobs if job_id not in gate.began)
        driver.cancel([canceled])
        wait_until(lambda: canceled in stopped)
        gate.may_end.set()
        assert ended(driver, canceled).status is Status.CANCELED
        assert ended(driver, other).status is Status.SUCCEEDED

    assert canceled not in gate.began


@pytest.mark.usefixtures("fast", "patient")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_timeout_of_a_waiting_job_counts_from_its_begin(driver: Driver, kind: str) -> None:
    gate, timeout = Gate(), timedelta(seconds=0.5)
    first, second = enqueue(driver, kind), enqueue(driver, kind, timeout=timeout)

    with running_worker(driver, gate.handlers, concurrency=1):
        wait_until(lambda: len(claimed(driver, [first, second])) == 2)
        threading.Event().wait(2 * timeout.total_seconds())
        gate.may_end.set()
        assert ended(driver, second).status is Status.SUCCEEDED

    assert driver.inspector.attempts([second]) == []  # no attempt failed


@pytest.mark.usefixtures("fast", "patient")
def test_a_handler_that_waited_is_stopped_at_its_timeout(driver: Driver) -> None:
    gate, timeout = Gate(), timedelta(seconds=0.1)
    enqueue(driver, "sync")
    second = enqueue(driver, "sleep", timeout=timeout, max_attempts=1)

    async def sleep(_job: Job) -> None:
        await asyncio.sleep(LIMIT_SECONDS)

    with running_worker(driver, {**gate.handlers, "sleep": sleep}, concurrency=1):
        wait_until(lambda: stored(driver, second).status is Status.PROCESSING)
        threading.Event().wait(2 * timeout.total_seconds())
        gate.may_end.set()
        assert ended(driver, second).status is Status.DEAD


@pytest.mark.usefixtures("fast", "patient")
def test_the_leases_of_waiting_jobs_are_extended(driver: Driver) -> None:
    def are_extended() -> bool:
        gate, lease = Gate(), timedelta(seconds=0.6)
        jobs = [enqueue(driver, "sync") for _ in range(3)]

        with running_worker(driver, gate.handlers, concurrency=1, lease=lease):
            wait_until(lambda: len(claimed(driver, jobs)) == 3)
            tokens = [stored(driver, job_id).lease_token for job_id in jobs]
            first_ends_at = [stored(driver, job_id).lease_expires_at for job_id in jobs]
            wait_until(
                lambda: all(
                    (ends_at := stored(driver, job_id).lease_expires_at) is not None
                    and first is not None
                    and ends_at > first + lease
                    for job_id, first in zip(jobs, first_ends_at, strict=True)
                )
            )
            is_same = [stored(driver, job_id).lease_token for job_id in jobs] == tokens
            gate.may_end.set()
            assert {ended(driver, job_id).status for job_id in jobs} == {Status.SUCCEEDED}
            return is_same

    assert any(are_extended() for _ in range(5))  # a busy machine may let some expire


@pytest.mark.usefixtures("fast")
def test_waiting_jobs_are_snoozed_if_no_thread_can_be_started(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("taskharbor.runtime.ThreadRuntime.run_sync", refuse)
    jobs = [enqueue(driver, "sync") for _ in range(5)]

    with running_worker(driver, Gate().handlers, concurrency=1) as worker:
        wait_until(lambda: all(len(driver.inspector.attempts([job_id])) for job_id in jobs))
        worker.stop(NOW)

    outcomes = [each.outcome for job_id in jobs for each in driver.inspector.attempts([job_id])]
    assert set(outcomes) == {AttemptOutcome.SNOOZED}
