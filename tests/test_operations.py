"""Bulk operations: their rate, which process performs them, and what survives its death."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from math import inf, nan
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import MemoryDriver, Status, operations
from taskharbor.core.errors import InvalidRequest, StoreUnavailable
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import AttemptOutcome, NewJob
from taskharbor.core.operations import OperationKind, OperationOptions, OperationState
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settlement
from taskharbor.janitor import Janitor
from taskharbor.operations import (
    CATCH_UP,
    IDLE,
    RETENTION,
    RETRY_SECONDS,
    TURN,
    OperationRequest,
    OperationRunner,
    create,
    preview,
    stop,
)
from taskharbor.testing.clock import ManualClock
from tests.support.postgres import emptied
from tests.support.waiting import wait_until
from tests.support.worker_fleet import Fleet

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.core.operations import Operation, OperationStep, PerformedStep
    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
SECOND: Final = timedelta(seconds=1)
NOW: Final = timedelta(0)
STEP: Final = timedelta(milliseconds=50)


class Rig:
    """A memory store with a clock that a test advances, and any number of runners."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.driver = MemoryDriver(clock=self.clock)
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, by: timedelta) -> None:
        self.seconds += by.total_seconds()
        self.clock.advance(by)

    def runner(self) -> OperationRunner:
        return OperationRunner(self.driver, self.monotonic)

    def operation(self, operation: Operation) -> Operation:
        return self.driver.operations.get([operation.id])[operation.id]

    def run(self, operation: Operation, *, until: timedelta = timedelta(hours=1)) -> Operation:
        """Tick a runner, as a janitor does, until the operation has ended or *until* has passed."""
        runner, ends = self.runner(), self.clock.now() + until
        while self.operation(operation).state.is_open and self.clock.now() < ends:
            self.advance(max(runner.tick(), STEP))
        return self.operation(operation)


def make_running(driver: Driver, count: int, *, queue: str = "default") -> list[Claim]:
    """Insert jobs and reserve them. No other job may be due."""
    fields: dict[str, Any] = {"type": "nothing.handles.it", "queue": queue, "payload": b"{}", "max_attempts": 1}
    now = driver.inspector.now()
    driver.insert([NewJob(id=new_job_id(), created_at=now, **fields) for _ in range(count)])
    return reserve(driver, count, queue=queue)


def reserve(driver: Driver, count: int, *, queue: str = "default") -> list[Claim]:
    return driver.reserve(queue, token=new_token(), worker="w", lease=LEASE, limit=count, overdue_after=LEASE)


def make_dead(driver: Driver, count: int, *, queue: str = "default") -> list[JobId]:
    claims = make_running(driver, count, queue=queue)
    driver.settle([Settlement(claim.lease, Outcome.fail("hopeless")) for claim in claims])
    return [claim.job.id for claim in claims]


def start(driver: Driver, kind: OperationKind = OperationKind.REQUEUE, **fields: Any) -> Operation:
    given: dict[str, Any] = {"kind": kind, "by": "ops", "filter": JobFilter()} | fields
    request = OperationRequest(**given)
    operation, _ = create(driver, request, preview(driver, request), starts_in=NOW)
    return operation


def statuses(driver: Driver, ids: Sequence[JobId]) -> set[Status]:
    return {job.status for job in driver.inspector.get(ids).values()}


def test_a_thousand_jobs_at_50_a_second_take_twenty_seconds_give_or_take_a_tenth() -> None:
    rig = Rig()
    ids = make_dead(rig.driver, 1_000)
    operation = start(rig.driver, options=OperationOptions(rate=50))

    done = rig.run(operation)

    assert (done.state, done.done, done.refused) == (OperationState.DONE, 1_000, {})
    assert statuses(rig.driver, ids) == {Status.PENDING}
    assert done.started_at is not None
    assert done.ended_at is not None
    assert 18 <= (done.ended_at - operation.created_at).total_seconds() <= 22


@pytest.mark.parametrize("rate", [0.5, 3, 10_000])
def test_no_second_exceeds_the_rate(rate: float) -> None:
    rig = Rig()
    make_dead(rig.driver, 20)
    operation = start(rig.driver, options=OperationOptions(rate=rate))

    done = rig.run(operation)

    assert done.ended_at is not None
    expected = 19 / rate
    assert expected * 0.9 - 0.3 <= (done.ended_at - operation.created_at).total_seconds() <= expected * 1.1 + 0.3


def test_time_without_a_runner_is_made_up_for_only_in_part() -> None:
    rig = Rig()
    make_dead(rig.driver, 100)
    operation = start(rig.driver, options=OperationOptions(rate=4))
    rig.advance(timedelta(hours=1))

    part = rig.run(operation, until=4 * SECOND)

    assert (CATCH_UP + 3 * SECOND).total_seconds() * 4 <= part.done <= (CATCH_UP + 6 * SECOND).total_seconds() * 4


def test_an_unpaced_operation_takes_whole_batches() -> None:
    rig = Rig()
    make_dead(rig.driver, 1_001)

    done = rig.run(start(rig.driver))

    assert (done.done, done.step) == (1_001, 3)


