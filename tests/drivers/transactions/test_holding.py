"""Tests that no other worker gets a job that was settled in an open transaction."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from taskharbor.core.errors import LeaseExpired, LeaseMismatch
from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement, Skipped
from taskharbor.core.states import Status
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import LEASE, OVERDUE_AFTER, new_job
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taskharbor.core.model import Claim


@pytest.fixture
def url() -> str:
    return emptied()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def driver(url: str, clock: ManualClock) -> Iterator[PostgresDriver]:
    with closing(PostgresDriver(url, clock=clock)) as driver:
        driver.insert([new_job()])
        yield driver


def reserve(driver: PostgresDriver) -> list[Claim]:
    return driver.reserve("default", token=new_token(), worker="w", lease=LEASE, limit=1, overdue_after=OVERDUE_AFTER)


def test_a_transaction_that_outlasts_its_lease_keeps_the_job_it_settled(
    driver: PostgresDriver, url: str, clock: ManualClock
) -> None:
    [claim] = reserve(driver)

    with psycopg.connect(url) as shop:
        driver.join(shop).settle([Settlement(claim.lease, Outcome.ack())])
        heartbeat = driver.extend([claim.lease], lease=LEASE)
        clock.advance(2 * LEASE)
        reclaimed = driver.maintenance.expire(limit=9), reserve(driver)

    assert heartbeat == [Skipped(claim.lease)]
    assert reclaimed == ([], [])
    assert driver.settle([Settlement(claim.lease, Outcome.ack())]) == [Settled(claim.job.id, Status.SUCCEEDED)]


def test_a_transaction_with_an_expired_lease_cannot_settle_the_job(
    driver: PostgresDriver, url: str, clock: ManualClock
) -> None:
    [lost] = reserve(driver)
    clock.advance(LEASE)

    with psycopg.connect(url) as shop:
        [after_expiry] = driver.join(shop).settle([Settlement(lost.lease, Outcome.ack())])
        [held] = reserve(driver)
        [after_reclaim] = driver.join(shop).settle([Settlement(lost.lease, Outcome.ack())])

    assert (type(after_expiry), type(after_reclaim)) == (LeaseExpired, LeaseMismatch)
    assert driver.settle([Settlement(held.lease, Outcome.ack())]) == [Settled(lost.job.id, Status.SUCCEEDED)]
