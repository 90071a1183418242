"""The transition table: the states from which each event is allowed, and the states it leads to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.core.model import Lease
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Declined, Dispatch, Published, Sent, Unsent
from taskharbor.core.states import TRANSITIONS, Event, Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, OVERDUE_AFTER, RESEND, new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.testing.conformance.subject import Subject

Try = Callable[["Subject", "Job"], object]


def settling(outcome: Outcome) -> Try:
    """Return a try that settles with the newest token of the job, as if its lease were valid."""

    def attempt(subject: Subject, job: Job) -> object:
        token = job.lease_token or job.settled_token or new_token()
        return subject.settle(Lease(job.id, token, subject.clock.now() + LEASE), outcome)

    return attempt


def extend(subject: Subject, job: Job) -> object:
    lease = Lease(job.id, job.lease_token or job.settled_token or new_token(), subject.clock.now() + LEASE)
    subject.advance(timedelta(seconds=1))
    return subject.driver.extend([lease], lease=LEASE)


def newest_dispatch(job: Job) -> Dispatch:
    """Return the job's newest dispatch, or a made-up one if it was never dispatched."""
    return Dispatch(job.id, job.sends, job.resends, job.dispatch_at or job.scheduled_for)


def after(wait: timedelta, attempt: Try) -> Try:
    def wait_and_attempt(subject: Subject, job: Job) -> object:
        subject.advance(wait)
        return attempt(subject, job)

    return wait_and_attempt


def bury(subject: Subject, job: Job) -> object:
    if job.status.is_waiting:
        subject.exhaust(job.id)
    return subject.driver.maintenance.bury(limit=9)


def prune(subject: Subject, job: Job) -> object:
    subject.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in subject.outbox(job.id)])
    maintenance = subject.driver.maintenance
    return maintenance.prune(older_than=timedelta(0), limit=9), maintenance.purge(older_than=timedelta(0), limit=9)


# Each call that is tried on a job in every state, with the events that it may cause.
# fmt: off
TRIES: Final[dict[str, tuple[set[Event], Try]]] = {
    "insert": ({Event.INSERT}, lambda it, job: it.driver.insert([new_job(id=job.id, priority=7)], repeat=True)),
    "dispatch": ({Event.DISPATCH}, after(RESEND, lambda it, _: it.dispatch())),
    "sent": ({Event.SENT}, lambda it, job: it.driver.record_dispatch([Sent(newest_dispatch(job), timedelta(hours=1))])),
    "unsent": ({Event.UNSENT}, lambda it, job: it.driver.record_dispatch([Unsent(newest_dispatch(job))])),
    "decline": ({Event.DECLINE}, lambda it, job: it.driver.record_dispatch([Declined(job.id, job.sends)])),
    "reserve": ({Event.RESERVE}, after(2 * OVERDUE_AFTER, lambda it, _: it.reserve(reclaim=False))),
    "claim": ({Event.CLAIM}, lambda it, job: it.claim(job.id)),
    "reclaim": ({Event.RESERVE, Event.RECLAIM}, after(2 * OVERDUE_AFTER, lambda it, _: it.reserve())),
    "extend": ({Event.EXTEND}, extend),
    "ack": ({Event.ACK}, settling(Outcome.ack())),
    "retry": ({Event.RETRY}, settling(Outcome.retry(after=LEASE, failure=BOOM))),
    "fail": ({Event.FAIL}, settling(Outcome.fail("hopeless"))),
    "snooze": ({Event.SNOOZE}, settling(Outcome.snooze(after=LEASE))),
    "release": ({Event.RELEASE}, settling(Outcome.release())),
    "cancel": ({Event.CANCEL, Event.REQUEST_CANCEL}, lambda it, job: it.cancel(job.id)),
    "expire": ({Event.EXPIRE}, after(LEASE, lambda it, _: it.driver.maintenance.expire(limit=9))),
    "bury": ({Event.BURY}, bury),
    "reschedule": ({Event.RESCHEDULE}, lambda it, job: it.driver.reschedule([job.id], delay=timedelta(hours=1))),
    "requeue": ({Event.REQUEUE}, lambda it, job: it.requeue(job.id)),
    "prune": ({Event.PRUNE}, after(timedelta(days=1), prune)),
}
# fmt: on


@pytest.mark.parametrize("name", TRIES)
def test_each_event_allows_exactly_the_transitions_of_the_table(subject: Subject, name: str) -> None:
    events, attempt = TRIES[name]
    sources = frozenset().union(*(TRANSITIONS[event].sources for event in events))
    targets = {status for event in events for status in TRANSITIONS[event].targets}
    changed = set()
    for status in Status:
        job_id = subject.bring(status, queue="default")
        before = subject.everything(job_id)

        attempt(subject, subject.job(job_id))

        if subject.everything(job_id) != before:
            changed.add(status)
            found = subject.driver.inspector.get([job_id])
            assert {job.status for job in found.values()} <= targets
        finish(subject, job_id)

    assert changed == sources


def finish(subject: Subject, job_id: JobId) -> None:
    """Bring a job to a final state, so that no other job is due for the next one."""
    for job in subject.driver.inspector.get([job_id]).values():
        if job.status is Status.PROCESSING and job.lease_token is not None:
            subject.advance(2 * LEASE)
            subject.driver.maintenance.expire(limit=9)
        subject.cancel(job_id)