def test_a_sparse_filter_is_searched_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_PAGES", 2)
    rig = Rig()
    wanted = make_dead(rig.driver, 1, queue="mail")
    make_dead(rig.driver, 2_500)
    operation = start(rig.driver, filter=JobFilter(queue="mail"))

    done = rig.run(operation)

    assert (operation.matched, operation.is_capped) == (0, True)
    assert (done.state, done.done) == (OperationState.DONE, 1)
    assert statuses(rig.driver, wanted) == {Status.PENDING}


def test_a_preview_stops_counting_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_COUNTED", 20)
    rig = Rig()
    make_dead(rig.driver, 21)
    request = OperationRequest(kind=OperationKind.REQUEUE, by="ops", filter=JobFilter())

    found = preview(rig.driver, request)

    assert (found.matched, found.is_capped, len(found.sample)) == (20, True, 5)


def test_jobs_that_die_during_the_operation_are_left_out() -> None:
    rig = Rig()
    running = make_running(rig.driver, 1)
    early = make_dead(rig.driver, 20)
    operation = start(rig.driver, options=OperationOptions(rate=4))
    rig.run(operation, until=SECOND)
    again = [job_id for job_id in early if statuses(rig.driver, [job_id]) == {Status.PENDING}]
    for claim in (*running, *reserve(rig.driver, len(again))):
        rig.driver.settle([Settlement(claim.lease, Outcome.fail("hopeless"))])
    late = [*make_dead(rig.driver, 5), running[0].job.id]

    done = rig.run(operation)

    assert 0 < len(again) < 20
    assert (done.done, done.refused) == (20, {})
    assert statuses(rig.driver, [*again, *late]) == {Status.DEAD}
    requeues = [each for each in rig.driver.inspector.attempts(early) if each.outcome is AttemptOutcome.REQUEUED]
    assert sorted(each.job_id for each in requeues) == sorted(early)


def test_an_operation_stopped_in_the_middle_changes_nothing_more() -> None:
    rig = Rig()
    ids = make_dead(rig.driver, 100)
    operation = start(rig.driver, options=OperationOptions(rate=10))
    rig.run(operation, until=2 * SECOND)

    stopped = stop(rig.driver, operation.id, by="ana")
    later = rig.run(operation)

    assert 0 < stopped.done < 100
    assert later == stopped
    assert sum(job.status is Status.PENDING for job in rig.driver.inspector.get(ids).values()) == stopped.done


def test_one_process_at_a_time_performs_steps_and_another_takes_over() -> None:
    rig = Rig()
    make_dead(rig.driver, 1_001)
    operation = start(rig.driver)
    first, second = rig.runner(), rig.runner()

    first.tick()
    second.tick()
    taken = rig.operation(operation).step
    rig.advance(TURN)
    second.tick()
    first.tick()

    assert (taken, rig.operation(operation).step) == (1, 2)


def test_a_runner_that_finds_nothing_to_do_waits() -> None:
    rig = Rig()
    runner = rig.runner()
    make_dead(rig.driver, 1)

    idle = runner.tick()
    request = OperationRequest(kind=OperationKind.REQUEUE, by="ops", filter=JobFilter())
    create(rig.driver, request, preview(rig.driver, request), starts_in=SECOND / 2)

    assert (idle, runner.tick()) == (IDLE, SECOND / 2)


def test_a_purge_gives_up_events_only_if_requested() -> None:
    rig = Rig()
    rig.driver.maintenance.claim_outbox(limit=1, lock=LEASE)  # so that the store has a publisher
    ids = make_dead(rig.driver, 3)
    rig.advance(SECOND)

    kept = rig.run(start(rig.driver, OperationKind.PURGE))
    gone = rig.run(start(rig.driver, OperationKind.PURGE, options=OperationOptions(gives_up=True)))

    assert (kept.done, kept.refused) == (0, {"unpublished": 3})
    assert (gone.done, gone.refused) == (3, {})
    assert rig.driver.inspector.get(ids) == {}


def test_a_janitor_performs_operations_and_prunes_old_ones() -> None:
    rig = Rig()
    [job_id] = make_dead(rig.driver, 1)
    operation = start(rig.driver)
    janitor = Janitor(_runtime(rig), rig.driver, lease=LEASE)

    janitor.tick()
    done = rig.operation(operation)
    rig.advance(RETENTION - SECOND)
    janitor.tick()
    kept = operation.id in rig.driver.operations.get([operation.id])
    rig.advance(timedelta(minutes=1))
    janitor.tick()

    assert (done.state, statuses(rig.driver, [job_id])) == (OperationState.DONE, {Status.PENDING})
    assert (kept, rig.driver.operations.get([operation.id])) == (True, {})


def _runtime(rig: Rig) -> Runtime:
    return rig  # type: ignore[return-value]


