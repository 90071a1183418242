"""The trace context of an attempt, which its outcome stores in the metadata of the job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.ids import new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settlement
from taskharbor.core.states import Status
from taskharbor.core.trace_context import ATTEMPT_TRACEPARENT
from taskharbor.testing.conformance.subject import BOOM

if TYPE_CHECKING:
    from taskharbor.testing.conformance.subject import Subject

FIRST: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
AT_ONCE: Final = Outcome.retry(after=timedelta(0), failure=BOOM)
OUTCOMES: Final = (
    AT_ONCE,
    Outcome.fail("hopeless", failure=BOOM),
    Outcome.snooze(after=timedelta(minutes=5)),
    Outcome.release(),
    Outcome.cancel("stopped"),
)
MINE: Final = {"tenant": 'a "quoted" name', "traceparent": SECOND}


def test_every_outcome_but_a_success_stores_the_context_of_its_attempt(subject: Subject) -> None:
    for outcome in OUTCOMES:
        job_id = subject.insert(metadata=MINE)
        subject.settle(subject.take(), outcome.traced(FIRST))

        assert subject.job(job_id).metadata == {**MINE, ATTEMPT_TRACEPARENT: FIRST}
        subject.driver.cancel([job_id])


def test_a_success_stores_no_context_of_its_attempt(subject: Subject) -> None:
    job_id = subject.insert(metadata=MINE)

    subject.settle(subject.take(), Outcome.ack(b"1").traced(FIRST))

    assert subject.job(job_id).metadata == MINE


def test_the_next_attempt_reads_the_context_of_the_newest_one(subject: Subject) -> None:
    subject.insert()
    subject.settle(subject.take(), AT_ONCE.traced(SECOND))
    subject.settle(subject.take(), AT_ONCE.traced(FIRST))

    assert subject.take().job.metadata == {ATTEMPT_TRACEPARENT: FIRST}


def test_an_outcome_without_a_context_leaves_the_metadata(subject: Subject) -> None:
    for outcome in OUTCOMES:
        job_id = subject.insert(metadata=MINE)
        subject.settle(subject.take(), AT_ONCE.traced(FIRST))
        subject.settle(subject.take(), outcome)

        assert subject.job(job_id).metadata == {**MINE, ATTEMPT_TRACEPARENT: FIRST}
        subject.driver.cancel([job_id])


def test_the_contexts_of_a_batch_go_to_their_own_jobs(subject: Subject) -> None:
    ids = [subject.insert(metadata={"n": str(n)}) for n in range(3)]
    claims = subject.reserve(limit=3)
    outcomes = {ids[0]: AT_ONCE.traced(FIRST), ids[1]: AT_ONCE, ids[2]: AT_ONCE.traced(SECOND)}

    subject.driver.settle([Settlement(each.lease, outcomes[each.job.id]) for each in claims])

    assert [subject.job(job_id).metadata for job_id in ids] == [
        {"n": "0", ATTEMPT_TRACEPARENT: FIRST},
        {"n": "1"},
        {"n": "2", ATTEMPT_TRACEPARENT: SECOND},
    ]


def test_a_refused_outcome_stores_no_context(subject: Subject) -> None:
    job_id = subject.insert(metadata=MINE)
    claim = subject.take()

    subject.driver.settle([Settlement(Lease(job_id, new_token(), claim.lease.expires_at), AT_ONCE.traced(FIRST))])

    assert subject.job(job_id).metadata == MINE


def test_a_requeued_job_keeps_its_trace_contexts(subject: Subject) -> None:
    job_id = subject.insert(metadata=MINE)
    subject.settle(subject.take(), Outcome.fail("hopeless").traced(FIRST))
    assert subject.job(job_id).status is Status.DEAD

    subject.driver.requeue([job_id], token=new_token(), by="ops", reason="fixed")

    assert subject.take().job.metadata == {**MINE, ATTEMPT_TRACEPARENT: FIRST}
