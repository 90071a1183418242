"""Leases of handlers that block their event loop or the whole process."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import UsageError
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status
from taskharbor.drivers.memory import MemoryDriver
from tests.support.waiting import wait_until
from tests.support.worker_rig import LIMIT_SECONDS, LONG, SHORT, ended, enqueue, running_worker, stored, worker_for

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.base import Driver

THREE_LEASES_SECONDS: Final = 3 * SHORT.total_seconds()


def _compute(seconds: float) -> int:
    rounds, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        rounds += 1
    return rounds


def _hold_the_gil(seconds: float) -> None:
    """Sleep in C without releasing the GIL."""
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))


async def _block(_job: Job) -> None:
    time.sleep(THREE_LEASES_SECONDS)  # noqa: ASYNC251, TID251  the mistake that the worker must survive


async def _compute_on_the_loop(_job: Job) -> None:
    _compute(THREE_LEASES_SECONDS)


@pytest.mark.parametrize("handler", [_block, _compute_on_the_loop], ids=["blocks", "computes"])
def test_a_handler_keeps_its_lease_for_as_long_as_it_runs(driver: Driver, handler: Any) -> None:
    def keeps_its_lease() -> bool:
        with running_worker(driver, {"run": handler}, lease=SHORT):
            job_id = enqueue(driver, "run")
            job = ended(driver, job_id)
        assert job.status is Status.SUCCEEDED
        return job.attempt_count == 1 and driver.inspector.attempts([job_id]) == []

    assert any(keeps_its_lease() for _ in range(5))  # a busy machine may let one expire


async def _hold(job: Job) -> str:
    if job.attempt_count == 1:
        _hold_the_gil(THREE_LEASES_SECONDS)
    return f"attempt {job.attempt_count}"


def test_a_handler_holding_the_gil_past_its_lease_is_logged_with_advice(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "taskharbor"), running_worker(driver, {"hold": _hold}, lease=SHORT):
        job_id = enqueue(driver, "hold")
        job = ended(driver, job_id)

    advice = [line for line in caplog.messages if str(job_id) in line and "isolate=True" in line]
    assert advice
    assert "(hold)" in advice[0]
    # The source may have stalled together with the handler, during a claim: the jobs of such a claim are released.
    # On a busy machine the second attempt may lose its lease, too.
    outcomes = [each.outcome for each in driver.inspector.attempts([job_id])]
    lost = [each for each in outcomes if each is not AttemptOutcome.RELEASED]
    assert {*lost} == {AttemptOutcome.LOST}
    assert (job.status, job.attempt_count) == (Status.SUCCEEDED, 1 + len(lost))
    assert job.result == f'"attempt {job.attempt_count}"'.encode()


def test_a_lease_lost_for_another_reason_is_logged_without_advice(caplog: pytest.LogCaptureFixture) -> None:
    driver = MemoryDriver()
    began, may_end = threading.Event(), threading.Event()

    def run(_job: Job) -> None:
        began.set()
        assert may_end.wait(LIMIT_SECONDS)

    with caplog.at_level(logging.WARNING, "taskharbor"), running_worker(driver, {"run": run}, lease=SHORT) as worker:
        job_id = enqueue(driver, "run")
        assert began.wait(LIMIT_SECONDS)
        driver.maintenance.report_clock_jump(
            expected=driver.inspector.now() + LONG, lease=timedelta(0)
        )  # cuts every lease
        may_end.set()
        worker.stop()

    assert any(str(job_id) in line for line in caplog.messages)
    assert not any("isolate=True" in line for line in caplog.messages)


@pytest.mark.parametrize("driver", ["sqlite"], indirect=True)
def test_the_heartbeat_outlives_the_last_handler_when_a_worker_stops(driver: Driver) -> None:
    began: list[JobId] = []

    def run(job: Job) -> None:
        began.append(job.id)
        threading.Event().wait(2 * SHORT.total_seconds())

    def is_recorded() -> bool:
        worker = worker_for(driver, {"run": run}, lease=SHORT)
        worker.start()
        job_id = enqueue(driver, "run")
        wait_until(lambda: job_id in began)
        worker.stop(LONG)
        job = stored(driver, job_id)
        return (job.status, job.attempt_count) == (Status.SUCCEEDED, 1)

    assert any(is_recorded() for _ in range(5))  # a busy machine may let a lease expire


@pytest.mark.parametrize("heartbeat", [timedelta(seconds=11), timedelta(0)])
def test_a_heartbeat_that_leaves_no_room_for_a_failure_is_refused(heartbeat: timedelta) -> None:
    with pytest.raises(UsageError, match="a third of the lease"):
        worker_for(MemoryDriver(), {}, lease=timedelta(seconds=30), heartbeat=heartbeat)
