"""The reason why a handler is asked to stop."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.execution import Execution, StopReason

LEASE = timedelta(seconds=5)
OTHERS = [reason for reason in StopReason if reason is not StopReason.LOST]


def execution() -> Execution:
    driver = MemoryDriver()
    driver.insert([new_job()])
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
    return Execution(claim, ends_at=1e9, times_out_at=None)


@pytest.mark.parametrize("first", OTHERS)
def test_a_lost_lease_beats_a_reason_to_stop_that_came_first(first: StopReason) -> None:
    running, reasons = execution(), list[StopReason | None]()
    running.set_stop(lambda: reasons.append(running.stop_reason))

    running.stop(first)
    running.stop(StopReason.LOST)

    assert reasons == [first, StopReason.LOST]


@pytest.mark.parametrize("first", StopReason)
def test_no_other_stop_reason_replaces_the_first_one(first: StopReason) -> None:
    running, reasons = execution(), list[StopReason | None]()
    running.set_stop(lambda: reasons.append(running.stop_reason))

    running.stop(first)
    for other in OTHERS:
        running.stop(other)

    assert reasons == [first]


def test_a_stop_requested_before_the_start_is_applied_at_the_start() -> None:
    running, reasons = execution(), list[StopReason | None]()

    running.stop(StopReason.CANCEL)
    running.set_stop(lambda: reasons.append(running.stop_reason))

    assert reasons == [StopReason.CANCEL]
