"""Tests of the memory driver beyond the driver contract."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor import MemoryDriver
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import new_token
from taskharbor.core.model import Claim
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import JobFilter, Settlement
from taskharbor.testing.conformance.subject import LEASE, LOCK, OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId


def reserve(driver: MemoryDriver, **wanted: Any) -> list[Claim]:
    defaults: Final[dict[str, Any]] = {"lease": LEASE, "limit": 1, "overdue_after": OVERDUE_AFTER}
    return driver.reserve("default", token=new_token(), worker="w", **defaults | wanted)


@pytest.mark.parametrize("wrong", [{"types": 5}, {"lease": timedelta.max}])
def test_a_failing_reserve_keeps_every_job_claimable(wrong: dict[str, Any]) -> None:
    driver = MemoryDriver()
    driver.insert([new_job(), new_job()])

    with pytest.raises((TypeError, OverflowError)):
        reserve(driver, **wrong)

    assert len(reserve(driver, limit=9)) == 2


def test_a_negative_limit_reclaims_nothing() -> None:
    driver = MemoryDriver()
    driver.insert([new_job(), new_job()])
    reserve(driver, limit=2, lease=timedelta(0))

    assert reserve(driver, limit=-1) == []


def test_callers_cannot_change_a_stored_job() -> None:
    driver = MemoryDriver()
    given = {"tenant": "a"}
    job = new_job(metadata=given)
    driver.insert([job])
    [claim] = reserve(driver)

    given["tenant"] = "b"
    with suppress(TypeError):
        claim.job.metadata["tenant"] = "c"  # type: ignore[index]  # as a careless handler might

    assert driver.inspector.get([job.id])[job.id].metadata == {"tenant": "a"}


def test_a_forked_process_does_not_silently_get_a_store_of_its_own() -> None:
    driver = MemoryDriver()

    child = os.fork()
    if child == 0:
        try:
            driver.insert([new_job()])
        except StoreUnavailable:
            os._exit(7)
        os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_ready_queue_drops_stale_entries() -> None:
    driver = MemoryDriver()
    [job_id] = [answer.id for answer in driver.insert([new_job()])]  # type: ignore[union-attr]  # no key, no conflict
    for _ in range(5_000):
        dispatch_claim_and_snooze(driver, job_id)

    ready = driver._tables.rows.ready["default"]  # noqa: SLF001  its size is not visible from outside
    assert len(ready.scheduled) + len(ready.runnable) < 2_000
    assert len(reserve(driver, overdue_after=-OVERDUE_AFTER)) == 1


def dispatch_claim_and_snooze(driver: MemoryDriver, job_id: JobId) -> None:
    """Dispatch, claim by id and snooze a job: none of these reads the ready queue."""
    driver.dispatch("default", limit=1, lock=LOCK, unclaimed=9)
    [claim] = driver.claim([job_id], queue="default", token=new_token(), worker="w", lease=LEASE)
    assert isinstance(claim, Claim)
    driver.settle([Settlement(claim.lease, Outcome.snooze(after=timedelta(0)))])


def test_a_failed_transaction_is_rolled_back_completely() -> None:
    driver = MemoryDriver()
    driver.insert([new_job(), replace(new_job(), idempotency_key="k")])
    before = driver.inspector.find(JobFilter(), limit=9), driver.inspector.queues()

    with suppress(ZeroDivisionError), driver.transaction():
        driver.settle([Settlement(claim.lease, Outcome.fail("x")) for claim in reserve(driver, limit=2)])
        driver.control.pause(["default"], by="ops")
        raise ZeroDivisionError

    assert (driver.inspector.find(JobFilter(), limit=9), driver.inspector.queues()) == before
    assert len(reserve(driver, limit=9)) == 2


def test_a_listener_that_was_closed_is_forgotten() -> None:
    driver = MemoryDriver()
    listener = driver.listen(["default"])
    reference = weakref.ref(listener)

    listener.close()
    del listener

    assert reference() is None
