"""The number of statements per call: one for a batch of any size.

A driver that reads rows before it writes them needs more statements, and another worker may change the rows in
between. One more statement may find out why entries of a batch were refused.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Declined, Published, Sent, Settlement, Unsent
from taskharbor.testing.conformance.subject import BOOM, LEASE, RESEND, new_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.testing.conformance.subject import Subject

BATCH: Final = 20


def count(subject: Subject, call: Callable[[], object]) -> int:
    """Return how many statements *call* runs."""
    if subject.statements is None:
        pytest.skip("this driver does not count its statements")
    before = subject.statements()
    call()
    return subject.statements() - before


def fill(subject: Subject) -> None:
    subject.driver.insert([new_job() for _ in range(BATCH)])


def test_a_batch_is_inserted_in_one_statement(subject: Subject) -> None:
    batch = [new_job(idempotency_key=str(number)) for number in range(BATCH)]

    assert count(subject, lambda: subject.driver.insert(batch)) == 1


def test_a_batch_is_reserved_in_one_statement(subject: Subject) -> None:
    fill(subject)

    assert count(subject, lambda: subject.reserve(limit=BATCH)) == 1


def test_a_batch_is_claimed_in_one_statement(subject: Subject) -> None:
    fill(subject)
    dispatches = subject.dispatch(limit=BATCH)

    assert count(subject, lambda: subject.claim(*[each.job_id for each in dispatches])) == 1


def test_a_batch_is_extended_in_one_statement(subject: Subject) -> None:
    fill(subject)
    leases = [claim.lease for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.extend(leases, lease=LEASE)) == 1


def test_a_batch_of_one_kind_of_outcome_is_settled_in_one_statement(subject: Subject) -> None:
    fill(subject)
    settlements = [Settlement(claim.lease, Outcome.ack()) for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.settle(settlements)) == 1


def test_a_mixed_batch_is_settled_in_one_statement_for_each_kind(subject: Subject) -> None:
    fill(subject)
    outcomes = [Outcome.ack(), Outcome.retry(after=LEASE, failure=BOOM), Outcome.fail("x"), Outcome.release()]
    claims = subject.reserve(limit=BATCH)
    settlements = [Settlement(claim.lease, outcomes[number % 4]) for number, claim in enumerate(claims)]

    assert count(subject, lambda: subject.driver.settle(settlements)) <= len(outcomes)


def test_refused_settlements_are_asked_about_in_one_more_statement(subject: Subject) -> None:
    fill(subject)
    settlements = [Settlement(claim.lease, Outcome.ack()) for claim in subject.reserve(limit=BATCH)]
    subject.advance(LEASE)

    assert count(subject, lambda: subject.driver.settle(settlements)) <= 2


def test_a_batch_is_dispatched_in_one_statement(subject: Subject) -> None:
    fill(subject)

    assert count(subject, lambda: subject.dispatch(limit=BATCH)) == 1


def test_dispatch_results_are_recorded_in_one_statement_for_each_kind(subject: Subject) -> None:
    fill(subject)
    unsent, declined, *others = subject.dispatch(limit=BATCH)
    results: list[Sent | Unsent | Declined] = [Unsent(unsent), Declined(declined.job_id, declined.seq)]
    results += [Sent(each, RESEND) for each in others]

    assert count(subject, lambda: subject.driver.record_dispatch(results)) <= 3


def test_a_batch_is_canceled_in_one_statement(subject: Subject) -> None:
    fill(subject)
    job_ids = [claim.job.id for claim in subject.reserve(limit=BATCH)]

    assert count(subject, lambda: subject.driver.cancel(job_ids)) == 1


def test_a_batch_is_requeued_in_one_statement(subject: Subject) -> None:
    fill(subject)
    claims = subject.reserve(limit=BATCH)
    subject.driver.settle([Settlement(claim.lease, Outcome.fail("x")) for claim in claims])
    job_ids = [claim.job.id for claim in claims]

    def requeue() -> object:
        return subject.driver.requeue(job_ids, token=new_token(), budget=1, by="ops", reason="fixed")

    assert count(subject, requeue) == 1


def test_a_batch_is_rescheduled_in_one_statement(subject: Subject) -> None:
    fill(subject)
    job_ids = [each.job_id for each in subject.dispatch(limit=BATCH)]

    assert count(subject, lambda: subject.driver.reschedule(job_ids, delay=timedelta(1))) == 1


def test_a_batch_of_leases_is_expired_in_one_statement(subject: Subject) -> None:
    fill(subject)
    subject.reserve(limit=BATCH)
    subject.advance(LEASE)

    assert count(subject, lambda: subject.driver.maintenance.expire(limit=BATCH)) == 1


def test_a_batch_of_events_is_recorded_in_one_statement(subject: Subject) -> None:
    fill(subject)
    claims = subject.reserve(limit=BATCH)
    subject.driver.settle([Settlement(claim.lease, Outcome.fail("x")) for claim in claims])
    rows = subject.driver.maintenance.claim_outbox(limit=BATCH, lock=LEASE)

    done = [Published(row.event.event_id) for row in rows]

    assert count(subject, lambda: subject.driver.maintenance.settle_outbox(done)) == 1
