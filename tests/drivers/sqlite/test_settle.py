"""Tests of settling on SQLite: batches by one statement, and data that it cannot store."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor.core.errors import OutcomeNotStorable
from taskharbor.core.ids import new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.drivers.sqlite import SqliteDriver
from taskharbor.drivers.sqlite.settle import BATCH_SIZES
from taskharbor.testing.clock import ManualClock
from taskharbor.testing.conformance.subject import BOOM, LEASE, OVERDUE_AFTER, new_job

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.core.model import Claim, Job


def test_an_unstorable_outcome_is_reported_and_the_others_are_recorded(tmp_path: Path) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        claims = claimed(driver, 6)
        outcomes = [Outcome.ack(b"1"), Outcome.retry(after=LEASE, failure=BOOM)] * 3
        outcomes[3] = Outcome.release(bound=2**70)

        answers = driver.settle([Settlement(claim.lease, each) for claim, each in zip(claims, outcomes, strict=True)])
        left = driver.inspector.get([claims[3].job.id])[claims[3].job.id]

    assert [type(answer) for answer in answers] == [Settled] * 3 + [OutcomeNotStorable] + [Settled] * 2
    assert left.status is Status.PROCESSING


@pytest.mark.parametrize("size", [1, BATCH_SIZES[0], BATCH_SIZES[0] + 1, 64, BATCH_SIZES[-1] + 1])
def test_successes_of_a_batch_are_recorded_as_one_by_one(tmp_path: Path, size: int) -> None:
    with (
        closing(SqliteDriver(tmp_path / "together.db")) as together,
        closing(SqliteDriver(tmp_path / "singly.db")) as singly,
    ):
        ours, theirs = claimed(together, size), claimed(singly, size)

        assert {answer.status for answer in settled(together, acks(ours))} == {Status.SUCCEEDED}
        for each in acks(theirs):
            settled(singly, [each])

        assert ended(together, ours) == ended(singly, theirs)


@pytest.mark.parametrize("lost", [0, 5, 19])
def test_a_lost_lease_among_successes_is_the_only_one_refused(tmp_path: Path, lost: int) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        claims = claimed(driver, 20)
        batch = acks(claims)
        held = batch[lost].lease
        batch[lost] = Settlement(Lease(held.job_id, new_token(), held.expires_at), Outcome.ack(b"stolen"))

        answers = settled(driver, batch)

        assert [place for place, each in enumerate(answers) if not isinstance(each, Settled)] == [lost]
        assert driver.inspector.get([held.job_id])[held.job_id].status is Status.PROCESSING


def test_a_batch_whose_leases_have_expired_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    with closing(SqliteDriver(tmp_path / "jobs.db", clock=clock)) as driver:
        claims = claimed(driver, 8)
        clock.advance(LEASE + timedelta(seconds=1))

        assert not any(isinstance(each, Settled) for each in settled(driver, acks(claims)))
        assert {job.status for job in driver.inspector.get([claim.job.id for claim in claims]).values()} == {
            Status.PROCESSING
        }


def test_of_two_successes_of_one_attempt_the_first_is_kept(tmp_path: Path) -> None:
    with closing(SqliteDriver(tmp_path / "jobs.db")) as driver:
        claims = claimed(driver, 5)
        again = Settlement(claims[2].lease, Outcome.ack(b"later"))

        answers = settled(driver, [*acks(claims), again])

        assert [type(each) for each in answers] == [Settled] * 6
        assert driver.inspector.get([claims[2].job.id])[claims[2].job.id].result == b"2"


def claimed(driver: SqliteDriver, count: int) -> list[Claim]:
    driver.insert([new_job() for _ in range(count)])
    return driver.reserve(
        "default", token=new_token(), worker="w", lease=LEASE, limit=count, overdue_after=OVERDUE_AFTER
    )


def acks(claims: list[Claim]) -> list[Settlement]:
    """Return a success of each claim. Every third one has no result."""
    results = [None if place % 3 == 0 else b"%d" % place for place in range(len(claims))]
    return [Settlement(claim.lease, Outcome.ack(result)) for claim, result in zip(claims, results, strict=True)]


def settled(driver: SqliteDriver, settlements: list[Settlement]) -> list[Any]:
    answers = driver.settle(settlements)
    assert len(answers) == len(settlements)
    return [*answers]


def ended(driver: SqliteDriver, claims: list[Claim]) -> list[tuple[Any, ...]]:
    """Return what an ack changes of each job, without what differs between two stores."""
    jobs = driver.inspector.get([claim.job.id for claim in claims])
    return [_end(jobs[claim.job.id], claim) for claim in claims]


def _end(job: Job, claim: Claim) -> tuple[Any, ...]:
    is_own = job.settled_token == claim.lease.token
    return job.status, job.result, is_own, job.lease_token, job.lease_expires_at, job.completed_at is None
