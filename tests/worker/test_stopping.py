"""Attempts that must stop early: timeouts, cancels, lost leases."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.hooks import AttemptLost
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement, Transitioned
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.worker import AttemptStopped
from tests.support.postgres import emptied
from tests.support.waiting import wait_until
from tests.support.worker_rig import (
    LIMIT_SECONDS,
    SHORT,
    Hold,
    Outage,
    ended,
    enqueue,
    meddled,
    running_worker,
    stored,
    with_messages,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taskharbor.core.model import Claim, Job
    from taskharbor.drivers.base import Driver
    from taskharbor.worker import Context

BRIEF: Final = timedelta(milliseconds=500)  # a busy machine may take a while to start the handler
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)


class Endless:
    """A handler that runs until it is stopped, and records what it saw."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.stopped = threading.Event()
        self.may_end = threading.Event()

    def sync(self, _job: Job, ctx: Context) -> None:
        self.began.set()
        try:
            while not self.may_end.wait(0.005):
                ctx.raise_if_cancelled()
        except AttemptStopped:
            self.stopped.set()
            raise

    async def coroutine(self, _job: Job, _ctx: Context) -> None:
        self.began.set()
        try:
            await asyncio.sleep(LIMIT_SECONDS)
        except asyncio.CancelledError:
            self.stopped.set()
            raise

    def uninterruptible(self, _job: Job) -> str:
        self.began.set()
        assert self.may_end.wait(LIMIT_SECONDS)
        return "done"

    def of(self, kind: str) -> Callable[..., Any]:
        return self.coroutine if kind == "async" else self.sync


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_handler_that_runs_longer_than_its_job_may_is_stopped(driver: Driver, kind: str) -> None:
    endless = Endless()

    with running_worker(driver, {"run": endless.of(kind)}):
        job_id = enqueue(driver, "run", timeout=BRIEF, max_attempts=1)
        job = ended(driver, job_id)

    assert endless.stopped.is_set()
    assert job.status is Status.DEAD
    assert "ran longer than its timeout" in (job.last_error or "")
    assert [each.outcome for each in driver.inspector.attempts([job_id])] == [AttemptOutcome.TIMED_OUT]


def test_a_handler_within_its_timeout_is_left_alone(driver: Driver) -> None:
    with running_worker(driver, {"run": lambda _job: None}):
        assert ended(driver, enqueue(driver, "run", timeout=timedelta(seconds=20))).status is Status.SUCCEEDED


def test_a_cancel_reaches_a_running_handler_long_before_the_next_heartbeat(driver: Driver, kind: str) -> None:
    endless = Endless()

    with running_worker(driver, {"run": endless.of(kind)}, lease=HOUR):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        assert driver.cancel([job_id]) == [Transitioned(job_id, Status.PROCESSING)]
        job = ended(driver, job_id)

    assert endless.stopped.is_set()
    assert job.status is Status.CANCELED
    assert [each.outcome for each in driver.inspector.attempts([job_id])] == [AttemptOutcome.CANCELED]


def test_a_cancel_of_one_job_does_not_reach_the_handler_of_another(driver: Driver, kind: str) -> None:
    endless, began, may_end = Endless(), threading.Event(), threading.Event()
    canceled: list[bool] = []

    def watch(_job: Job, ctx: Context) -> None:
        began.set()
        assert may_end.wait(LIMIT_SECONDS)
        canceled.append(ctx.is_cancelled)

    async def watch_async(_job: Job, ctx: Context) -> None:
        began.set()
        try:
            while not may_end.is_set():  # noqa: ASYNC110  a threading event
                await asyncio.sleep(0.005)
        finally:
            canceled.append(ctx.is_cancelled)

    handlers = {"run": endless.of(kind), "watch": watch_async if kind == "async" else watch}
    with running_worker(driver, handlers, lease=HOUR):
        other = enqueue(driver, "watch")
        assert began.wait(LIMIT_SECONDS)  # it is claimed first, and would be stopped first
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        driver.cancel([job_id])
        assert ended(driver, job_id).status is Status.CANCELED
        may_end.set()
        job = ended(driver, other)

    assert canceled == [False]
    assert job.status is Status.SUCCEEDED


