"""A heartbeat keeps a lease alive, and hears when it is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.answers import Extended
from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.testing.conformance.subject import LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject


def test_an_extended_lease_runs_from_now_under_the_same_token(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=10))

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    end = subject.clock.now() + LEASE
    assert answer == Extended(Lease(job_id, claim.lease.token, end), cancel_requested=False)
    assert (subject.job(job_id).lease_expires_at, subject.job(job_id).lease_token) == (end, claim.lease.token)


def test_an_extended_job_is_not_taken_over_when_its_first_lease_would_have_ended(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(timedelta(seconds=10))
    subject.driver.extend([claim.lease], lease=LEASE)
    subject.advance(LEASE - TICK)

    assert subject.reserve() == []


def test_a_lease_can_be_extended_until_a_moment_before_its_end(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE - TICK)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, Extended)


def test_a_lease_that_is_over_cannot_be_extended_even_if_nobody_took_the_job(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, LeaseExpired)
    assert len(subject.reserve()) == 1


def test_a_job_taken_over_cannot_be_extended_by_who_lost_it(subject: Subject) -> None:
    subject.insert()
    lost = subject.take(worker="same")
    subject.advance(LEASE)
    subject.take(worker="same")

    [answer] = subject.driver.extend([lost.lease], lease=LEASE)

    assert isinstance(answer, LeaseMismatch)


def test_another_token_is_told_before_an_ended_lease(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    [answer] = subject.driver.extend([Lease(job_id, new_token(), claim.lease.expires_at)], lease=LEASE)

    assert isinstance(answer, LeaseMismatch)


def test_the_lease_of_a_settled_job_cannot_be_extended(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, JobNotInflight)


def test_the_lease_of_an_unknown_job_cannot_be_extended(subject: Subject) -> None:
    lease = Lease(new_job_id(), new_token(), subject.clock.now() + LEASE)

    [answer] = subject.driver.extend([lease], lease=LEASE)

    assert isinstance(answer, JobNotFound)


def test_a_heartbeat_tells_of_a_requested_cancel(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    subject.cancel(job_id)

    [answer] = subject.driver.extend([claim.lease], lease=LEASE)

    assert isinstance(answer, Extended)
    assert answer.cancel_requested


def test_an_extension_changes_nothing_but_the_end_of_the_lease(subject: Subject) -> None:
    job_id = subject.insert()
    claim = subject.take()
    before = subject.job(job_id)
    subject.advance(timedelta(seconds=10))

    subject.driver.extend([claim.lease], lease=LEASE)

    after = subject.job(job_id)
    assert (after.attempt_count, after.processing_started_at) == (before.attempt_count, before.processing_started_at)
    assert subject.attempts(job_id) == []


def test_a_refused_extension_changes_nothing(subject: Subject) -> None:
    job_id = subject.insert()
    lost = subject.take()
    subject.advance(LEASE)
    subject.take()
    before = subject.everything(job_id)
    subject.advance(TICK)

    subject.driver.extend([lost.lease], lease=2 * LEASE)

    assert subject.everything(job_id) == before


def test_one_lost_lease_does_not_harm_the_others_of_a_heartbeat(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    lost, held = subject.reserve(limit=2)
    subject.settle(lost, Outcome.ack())
    subject.advance(TICK)

    answers = subject.driver.extend([lost.lease, held.lease], lease=LEASE)

    assert [type(answer) for answer in answers] == [JobNotInflight, Extended]
    assert subject.job(held.job.id).lease_expires_at == subject.clock.now() + LEASE
