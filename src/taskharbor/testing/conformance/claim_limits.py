"""Claims that are refused: jobs of other queues, and jobs of types that the worker does not handle."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.model import Claim
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.core.states import FINAL, Status
from taskharbor.testing.conformance.subject import LEASE, TICK

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

UNHANDLED_AFTER: Final = timedelta(minutes=5)


def test_a_claim_for_another_queue_is_refused_in_every_state(subject: Subject) -> None:
    foreign = [subject.bring(status) for status in (*sorted(FINAL), Status.ENQUEUED, Status.PROCESSING)]
    subject.advance(LEASE)
    foreign += [subject.bring(status) for status in (Status.FAILED, Status.PENDING)]
    before = [subject.everything(job_id) for job_id in foreign]

    answers = subject.claim(*foreign, queue="mail")

    jobs = [subject.job(job_id) for job_id in foreign]
    assert answers == [Refused(job.id, RefusalReason.OTHER_QUEUE, sends=job.sends) for job in jobs]
    assert [subject.everything(job_id) for job_id in foreign] == before


def test_a_batch_with_an_id_of_another_queue_claims_the_others(subject: Subject) -> None:
    foreign, ours = subject.insert(queue="mail"), subject.insert()
    subject.dispatch()
    subject.dispatch("mail")

    refused, claim = subject.claim(foreign, ours)

    assert refused == Refused(foreign, RefusalReason.OTHER_QUEUE, sends=1)
    assert isinstance(claim, Claim)
    assert claim.job.id == ours


def test_pausing_does_not_change_the_refusal_of_another_queues_job(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)
    subject.driver.control.pause(["default", "mail"], by="ops")

    assert subject.claim(job_id, queue="mail") == [Refused(job_id, RefusalReason.OTHER_QUEUE, sends=1)]


def test_a_due_job_of_an_unhandled_type_is_reserved_after_a_delay(subject: Subject) -> None:
    job_id = subject.insert(type="rare", delay=timedelta(hours=1))
    subject.advance(timedelta(hours=1) + UNHANDLED_AFTER - TICK)
    assert subject.reserve(types=["known"], unhandled_after=UNHANDLED_AFTER) == []
    subject.advance(TICK)

    [claim] = subject.reserve(types=["known"], unhandled_after=UNHANDLED_AFTER)

    assert claim.job.id == job_id


def test_a_claim_of_an_unhandled_type_is_refused_until_a_delay_passed(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED, type="rare")
    until = subject.clock.now() + UNHANDLED_AFTER
    subject.advance(UNHANDLED_AFTER - TICK)
    assert subject.claim(job_id, types=["known"], unhandled_after=UNHANDLED_AFTER) == [
        Refused(job_id, RefusalReason.UNHANDLED, until, sends=1)
    ]
    subject.advance(TICK)

    [claim] = subject.claim(job_id, types=["known"], unhandled_after=UNHANDLED_AFTER)

    assert isinstance(claim, Claim)


def test_an_unhandled_type_that_is_not_due_is_refused_without_a_time(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED, type="rare")
    subject.driver.reschedule([job_id], delay=timedelta(hours=1))

    answer = subject.claim(job_id, types=["known"], unhandled_after=UNHANDLED_AFTER)

    assert answer == [Refused(job_id, RefusalReason.UNHANDLED, sends=1)]


def test_an_expired_lease_of_an_unhandled_type_is_never_reclaimed(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING, type="rare")
    subject.advance(LEASE + UNHANDLED_AFTER)

    assert subject.reserve(types=["known"], unhandled_after=UNHANDLED_AFTER) == []
    assert subject.claim(job_id, types=["known"], unhandled_after=UNHANDLED_AFTER) == [
        Refused(job_id, RefusalReason.UNHANDLED)
    ]


def test_a_job_of_a_handled_type_is_reserved_without_delay(subject: Subject) -> None:
    job_id = subject.insert(type="known")

    [claim] = subject.reserve(types=["known"], unhandled_after=UNHANDLED_AFTER)

    assert claim.job.id == job_id
