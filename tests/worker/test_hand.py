"""Why a handler is asked to stop."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskharbor.core.ids import new_token
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.testing.conformance.subject import new_job
from taskharbor.worker.hand import Hand, Why

LEASE = timedelta(seconds=5)
OTHERS = [why for why in Why if why is not Why.LOST]


def hand() -> Hand:
    driver = MemoryDriver()
    driver.insert([new_job()])
    [claim] = driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, patience=LEASE)
    return Hand(claim, ends_at=1e9, times_out_at=None)


@pytest.mark.parametrize("first", OTHERS)
def test_a_lost_lease_beats_a_reason_to_stop_that_came_first(first: Why) -> None:
    held, asked = hand(), list[Why | None]()
    held.runs(lambda: asked.append(held.why))

    held.stop(first)
    held.stop(Why.LOST)

    assert asked == [first, Why.LOST]


@pytest.mark.parametrize("first", Why)
def test_no_other_reason_does(first: Why) -> None:
    held, asked = hand(), list[Why | None]()
    held.runs(lambda: asked.append(held.why))

    held.stop(first)
    for other in OTHERS:
        held.stop(other)

    assert asked == [first]


def test_who_was_to_stop_before_it_ran_is_told_as_it_starts() -> None:
    held, asked = hand(), list[Why | None]()

    held.stop(Why.CANCEL)
    held.runs(lambda: asked.append(held.why))

    assert asked == [Why.CANCEL]
