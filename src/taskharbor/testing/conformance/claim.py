"""Claiming jobs by id when their messages arrive, and reading back the jobs of a lost reply."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.model import Claim, Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import RefusalReason, Refused, Sent, Settled
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, RESEND, TICK

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject


RETRY = Outcome.retry(after=timedelta(minutes=5), failure=BOOM)


def lose(subject: Subject, **fields: object) -> JobId:
    """Insert a job whose lease has expired."""
    job_id = subject.bring(Status.PROCESSING, **fields)
    subject.advance(LEASE)
    return job_id


def test_an_enqueued_job_is_claimed_by_its_id(subject: Subject) -> None:
    job_id, token = subject.bring(Status.ENQUEUED), new_token()

    answers = subject.claim(job_id, token=token, worker="w-1")

    job = subject.job(job_id)
    assert answers == [Claim(job, Lease(job_id, token, subject.clock.now() + LEASE))]
    assert (job.status, job.worker_id, job.attempt_count) == (Status.PROCESSING, "w-1", 1)
    assert (job.lease_token, job.processing_started_at) == (token, subject.clock.now())
    assert (job.dispatch_at, job.resends, job.sends) == (None, 0, 1)


def test_a_message_received_before_its_send_is_recorded_can_be_claimed(subject: Subject) -> None:
    job_id = subject.insert()
    subject.dispatch()

    [answer] = subject.claim(job_id)

    assert isinstance(answer, Claim)


def test_a_claim_before_the_send_is_recorded_marks_the_message_sent(subject: Subject) -> None:
    job_id = subject.insert()
    [dispatch] = subject.dispatch()
    subject.advance(timedelta(seconds=1))

    [claim] = subject.claim(job_id)

    assert isinstance(claim, Claim)
    assert claim.job.sent_at == subject.job(job_id).sent_at == subject.clock.now()
    assert subject.driver.record_dispatch([Sent(dispatch, RESEND)]) == [False]
    assert subject.settle(claim, RETRY) == Settled(job_id, Status.ENQUEUED)


def test_an_expired_lease_reclaimed_by_message_counts_as_sent(subject: Subject) -> None:
    job_id = lose(subject)

    subject.claim(job_id)

    assert subject.job(job_id).sent_at == subject.clock.now()
    subject.advance(LEASE)
    assert [answer.status for answer in subject.driver.maintenance.expire(limit=9)] == [Status.ENQUEUED]


def test_claims_are_answered_in_the_order_asked(subject: Subject) -> None:
    first, second = subject.bring(Status.ENQUEUED), subject.bring(Status.ENQUEUED)
    unknown = new_job_id()

    answers = subject.claim(second, unknown, first)

    assert [answer.job.id if isinstance(answer, Claim) else answer.job_id for answer in answers] == [
        second,
        unknown,
        first,
    ]


def test_an_unknown_job_is_not_found(subject: Subject) -> None:
    unknown = new_job_id()

    assert subject.claim(unknown) == [Refused(unknown, RefusalReason.NOT_FOUND)]


def test_a_final_job_cannot_be_claimed(subject: Subject) -> None:
    for status in (Status.SUCCEEDED, Status.DEAD, Status.CANCELED):
        job_id = subject.bring(status)

        assert subject.claim(job_id) == [Refused(job_id, RefusalReason.FINAL)]


def test_a_leased_job_is_refused_until_its_lease_ends(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    end = subject.clock.now() + LEASE
    subject.advance(LEASE - TICK)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.LEASED, end)]


def test_a_job_that_was_not_dispatched_cannot_be_claimed_by_id(subject: Subject) -> None:
    failed, pending = subject.bring(Status.FAILED), subject.insert()

    answers = subject.claim(pending, failed)

    assert answers == [Refused(pending, RefusalReason.NOT_ENQUEUED), Refused(failed, RefusalReason.NOT_ENQUEUED)]


def test_a_job_with_exhausted_attempts_cannot_be_claimed(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.exhaust(job_id)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.EXHAUSTED, sends=1)]


def test_a_job_of_a_paused_queue_cannot_be_claimed(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.driver.control.pause(["default"], by="ops")

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.PAUSED, sends=1)]


def test_a_job_of_an_unhandled_type_cannot_be_claimed(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)

    assert subject.claim(job_id, types=["other"]) == [Refused(job_id, RefusalReason.UNHANDLED, sends=1)]


def test_a_claim_before_the_due_time_is_refused_with_that_time(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    [claim] = subject.claim(job_id)
    assert isinstance(claim, Claim)
    subject.settle(claim, RETRY)
    due = subject.clock.now() + timedelta(minutes=5)
    subject.advance(timedelta(minutes=5) - TICK)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.NOT_DUE, due, sends=1)]


def test_an_enqueued_job_is_claimed_at_the_very_instant_it_is_due(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.driver.reschedule([job_id], delay=timedelta(minutes=5))
    subject.advance(timedelta(minutes=5))

    [answer] = subject.claim(job_id)

    assert isinstance(answer, Claim)


def test_an_expired_lease_is_reclaimed_by_a_redelivered_message(subject: Subject) -> None:
    job_id = lose(subject)

    [answer] = subject.claim(job_id, worker="successor")

    assert isinstance(answer, Claim)
    assert (answer.job.attempt_count, answer.job.worker_id) == (2, "successor")
    assert [attempt.outcome for attempt in subject.attempts(job_id)] == ["LOST"]


def test_an_expired_lease_with_a_cancel_request_is_not_reclaimed_by_message(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    subject.cancel(job_id)
    subject.advance(LEASE)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.CANCEL_REQUESTED)]


def test_an_expired_lease_with_exhausted_attempts_is_not_reclaimed_by_message(subject: Subject) -> None:
    job_id = lose(subject, max_attempts=1)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.EXHAUSTED)]


def test_an_expired_lease_in_a_paused_queue_is_not_reclaimed_by_message(subject: Subject) -> None:
    job_id = lose(subject)
    subject.driver.control.pause(["default"], by="ops")

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.PAUSED)]


def test_an_expired_lease_counts_as_leased_until_a_clock_hold_ends(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    expected = subject.clock.now()
    subject.advance(timedelta(hours=1))
    subject.driver.maintenance.report_clock_jump(expected=expected, lease=LEASE)
    end = subject.clock.now() + LEASE
    subject.advance(LEASE - TICK)

    assert subject.claim(job_id) == [Refused(job_id, RefusalReason.LEASED, end)]


def test_a_claim_without_reclaim_leaves_an_expired_lease_alone(subject: Subject) -> None:
    job_id = lose(subject)

    assert subject.claim(job_id, reclaim=False) == [Refused(job_id, RefusalReason.LEASED)]


def test_a_job_whose_message_came_twice_in_one_batch_is_claimed_once(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)

    first, second = subject.claim(job_id, job_id)

    assert isinstance(first, Claim)
    assert second == Refused(job_id, RefusalReason.LEASED, first.lease.expires_at, sends=1)
    assert subject.job(job_id).attempt_count == 1


def test_a_claim_refused_for_several_reasons_reports_the_first_in_order(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.driver.reschedule([job_id], delay=timedelta(hours=1))
    answers = [subject.claim(job_id, types=["other"])]
    subject.driver.control.pause(["default"], by="ops")
    answers.append(subject.claim(job_id, types=["other"]))
    subject.exhaust(job_id)
    answers.append(subject.claim(job_id, types=["other"]))

    reasons = [answer.reason for [answer] in answers if isinstance(answer, Refused)]
    assert reasons == [RefusalReason.UNHANDLED, RefusalReason.PAUSED, RefusalReason.EXHAUSTED]


def test_a_reclaim_refused_for_several_reasons_reports_the_first_in_order(subject: Subject) -> None:
    job_id = lose(subject, max_attempts=1)
    subject.driver.control.pause(["default"], by="ops")
    answers = [subject.claim(job_id, types=["other"])]
    subject.cancel(job_id)
    answers.append(subject.claim(job_id, types=["other"]))

    reasons = [answer.reason for [answer] in answers if isinstance(answer, Refused)]
    assert reasons == [RefusalReason.EXHAUSTED, RefusalReason.CANCEL_REQUESTED]


def test_a_refusal_contains_the_number_of_the_newest_message(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.advance(timedelta(minutes=2))
    subject.send()

    assert subject.claim(job_id, types=["other"]) == [Refused(job_id, RefusalReason.UNHANDLED, sends=2)]


def test_a_refused_claim_changes_nothing(subject: Subject) -> None:
    refused = [subject.bring(status) for status in (Status.SUCCEEDED, Status.DEAD, Status.CANCELED, Status.PROCESSING)]
    refused += [subject.bring(Status.ENQUEUED, type="rare"), subject.insert(delay=timedelta(1))]
    before = [subject.everything(job_id) for job_id in refused]

    subject.claim(*refused, types=["greet"])

    assert [subject.everything(job_id) for job_id in refused] == before


def test_the_jobs_of_a_lost_reserve_reply_are_read_back_by_token(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    token = new_token()
    claims = subject.reserve(limit=2, token=token)

    assert {claim.job.id: claim for claim in subject.driver.read_back([token])} == {
        each.job.id: each for each in claims
    }


def test_several_tokens_are_read_back_at_once(subject: Subject) -> None:
    subject.insert()
    subject.insert()
    tokens = [new_token(), new_token()]
    held = {claim.job.id for token in tokens for claim in subject.reserve(token=token)}

    assert {claim.job.id for claim in subject.driver.read_back(tokens)} == held


def test_a_token_reads_back_only_its_own_jobs(subject: Subject) -> None:
    subject.insert()
    subject.take()

    assert subject.driver.read_back([new_token()]) == []


def test_an_expired_lease_is_not_read_back(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.advance(LEASE)

    assert subject.driver.read_back([claim.lease.token]) == []


def test_a_settled_job_is_not_read_back(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    subject.settle(claim, Outcome.ack())

    assert subject.driver.read_back([claim.lease.token]) == []
