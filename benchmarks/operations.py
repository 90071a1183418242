"""Bulk operations on PostgreSQL: how exactly they keep their rate, what killed runners leave, and how soon they stop.

An operation that takes over a tenth more or less than its time raises, and so does one that changes a job twice, leaves
one out, or changes one after its stop. Then there are no figures.
"""

from __future__ import annotations

import json
import signal
import time
from random import Random
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import AttemptOutcome
from taskharbor.core.operations import OperationOptions, OperationState
from taskharbor.core.states import Status
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.operations import stop
from tests.support.waiting import wait_until
from tests.test_operations import make_dead, start
from tests.worker.test_crashes import served

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.operations import Operation
    from tests.support.worker_fleet import Fleet

JOBS: Final = 10_000
RATE: Final = 500.0
TOLERANCE: Final = 0.1
WORKERS: Final = 2
KILLS: Final = 10
STOP_SECONDS: Final = 2.0
LIMIT_SECONDS: Final = 600.0


def figures() -> dict[str, object]:
    return {
        "jobs": JOBS,
        "jobs a second": RATE,
        "at its rate": _at_its_rate(),
        "with killed runners": _with_kills(),
        "stopped": _stopped(),
    }


def _at_its_rate() -> dict[str, Any]:
    with served() as (_, fleet):
        ids = _dead(fleet)
        for _ in range(WORKERS):
            fleet.start()
        done = _ended(fleet, _start(fleet))
        _check(fleet, ids, done)
    assert done.ended_at is not None
    took = (done.ended_at - done.created_at).total_seconds()
    expected = JOBS / RATE
    assert abs(took / expected - 1) <= TOLERANCE, f"it took {took:.1f} s instead of {expected:.1f} s"
    return {"seconds": round(took, 2), "of its time": round(took / expected, 3), "steps": done.step}


def _with_kills() -> dict[str, Any]:
    random = Random(7)
    with served() as (_, fleet):
        ids = _dead(fleet)
        running = [fleet.start() for _ in range(WORKERS)]
        operation = _start(fleet)
        for number in range(1, KILLS + 1):
            aim = number * JOBS // (KILLS + 1)
            wait_until(lambda aim=aim: _stored(fleet, operation).done >= aim, limit=LIMIT_SECONDS)  # type: ignore[misc]
            time.sleep(random.uniform(0, 0.3))  # noqa: TID251  at any time of a step, not only at its end
            for victim in running:  # whichever of them performs the steps
                victim.send_signal(signal.SIGKILL)
            running = [fleet.start() for _ in range(WORKERS)]
        done = _ended(fleet, operation)
        _check(fleet, ids, done)
    assert done.ended_at is not None
    return {"kills": KILLS, "seconds": round((done.ended_at - done.created_at).total_seconds(), 2), "steps": done.step}


def _stopped() -> dict[str, Any]:
    with served() as (_, fleet):
        ids = _dead(fleet)
        for _ in range(WORKERS):
            fleet.start()
        operation = _start(fleet)
        wait_until(lambda: _stored(fleet, operation).done >= JOBS / 4, limit=LIMIT_SECONDS)
        began_at = time.monotonic()
        stopped = stop(fleet.driver, operation.id, by="benchmark")
        took = time.monotonic() - began_at
        changed = _changed(fleet, ids)
        time.sleep(2 * STOP_SECONDS)  # noqa: TID251  there is no event to wait for
        assert _changed(fleet, ids) == changed == stopped.done, "a job was changed after the stop"
    assert took < STOP_SECONDS, f"the stop took {took:.1f} s"
    return {"milliseconds": round(1_000 * took, 1), "changed before": changed, "changed after": 0}


def _dead(fleet: Fleet) -> list[JobId]:
    return [job_id for _ in range(JOBS // STORE_BATCH) for job_id in make_dead(fleet.driver, STORE_BATCH)]


def _start(fleet: Fleet) -> Operation:
    return start(fleet.driver, options=OperationOptions(rate=RATE))


def _stored(fleet: Fleet, operation: Operation) -> Operation:
    return fleet.driver.operations.get([operation.id])[operation.id]


def _ended(fleet: Fleet, operation: Operation) -> Operation:
    wait_until(lambda: not _stored(fleet, operation).state.is_open, limit=LIMIT_SECONDS)
    return _stored(fleet, operation)


def _check(fleet: Fleet, ids: list[JobId], done: Operation) -> None:
    """Check that every job was changed once, by the jobs' own history."""
    assert (done.state, done.done, done.refused) == (OperationState.DONE, len(ids), {}), done
    attempts = fleet.driver.inspector.attempts(ids)
    requeued = [each.job_id for each in attempts if each.outcome is AttemptOutcome.REQUEUED]
    assert sorted(requeued) == sorted(ids), "a job was requeued twice, or left out"


def _changed(fleet: Fleet, ids: list[JobId]) -> int:
    return sum(job.status is Status.PENDING for job in fleet.driver.inspector.summaries(ids).values())


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
