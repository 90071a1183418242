"""What dead letters died of."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from taskharbor.core.answers import DeadLetterGroup
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Job
    from taskharbor.drivers.memory.tables import Tables


def dead_groups(tables: Tables, *, queue: str | None) -> list[DeadLetterGroup]:
    """Count the dead letters that died of the same, the largest group first."""
    letters: defaultdict[tuple[str, str, str], list[Job]] = defaultdict(list)
    for job in tables.rows.jobs.values():
        killer = fingerprint(tables, job)
        if killer is not None and queue in {None, job.queue}:
            letters[job.queue, job.type, killer].append(job)
    groups = [_group(killer, jobs) for (_, _, killer), jobs in sorted(letters.items())]
    return sorted(groups, key=lambda group: -group.count)


def fingerprint(tables: Tables, job: Job) -> str | None:
    """Return that of the error which killed *job*: empty, if it died without one; None, if it is not dead."""
    if job.status is not Status.DEAD:
        return None
    attempts = tables.rows.attempts.get(job.id, {}).values()
    deaths = [each.failure for each in attempts if each.life == job.life and each.status is Status.DEAD]
    return next((failure.fingerprint for failure in deaths if failure is not None), "")


def _group(killer: str, jobs: list[Job]) -> DeadLetterGroup:
    by_death = sorted(jobs, key=_death)
    newest = by_death[-1]
    return DeadLetterGroup(
        queue=newest.queue,
        type=newest.type,
        fingerprint=killer,
        count=len(jobs),
        error=newest.last_error or "",
        first_at=_death(by_death[0])[0],
        last_at=_death(newest)[0],
        sample=newest.id,
    )


def _death(job: Job) -> tuple[datetime, JobId]:
    assert job.dead_at is not None  # noqa: S101  a dead letter has the time of its death
    return job.dead_at, job.id