@pytest.mark.parametrize("by_messages", [False, True], ids=["polling", "by messages"])
@pytest.mark.parametrize("is_postgres", [False, True], ids=["sqlite", "postgres"])
def test_a_cancel_by_another_process_reaches_a_running_handler_at_once(
    *, is_postgres: bool, by_messages: bool, tmp_path: Path
) -> None:
    endless, url = Endless(), emptied() if is_postgres else ""

    def open_driver() -> Driver:
        return PostgresDriver(url) if is_postgres else SqliteDriver(tmp_path / "jobs.db")

    with closing(open_driver()) as driver, closing(open_driver()) as elsewhere, ExitStack() as stack:
        if by_messages:
            stack.enter_context(with_messages(driver))
        stack.enter_context(running_worker(driver, {"run": endless.sync}, lease=HOUR))
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)

        elsewhere.cancel([job_id])

        assert ended(driver, job_id).status is Status.CANCELED


def test_a_cancel_whose_notification_is_lost_reaches_a_handler_with_the_next_heartbeat(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = Endless()
    listen = driver.listen
    monkeypatch.setattr(driver, "listen", lambda queues, **_: listen(queues))

    with running_worker(driver, {"run": endless.sync}, lease=SHORT):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        driver.cancel([job_id])

        assert ended(driver, job_id).status is Status.CANCELED


def test_cancels_during_a_read_of_the_requests_share_the_next_read() -> None:
    endless, hold, driver = Endless(), Hold("cancel_requested"), MemoryDriver()
    reads: list[str] = []

    def count(verb: str, call: Callable[[], Any]) -> Any:
        reads.extend([verb] if verb == "cancel_requested" else [])
        return hold(verb, call)

    with running_worker(meddled(driver, count), {"run": endless.sync}, lease=HOUR, concurrency=30):
        job_ids = [enqueue(driver, "run") for _ in range(30)]
        wait_until(lambda: all(stored(driver, job_id).status is Status.PROCESSING for job_id in job_ids))
        hold.is_on.set()
        driver.cancel(job_ids[:1])
        assert hold.came.wait(LIMIT_SECONDS)
        for job_id in job_ids[1:]:
            driver.cancel([job_id])
        hold.may_go.set()

        assert {ended(driver, job_id).status for job_id in job_ids} == {Status.CANCELED}
    assert len(reads) <= 4


def test_a_success_wins_over_a_cancel_that_was_requested(driver: Driver) -> None:
    endless = Endless()

    with running_worker(driver, {"run": endless.uninterruptible}):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        driver.cancel([job_id])
        endless.may_end.set()

        assert ended(driver, job_id).status is Status.SUCCEEDED


def test_a_cancellation_that_comes_before_a_tasks_first_step_is_not_lost(driver: Driver) -> None:
    began, ran, may_go = threading.Event(), threading.Event(), threading.Event()

    async def block(_job: Job) -> None:
        began.set()
        may_go.wait(LIMIT_SECONDS)  # blocks the event loop

    async def run(_job: Job) -> None:
        ran.set()

    with running_worker(driver, {"block": block, "run": run}, lease=SHORT):
        blocker = enqueue(driver, "block")
        assert began.wait(LIMIT_SECONDS)
        job_id = enqueue(driver, "run")
        wait_until(lambda: stored(driver, job_id).status is Status.PROCESSING)
        driver.cancel([job_id])
        for _ in range(2):  # the first heartbeat reads the cancel; before the second the handler is stopped
            _wait_for_heartbeat(driver, job_id)
        may_go.set()
        job = ended(driver, job_id)
        assert ended(driver, blocker).status is Status.SUCCEEDED

    assert job.status is Status.CANCELED
    assert not ran.is_set()


def _wait_for_heartbeat(driver: Driver, job_id: Any) -> None:
    expires_at = stored(driver, job_id).lease_expires_at
    wait_until(lambda: stored(driver, job_id).lease_expires_at != expires_at)


def _reclaim(driver: Driver) -> Claim:
    """Reclaim the job of a silent worker after its lease has expired."""
    reclaimed: list[Claim] = []

    def reserve() -> bool:
        reclaimed.extend(
            driver.reserve("default", token=new_token(), worker="other", lease=MINUTE, limit=1, overdue_after=MINUTE)
        )
        return bool(reclaimed)

    wait_until(reserve)
    return reclaimed[0]


def test_a_handler_whose_lease_was_lost_is_stopped_at_once_and_records_nothing(driver: Driver, kind: str) -> None:
    endless, hold, events = Endless(), Hold("extend"), list[Any]()
    hold.is_on.set()
    silent = meddled(driver, hold)

    with running_worker(
        silent, {"run": endless.of(kind)}, lease=SHORT, concurrency=1, janitor=False, hooks=[events.append]
    ):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        reclaimed = _reclaim(driver)
        hold.may_go.set()
        assert endless.stopped.wait(LIMIT_SECONDS)
        wait_until(lambda: any(isinstance(event, AttemptLost) for event in events))
        job = stored(driver, job_id)

    assert (job.status, job.lease_token, job.attempt_count) == (Status.PROCESSING, reclaimed.lease.token, 2)
    assert [each.outcome for each in driver.inspector.attempts([job_id])] == [AttemptOutcome.LOST]
    assert driver.settle([Settlement(reclaimed.lease, Outcome.ack(b"2"))]) == [Settled(job_id, Status.SUCCEEDED)]


def test_what_a_handler_returns_after_its_lease_was_lost_is_thrown_away(driver: Driver) -> None:
    endless, hold, events = Endless(), Hold("extend"), list[Any]()
    hold.is_on.set()

    with running_worker(
        meddled(driver, hold),
        {"run": endless.uninterruptible},
        lease=SHORT,
        concurrency=1,
        janitor=False,
        hooks=[events.append],
    ):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        reclaimed = _reclaim(driver)
        endless.may_end.set()
        wait_until(lambda: any(isinstance(event, AttemptLost) for event in events))
        hold.may_go.set()

    driver.settle([Settlement(reclaimed.lease, Outcome.ack(b'"of the other"'))])
    assert stored(driver, job_id).result == b'"of the other"'


def test_a_handler_is_stopped_before_its_lease_ends_when_the_store_is_away(kind: str) -> None:
    def is_stopped_in_time() -> bool:
        driver, endless, outage = MemoryDriver(), Endless(), Outage("extend")
        outage.begin()
        with running_worker(
            meddled(driver, outage), {"run": endless.of(kind)}, lease=SHORT, concurrency=1, janitor=False
        ):
            job_id = enqueue(driver, "run")
            assert endless.stopped.wait(LIMIT_SECONDS)
            now, expires_at = driver.inspector.now(), stored(driver, job_id).lease_expires_at
        is_retried = len(outage.refused) > 1
        return is_retried and expires_at is not None and now < expires_at

    assert any(is_stopped_in_time() for _ in range(10))  # a busy machine may take longer than what is left of a lease


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_beat_that_fails_now_and_then_costs_no_lease(driver: Driver) -> None:
    endless, outage = Endless(), Outage("extend")

    # Long enough for a busy machine: what is left of it after a beat has failed is much less.
    with running_worker(meddled(driver, outage), {"run": endless.uninterruptible}, lease=5 * SHORT, concurrency=1):
        job_id = enqueue(driver, "run")
        assert endless.began.wait(LIMIT_SECONDS)
        for _ in range(3):
            outage.begin()
            beats = len(outage.refused)
            wait_until(lambda beats=beats: len(outage.refused) > beats)  # type: ignore[misc]
            outage.end()
            expires_at = stored(driver, job_id).lease_expires_at
            wait_until(lambda expires_at=expires_at: stored(driver, job_id).lease_expires_at != expires_at)  # type: ignore[misc]
        endless.may_end.set()

        assert ended(driver, job_id).attempt_count == 1