def test_killed_runners_leave_no_job_out_and_change_none_twice(tmp_path: Path) -> None:
    with Fleet.at(emptied(), tmp_path) as fleet:
        ids = make_dead(fleet.driver, 400)
        victims = [fleet.start(fatal=["operations.perform", when, nth]) for when, nth in (("before", 1), ("after", 2))]
        operation = start(fleet.driver, options=OperationOptions(rate=200))
        for _ in victims:
            alive = sum(victim.poll() is None for victim in victims)
            wait_until(lambda alive=alive: sum(victim.poll() is None for victim in victims) < alive)  # type: ignore[misc]
            fleet.make_duties_due()  # so that the next one need not wait for the end of the turn

        assert fleet.driver.operations.get([operation.id])[operation.id].state.is_open
        runner = OperationRunner(fleet.driver, time.monotonic)
        wait_until(lambda: _has_ended(fleet.driver, operation, runner))

        done = fleet.driver.operations.get([operation.id])[operation.id]
        assert (done.state, done.done, done.refused) == (OperationState.DONE, 400, {})
        requeues = [each for each in fleet.driver.inspector.attempts(ids) if each.outcome is AttemptOutcome.REQUEUED]
        assert sorted(each.job_id for each in requeues) == sorted(ids)
        assert statuses(fleet.driver, ids) == {Status.PENDING}


def _has_ended(driver: Driver, operation: Operation, runner: OperationRunner) -> bool:
    runner.tick()
    return not driver.operations.get([operation.id])[operation.id].state.is_open


class FaultyOperations:
    """The operations of a store, in which each step of one of them raises an error."""

    def __init__(self, driver: MemoryDriver, broken: Operation, error: Exception) -> None:
        self._operations, self._broken, self._error = driver.operations, broken, error
        self.tries = 0

    def perform(self, step: OperationStep) -> PerformedStep | None:
        if step.operation.id != self._broken.id:
            return self._operations.perform(step)
        self.tries += 1
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)


@pytest.mark.parametrize("error", [ValueError("integer out of range"), StoreUnavailable("statement timeout")])
def test_an_operation_whose_steps_fail_does_not_hold_up_others(error: Exception) -> None:
    rig = Rig()
    ids = make_dead(rig.driver, 10)
    broken = start(rig.driver, OperationKind.REQUEUE, filter=JobFilter(queue="other"))
    good = start(rig.driver, OperationKind.REQUEUE)
    faulty = rig.driver.operations = FaultyOperations(rig.driver, broken, error)  # type: ignore[assignment]
    janitor = Janitor(_runtime(rig), rig.driver, lease=LEASE)

    for _ in range(3):
        janitor.tick()

    assert rig.operation(good).state is OperationState.DONE
    assert statuses(rig.driver, ids) == {Status.PENDING}
    assert (rig.operation(broken).state, faulty.tries) == (OperationState.WAITING, 1)


def test_an_operation_whose_step_failed_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    make_dead(rig.driver, 1)
    operation = start(rig.driver)
    working = rig.driver.operations
    rig.driver.operations = FaultyOperations(rig.driver, operation, ValueError("no"))  # type: ignore[assignment]
    runner = rig.runner()
    runner.tick()

    rig.driver.operations = working
    early = runner.tick()
    rig.advance(timedelta(seconds=RETRY_SECONDS))
    runner.tick()

    assert early == IDLE
    assert rig.operation(operation).state is OperationState.DONE
    assert runner.errors == {}
    assert f"operation {operation.id} failed; retrying" in caplog.text


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (OperationKind.RESCHEDULE, {"priority": 10**11}),
        (OperationKind.RESCHEDULE, {"scheduled_for": datetime(9999, 12, 31, tzinfo=UTC)}),
        (OperationKind.RESCHEDULE, {"scheduled_for": datetime(2030, 1, 1)}),  # noqa: DTZ001  without a time zone
        (OperationKind.RESCHEDULE, {"delay": timedelta.max}),
        (OperationKind.REQUEUE, {"delay": -SECOND}),
        (OperationKind.REQUEUE, {"budget": 0}),
        (OperationKind.REQUEUE, {"budget": 2**31}),
        (OperationKind.CANCEL, {"rate": 1e-300}),
        (OperationKind.CANCEL, {"rate": inf}),
        (OperationKind.CANCEL, {"rate": nan}),
        (OperationKind.CANCEL, {"rate": -1}),
    ],
)
def test_an_operation_that_no_store_could_perform_is_refused(kind: OperationKind, options: dict[str, Any]) -> None:
    rig = Rig()

    with pytest.raises(InvalidRequest):
        start(rig.driver, kind, options=OperationOptions(**options))

    assert rig.driver.operations.recent(limit=1) == []


def test_the_end_of_an_operation_whose_reply_was_lost_is_in_the_audit_log_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    make_dead(rig.driver, 1)
    operation = start(rig.driver)
    perform = rig.driver.operations.perform
    monkeypatch.setattr(rig.driver.operations, "perform", lambda step: perform(step) and None)

    rig.runner().tick()
    rig.runner().tick()

    assert rig.operation(operation).state is OperationState.DONE
    entries = [entry.action for entry in rig.driver.inspector.audit(limit=10) if entry.target == str(operation.id)]
    assert sorted(entries) == ["operations.create", "operations.end"]
