"""Why a handler is asked to stop."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.execution import Execution, StopReason

LEASE = timedelta(seconds=5)
OTHERS = [why for why in StopReason if why is not StopReason.LOST]


def execution() -> Execution:
    driver = MemoryDriver()
    driver.insert([new_job()])
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=LEASE)
    return Execution(claim, ends_at=1e9, times_out_at=None)


@pytest.mark.parametrize("first", OTHERS)
def test_a_lost_lease_beats_a_reason_to_stop_that_came_first(first: StopReason) -> None:
    held, asked = execution(), list[StopReason | None]()
    held.set_stop(lambda: asked.append(held.stop_reason))

    held.stop(first)
    held.stop(StopReason.LOST)

    assert asked == [first, StopReason.LOST]


@pytest.mark.parametrize("first", StopReason)
def test_no_other_reason_does(first: StopReason) -> None:
    held, asked = execution(), list[StopReason | None]()
    held.set_stop(lambda: asked.append(held.stop_reason))

    held.stop(first)
    for other in OTHERS:
        held.stop(other)

    assert asked == [first]


def test_who_was_to_stop_before_it_ran_is_told_as_it_starts() -> None:
    held, asked = execution(), list[StopReason | None]()

    held.stop(StopReason.CANCEL)
    held.set_stop(lambda: asked.append(held.stop_reason))

    assert asked == [StopReason.CANCEL]
