"""The job of a claim: the stored one, whatever has happened to it before."""

from __future__ import annotations

from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor.core.ids import new_token
from taskharbor.core.model import Claim, Lease, Progress
from taskharbor.core.outcome import Outcome
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, OVERDUE_AFTER, TICK

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject

JOBS: Final = 12
EVENTS: Final = 4
NOW: Final = timedelta(0)


@pytest.mark.parametrize("way", ["reserve", "claim", "reclaim", "reclaim by id"])
def test_a_claim_returns_the_stored_job_whatever_its_history(subject: Subject, way: str) -> None:
    rng = Random(way)  # noqa: S311  not for security
    for number in range(JOBS):
        job_id = _inserted(subject, rng, number)
        for event in rng.choices(HISTORY, k=rng.randrange(EVENTS)):
            event(subject, job_id)
        _prepare(subject, job_id, way)
        token = new_token()

        claims = subject.reserve(token=token) if way in {"reserve", "reclaim"} else subject.claim(job_id, token=token)

        job = subject.job(job_id)
        assert claims == [Claim(job, Lease(job_id, token, subject.clock.now() + LEASE))]
        assert claims[0].is_reclaim is way.startswith("reclaim")  # type: ignore[union-attr]
        assert job.status is Status.PROCESSING
        subject.settle(claims[0].lease, Outcome.ack())  # type: ignore[union-attr]


def _inserted(subject: Subject, rng: Random, number: int) -> JobId:
    return subject.insert(
        max_attempts=EVENTS + 3,
        payload=b"%d" % number,
        priority=rng.choice([-1, 0, 7]),
        timeout=rng.choice([None, timedelta(days=1, microseconds=1)]),
        idempotency_key=rng.choice([None, f"key {number}"]),
        digest=b"digest",
        metadata=rng.choice([{}, {"tenant": "ä", "trace": "00-1"}]),
    )


def _prepare(subject: Subject, job_id: JobId, way: str) -> None:
    is_sent = subject.job(job_id).status is Status.ENQUEUED
    if way.startswith("reclaim"):
        _held(subject, job_id)
        subject.advance(LEASE)
    elif way == "claim" and not is_sent:
        subject.send()
    elif way == "reserve" and is_sent:
        subject.advance(OVERDUE_AFTER + TICK)


def _held(subject: Subject, job_id: JobId) -> Lease:
    is_sent = subject.job(job_id).status is Status.ENQUEUED
    [claim] = subject.claim(job_id) if is_sent else subject.reserve()
    assert isinstance(claim, Claim)
    return claim.lease


def _send(subject: Subject, job_id: JobId) -> None:
    if subject.job(job_id).status is not Status.ENQUEUED:
        subject.send()


def _retry(subject: Subject, job_id: JobId) -> None:
    subject.settle(_held(subject, job_id), Outcome.retry(after=NOW, failure=BOOM))


def _snooze(subject: Subject, job_id: JobId) -> None:
    subject.settle(_held(subject, job_id), Outcome.snooze(after=NOW))


def _release_with_progress(subject: Subject, job_id: JobId) -> None:
    lease = _held(subject, job_id)
    subject.driver.save_progress([(lease, Progress(1, 3, "first"))])
    subject.settle(lease, Outcome.release())


def _die_and_requeue(subject: Subject, job_id: JobId) -> None:
    subject.settle(_held(subject, job_id), Outcome.fail("hopeless", failure=BOOM))
    subject.requeue(job_id)


HISTORY: Final[list[Callable[[Subject, JobId], None]]] = [
    _send, _retry, _snooze, _release_with_progress, _die_and_requeue
]  # fmt: skip
