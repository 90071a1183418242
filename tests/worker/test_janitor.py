"""Duties that one of many processes performs, and the clock guard."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.model import AttemptOutcome, AuditEntry
from taskharbor.core.states import Status
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.janitor import ClockGuard, Janitor
from taskharbor.runtime import ThreadRuntime
from taskharbor.testing.clock import ManualClock
from tests.support.waiting import wait_until
from tests.support.worker_rig import SHORT, Outage, ended, enqueue, meddled, running_worker, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.drivers.base import Driver
    from taskharbor.runtime import Runtime

LEASE: Final = timedelta(seconds=30)
SOON: Final = timedelta(milliseconds=100)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)


class Calls:
    """Counts the calls of each verb."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()

    def __call__(self, verb: str, call: Callable[[], Any]) -> Any:
        self.count[verb] += 1
        return call()


class Clockwork:
    """A runtime and a store clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.store = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))

    def monotonic(self) -> float:
        return self.seconds

    def advance(self, time: timedelta) -> None:
        self.seconds += time.total_seconds()
        self.store.advance(time)

    @property
    def runtime(self) -> Runtime:
        return cast("Runtime", self)


def _guard(clockwork: Clockwork, driver: Driver) -> ClockGuard:
    return ClockGuard(clockwork.runtime, driver, lease=LEASE)


def _hold(driver: Driver, lease: timedelta) -> None:
    driver.reserve("default", token=new_token(), worker="w", lease=lease, limit=10, overdue_after=HOUR)


def test_each_duty_is_done_once_in_its_period_however_many_janitors_there_are(driver: Driver) -> None:
    calls = Calls()
    runtime = ThreadRuntime(sync_threads=1)
    janitors = [Janitor(runtime, meddled(driver, calls), lease=LEASE, period=HOUR) for _ in range(3)]

    for _ in range(3):
        for janitor in janitors:
            janitor.tick()

    duties = ("expire", "bury", "prune", "roll_up", "prune_audit", "prune_workers")
    assert {name: calls.count[name] for name in duties} == dict.fromkeys(duties, 1)


def test_the_audit_is_kept_for_ninety_days() -> None:
    clockwork = Clockwork()
    driver = MemoryDriver(clock=clockwork.store)
    janitor = Janitor(clockwork.runtime, driver, lease=LEASE)
    # More than one batch, as after an outage of the janitor.
    entries = [AuditEntry(id=new_token(), actor="ann", action="cancel", target="7") for _ in range(STORE_BATCH + 1)]
    driver.control.record_audit(entries)

    kept = []
    for passed in (timedelta(days=90) - MINUTE, MINUTE):
        clockwork.advance(passed)
        janitor.tick()
        kept.append(len(driver.inspector.audit(limit=2 * STORE_BATCH)))

    assert kept == [STORE_BATCH + 1, 0]


def test_several_workers_share_the_duties(driver: Driver) -> None:
    calls = Calls()
    shared = meddled(driver, calls)
    start = driver.inspector.now()

    with (
        running_worker(shared, {}, lease=SHORT),
        running_worker(shared, {}, lease=SHORT),
        running_worker(shared, {}, lease=SHORT),
    ):
        wait_until(lambda: calls.count["expire"] >= 3)

    passed = driver.inspector.now() - start
    assert calls.count["expire"] <= passed / SHORT + 2
    assert calls.count["claim_duty"] > calls.count["expire"]


def test_an_exhausted_job_of_a_dead_worker_becomes_a_dead_letter(driver: Driver) -> None:
    job_id = enqueue(driver, "run", max_attempts=1)
    _hold(driver, SOON)

    with running_worker(driver, {}, lease=SHORT):
        job = ended(driver, job_id)

    assert (job.status, job.dead_reason) == (Status.DEAD, "attempts exhausted")
    assert [each.outcome for each in driver.inspector.attempts([job_id])] == [AttemptOutcome.LOST]
    assert len(driver.inspector.outbox([job_id])) == 1


@pytest.mark.parametrize("driver", ["memory"], indirect=True)
def test_a_duty_that_fails_does_not_keep_the_others_from_being_done(driver: Driver) -> None:
    calls = Calls()

    def fail(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "bury":
            raise ValueError("a bug of ours")
        return calls(verb, call)

    with running_worker(meddled(driver, fail), {}, lease=SHORT):
        wait_until(lambda: min(calls.count[name] for name in ("expire", "prune", "roll_up")) > 0)


def test_a_store_that_is_away_ends_no_janitor(driver: Driver) -> None:
    outage = Outage()
    outage.begin()
    job_id = enqueue(driver, "run", max_attempts=1)
    _hold(driver, SOON)

    with running_worker(meddled(driver, outage), {}, lease=SHORT):
        wait_until(lambda: outage.refused.count("claim_duty") > 1)
        outage.end()

        assert ended(driver, job_id).status is Status.DEAD


def test_no_lease_is_reclaimed_before_the_clocks_were_compared() -> None:
    clockwork = Clockwork()
    driver = MemoryDriver(clock=clockwork.store)
    guard = _guard(clockwork, driver)
    before = guard.may_reclaim()
    guard.tick()
    after_one_reading = guard.may_reclaim()
    clockwork.advance(LEASE / 3)
    guard.tick()

    assert (before, after_one_reading, guard.may_reclaim()) == (False, False, True)


def test_a_janitor_that_has_not_compared_the_clocks_leaves_ended_leases_to_others() -> None:
    clockwork = Clockwork()
    driver = MemoryDriver(clock=clockwork.store)
    job_id = enqueue(driver, "run")
    _hold(driver, LEASE)
    janitor = Janitor(clockwork.runtime, driver, lease=LEASE)
    clockwork.advance(LEASE)
    janitor.tick()
    status = stored(driver, job_id).status
    clockwork.advance(LEASE / 3)
    janitor.tick()

    assert (status, stored(driver, job_id).status) == (Status.PROCESSING, Status.FAILED)


def test_after_a_jump_of_the_stores_clock_no_live_lease_is_taken() -> None:
    clockwork = Clockwork()
    driver = MemoryDriver(clock=clockwork.store)
    job_id = enqueue(driver, "run")
    janitor = Janitor(clockwork.runtime, driver, lease=LEASE)
    janitor.tick()
    clockwork.advance(LEASE / 3)
    janitor.tick()
    _hold(driver, LEASE)
    clockwork.store.advance(HOUR)
    clockwork.advance(LEASE / 3)
    janitor.tick()

    assert stored(driver, job_id).status is Status.PROCESSING


def test_a_slow_reply_or_a_pause_of_the_process_is_no_jump() -> None:
    clockwork, calls = Clockwork(), Calls()

    def delay(verb: str, call: Callable[[], Any]) -> Any:
        answer = calls(verb, call)
        if verb == "now" and calls.count["now"] == 2:
            clockwork.advance(3 * LEASE)  # suspended before it used the answer
        return answer

    driver = meddled(MemoryDriver(clock=clockwork.store), delay)
    guard = _guard(clockwork, driver)
    for _ in range(4):
        guard.tick()
        clockwork.advance(LEASE / 3)

    assert calls.count["report_clock_jump"] == 0


def test_a_jump_that_could_not_be_reported_is_reported_later() -> None:
    clockwork, reports = Clockwork(), list[str]()

    def refuse_once(verb: str, call: Callable[[], Any]) -> Any:
        if verb == "report_clock_jump":
            reports.append(verb)
            if len(reports) == 1:
                raise StoreUnavailable("unplugged by a test")
        return call()

    guard = _guard(clockwork, meddled(MemoryDriver(clock=clockwork.store), refuse_once))
    guard.tick()
    clockwork.store.advance(HOUR)
    clockwork.advance(LEASE / 3)
    guard.tick()
    may_reclaim = guard.may_reclaim()
    clockwork.advance(LEASE / 3)
    guard.tick()

    assert not may_reclaim
    assert len(reports) == 2
