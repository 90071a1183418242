"""Concurrent calls: one of them succeeds, and the others are refused.

Each race starts its threads at a barrier. Every wait has a timeout.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from taskharbor.core.errors import LeaseLost
from taskharbor.core.model import Claim, Schedule
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Skipped, Transitioned
from taskharbor.core.states import Status
from taskharbor.testing.conformance.subject import BOOM, LEASE, new_job

if TYPE_CHECKING:
    from collections.abc import Callable

    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.testing.conformance.subject import Subject

T = TypeVar("T")
RIVALS = 32


def race(run: Callable[[int], T], rivals: int = RIVALS) -> list[T]:
    """Call *run* in *rivals* threads at the same time; return the result of each."""
    gate = threading.Barrier(rivals, timeout=30)

    def start(number: int) -> T:
        gate.wait()
        return run(number)

    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that threads also switch inside a statement, not only between two
    try:
        with ThreadPoolExecutor(rivals) as pool:
            return list(pool.map(start, range(rivals), timeout=60))
    finally:
        sys.setswitchinterval(previous)


def test_concurrent_reserves_of_one_job_have_one_winner(subject: Subject) -> None:
    subject.insert()

    claims = race(lambda _: subject.reserve())

    assert sum(map(len, claims)) == 1


def test_concurrent_reclaims_of_one_lease_have_one_winner(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING)
    subject.advance(LEASE)

    claims = race(lambda _: subject.reserve())

    assert sum(map(len, claims)) == 1
    assert (subject.job(job_id).attempt_count, len(subject.attempts(job_id))) == (2, 1)


def test_concurrent_claims_of_one_job_have_one_winner(subject: Subject) -> None:
    job_id = subject.bring(Status.ENQUEUED)

    answers = race(lambda _: subject.claim(job_id)[0])

    assert sum(isinstance(answer, Claim) for answer in answers) == 1


def test_concurrent_expiries_of_one_lease_have_one_winner(subject: Subject) -> None:
    job_id = subject.bring(Status.PROCESSING, max_attempts=1)
    subject.advance(LEASE)

    answers = race(lambda _: subject.driver.maintenance.expire(limit=10))

    assert sum(map(len, answers)) == 1
    assert len(subject.outbox(job_id)) == 1


def _settle(subject: Subject, claim: Claim, outcome: Outcome) -> SettleAnswer:
    """Settle as a worker does: again if another transaction had locked the row."""
    deadline = time.monotonic() + 30
    while isinstance(answer := subject.settle(claim, outcome), Skipped) and time.monotonic() < deadline:
        pass
    return answer


def test_concurrent_outcomes_for_one_lease_record_one(subject: Subject) -> None:
    subject.insert()
    claim = subject.take()
    outcomes = [Outcome.ack(), Outcome.fail("hopeless"), Outcome.cancel(), Outcome.release()]

    answers = race(lambda number: _settle(subject, claim, outcomes[number % 4]))

    statuses = {answer.status for answer in answers if isinstance(answer, Settled)}
    assert statuses == {subject.job(claim.job.id).status}
    assert Counter(isinstance(answer, LeaseLost) for answer in answers) == {True: 24, False: 8}


def test_a_concurrent_outcome_and_cancel_leave_one_final_state(subject: Subject) -> None:
    subject.driver.insert([new_job(max_attempts=1) for _ in range(20)])
    claims = subject.reserve(limit=20)
    failure = Outcome.retry(after=timedelta(0), failure=BOOM)

    def run(number: int) -> list[object]:
        settles = number % 2
        return [_settle(subject, each, failure) if settles else subject.cancel(each.job.id) for each in claims]

    answers = race(run)

    settled = {answer for each in answers for answer in each if isinstance(answer, Settled)}
    finals = subject.driver.inspector.get([claim.job.id for claim in claims]).values()
    assert settled == {Settled(job.id, job.status) for job in finals}
    canceled = {answer.job_id for each in answers for answer in each if isinstance(answer, Transitioned)}
    assert canceled == {job.id for job in finals if job.status is Status.CANCELED}


def test_concurrent_requeues_of_one_dead_job_have_one_winner(subject: Subject) -> None:
    job_id = subject.bring(Status.DEAD)

    answers = race(lambda _: subject.requeue(job_id))

    assert sum(isinstance(answer, Transitioned) for answer in answers) == 1
    assert subject.job(job_id).life == 2


def test_many_enqueuers_dispatch_each_job_once(subject: Subject) -> None:
    subject.driver.insert([new_job() for _ in range(200)])

    batches = race(lambda _: [each for _ in range(5) for each in subject.dispatch(limit=7)])

    sent = Counter(dispatch.job_id for batch in batches for dispatch in batch)
    assert (len(sent), set(sent.values())) == (200, {1})


def test_many_relays_claim_each_event_once(subject: Subject) -> None:
    for _ in range(50):
        subject.bring(Status.DEAD)

    batches = race(lambda _: subject.driver.maintenance.claim_outbox(limit=10, lock=LEASE))

    claimed = Counter(row.event.event_id for batch in batches for row in batch)
    assert (len(claimed), set(claimed.values())) == (50, {1})


def test_concurrent_fires_of_one_schedule_store_one_set_of_jobs(subject: Subject) -> None:
    due = subject.clock.now()
    often = Schedule(name="often", cron="* * * * *", timezone="UTC", type="a", queue="a", payload=b"", next_at=due)
    subject.driver.control.put_schedules([often])
    jobs = [[new_job(), new_job()] for _ in range(RIVALS)]

    answers = race(
        lambda number: subject.driver.maintenance.advance_schedule(
            "often", fired=due, next_at=due + LEASE, jobs=jobs[number]
        )
    )

    winners = [number for number, answer in enumerate(answers) if answer]
    stored = subject.driver.inspector.get([job.id for each in jobs for job in each])
    assert len(winners) == 1
    assert {*stored} == {job.id for job in jobs[winners[0]]}
    assert subject.driver.inspector.schedules()["often"].last_job_id == jobs[winners[0]][-1].id
