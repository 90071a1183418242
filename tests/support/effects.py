"""A log that handlers write their effects to, and a check that it agrees with the store."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final
from uuid import UUID

from taskharbor.core.ids import Token
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt, Claim, Job
    from taskharbor.drivers.base import Driver

COUNTED: Final = frozenset({AttemptOutcome.LOST, AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    what: str
    job: str
    attempt: int
    token: str
    pid: int
    at: float
    monotonic: float

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)


class Effects:
    """A file that any number of processes append to. Each line is written atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, claim: Claim) -> None:
        effect = Effect(
            what=what,
            job=str(claim.job.id),
            attempt=claim.job.attempt_count,
            token=str(claim.lease.token),
            pid=os.getpid(),
            at=time.time(),
            monotonic=time.monotonic(),
        )
        os.write(self._file, json.dumps(asdict(effect)).encode() + b"\n")

    def read(self, what: str = "start") -> list[Effect]:
        effects = [Effect(**json.loads(line)) for line in self._path.read_text().splitlines()]
        return sorted((each for each in effects if each.what == what), key=lambda each: each.monotonic)


def check(driver: Driver, job_ids: Sequence[JobId], starts: Iterable[Effect], *, lease: timedelta) -> dict[str, int]:
    """Fail if a job was lost or had two holders at once. Return counts of jobs and attempts."""
    jobs = driver.inspector.get(job_ids)
    assert set(jobs) == set(job_ids), "an accepted job was lost"
    started = list(starts)
    assert {*Counter((each.job, each.token) for each in started).values()} <= {1}, "one claim ran twice"
    attempts = driver.inspector.attempts(job_ids)
    for job in jobs.values():
        own = [each for each in attempts if each.job_id == job.id]
        _check_job(job, own)
        _check_holders(job, own, [each for each in started if each.job == str(job.id)], lease)
    return {
        "jobs": len(jobs),
        "attempts begun": len(started),
        "attempts lost": sum(each.outcome is AttemptOutcome.LOST for each in attempts),
        "attempts released": sum(each.outcome is AttemptOutcome.RELEASED for each in attempts),
        "dead": sum(job.status is Status.DEAD for job in jobs.values()),
    }


def _check_job(job: Job, attempts: Sequence[Attempt]) -> None:
    has_succeeded = job.status is Status.SUCCEEDED
    assert job.status.is_final or job.status is Status.PENDING, f"{job.id} is still {job.status}"
    assert job.attempt_count <= job.max_attempts, f"{job.id} had too many attempts"
    counted = sum(each.outcome in COUNTED for each in attempts)
    assert job.attempt_count == counted + has_succeeded, f"{job.id} has a wrong attempt count"
    if has_succeeded:
        assert job.result is not None
        assert json.loads(job.result) == str(job.settled_token), f"the result of {job.id} is that of a stale attempt"


def _check_holders(job: Job, attempts: Sequence[Attempt], starts: Sequence[Effect], lease: timedelta) -> None:
    """Check that each attempt began after the previous one ended or its lease expired."""
    ends = {each.token: each.ended_at for each in attempts}
    if job.settled_token is not None and job.status is Status.SUCCEEDED and job.completed_at is not None:
        ends[job.settled_token] = job.completed_at
    for each in attempts:
        if each.outcome is AttemptOutcome.LOST and each.started_at is not None:
            assert each.ended_at >= each.started_at + lease, f"{job.id} was reclaimed while its lease was valid"
    for earlier, later in pairwise(starts):
        end = ends.get(_token(earlier))
        assert end is not None, f"an attempt of {job.id} ran but was not recorded"
        assert later.moment >= end, f"{job.id} had two holders at once"


def _token(effect: Effect) -> Token:
    return Token(UUID(effect.token))
