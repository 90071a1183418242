"""The rules that decide whether a worker may claim a job."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from taskharbor.core.results import RefusalReason
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from taskharbor.core.ids import Token
    from taskharbor.core.model import Job


UNHANDLED_AFTER: Final = timedelta(minutes=5)
"""How long due jobs of a type without a handler are left for other workers: longer than a rolling deploy."""


class Claimant(NamedTuple):
    """A worker that claims jobs: its token, id, lease duration and handled types.

    A waiting job of another type may be claimed once it has been due for *unhandled_after*.
    """

    token: Token
    worker: str
    lease: timedelta
    types: Collection[str] | None
    reclaims: bool
    unhandled_after: timedelta | None = None

    def may_take(self, job: Job, now: datetime) -> bool:
        """Return whether the claimant may claim a job of this type. An expired lease needs a handled type."""
        if self.types is None or job.type in self.types:
            return True
        return (
            job.status.is_waiting
            and self.unhandled_after is not None
            and now - job.scheduled_for >= self.unhandled_after
        )

    def may_take_from(self, job: Job, now: datetime) -> datetime | None:
        """Return when a due job of an unhandled type may be claimed; None if never."""
        is_due = job.status.is_waiting and job.scheduled_for <= now
        return job.scheduled_for + self.unhandled_after if is_due and self.unhandled_after is not None else None

    def may_reclaim(self, job: Job) -> bool:
        """Return whether the job may be reclaimed once its lease expired: never under its own token."""
        return self.reclaims and job.lease_token != self.token


def refusal_reason(
    job: Job,
    claimant: Claimant,
    *,
    queue: str,
    now: datetime,
    hold: datetime | None,
    attempts: int,
    is_paused: bool,
) -> tuple[RefusalReason, datetime | None] | None:
    """Return the first reason why this job cannot be claimed by id from *queue*, and its end; None if it can.

    *hold* is the end of an active clock hold. *attempts* is the attempt count without an attempt
    that was lost to a clock jump. A driver calls this when its conditional statement matched no row.
    """
    is_running = job.status is Status.PROCESSING
    is_expired = job.lease_expires_at is not None and job.lease_expires_at <= now
    is_held = is_running and (hold is not None or not is_expired or not claimant.may_reclaim(job))
    checks = (
        (job.queue != queue, RefusalReason.OTHER_QUEUE, None),
        (job.status.is_final, RefusalReason.FINAL, None),
        (is_held, RefusalReason.LEASED, hold if is_expired else job.lease_expires_at),
        (job.status in {Status.PENDING, Status.FAILED}, RefusalReason.NOT_ENQUEUED, None),
        (job.cancel_requested_at is not None, RefusalReason.CANCEL_REQUESTED, None),
        (attempts >= job.max_attempts, RefusalReason.EXHAUSTED, None),
        (is_paused, RefusalReason.PAUSED, None),
        (not claimant.may_take(job, now), RefusalReason.UNHANDLED, claimant.may_take_from(job, now)),
        (job.scheduled_for > now and not is_running, RefusalReason.NOT_DUE, job.scheduled_for),
    )
    return next(((reason, until) for holds, reason, until in checks if holds), None)
