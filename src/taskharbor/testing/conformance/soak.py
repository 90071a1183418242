"""A soak test with many jobs, many workers and short leases."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Settled, Settlement
from taskharbor.core.states import Status
from taskharbor.testing.conformance.races import RIVALS, race
from taskharbor.testing.conformance.subject import new_job

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from taskharbor.testing.conformance.subject import Subject

JOBS = 2_000


def test_no_job_is_held_twice_while_leases_end_under_many_workers(subject: Subject) -> None:
    """Some leases end before their holder settles; those settlements must be refused."""
    new = [new_job(max_attempts=1_000) for _ in range(JOBS)]
    subject.driver.insert(new)
    settled: list[JobId] = []
    lease = timedelta(seconds=1)

    def work(number: int) -> None:
        for turn in range(20 * JOBS // RIVALS):
            claims = subject.reserve(limit=5, lease=lease)
            if not claims and len(settled) >= JOBS:
                return
            if (number + turn) % 50 == 0:
                subject.advance(lease)  # all current leases expire
            answers = subject.driver.settle([Settlement(claim.lease, Outcome.ack()) for claim in claims])
            settled.extend(answer.job_id for answer in answers if isinstance(answer, Settled))

    race(work)

    assert Counter(settled) == Counter(job.id for job in new)
    jobs = subject.driver.inspector.get([job.id for job in new])
    lost = subject.driver.inspector.attempts([job.id for job in new])
    assert {job.status for job in jobs.values()} == {Status.SUCCEEDED}
    assert sum(job.attempt_count for job in jobs.values()) == JOBS + len(lost)
    assert lost
