"""Who claims jobs, and why one cannot be claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taskharbor.core.results import RefusalReason
from taskharbor.core.states import Status

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime, timedelta

    from taskharbor.core.ids import Token
    from taskharbor.core.model import Job


class Claimant(NamedTuple):
    """Who takes jobs, under which token, for how long, and of which types.

    A waiting job of any other type is taken too once it has been due for *unhandled_after*.
    """

    token: Token
    worker: str
    lease: timedelta
    types: Collection[str] | None
    reclaims: bool
    unhandled_after: timedelta | None = None

    def may_take(self, job: Job, now: datetime) -> bool:
        """Return whether the job's type allows it. A lease that ended is reclaimed for its type alone."""
        if self.types is None or job.type in self.types:
            return True
        return (
            job.status.is_waiting
            and self.unhandled_after is not None
            and now - job.scheduled_for >= self.unhandled_after
        )

    def may_take_from(self, job: Job, now: datetime) -> datetime | None:
        """Return when the type of a due job that is not handled stops to matter; None if it always will."""
        is_due = job.status.is_waiting and job.scheduled_for <= now
        return job.scheduled_for + self.unhandled_after if is_due and self.unhandled_after is not None else None

    def may_reclaim(self, job: Job) -> bool:
        """Tell whether the lease of *job*, once it is over, may be reclaimed: never under its own token."""
        return self.reclaims and job.lease_token != self.token


def refusal_reason(
    job: Job,
    taker: Claimant,
    *,
    queue: str,
    now: datetime,
    hold: datetime | None,
    attempts: int,
    is_paused: bool,
) -> tuple[RefusalReason, datetime | None] | None:
    """Return the first reason why this job may not be claimed by its id for *queue*, and until when; None, if it may.

    *hold* is the end of a clock hold that lasts, *attempts* what counts once an attempt
    that was lost to the clock is given back. A driver that was refused by its own
    conditional statement finds the words for it here.
    """
    is_running = job.status is Status.PROCESSING
    is_over = job.lease_expires_at is not None and job.lease_expires_at <= now
    is_taken = is_running and (hold is not None or not is_over or not taker.may_reclaim(job))
    checks = (
        (job.queue != queue, RefusalReason.OTHER_QUEUE, None),
        (job.status.is_final, RefusalReason.FINAL, None),
        (is_taken, RefusalReason.LEASED, hold if is_over else job.lease_expires_at),
        (job.status in {Status.PENDING, Status.FAILED}, RefusalReason.NOT_ENQUEUED, None),
        (job.cancel_requested_at is not None, RefusalReason.CANCEL_REQUESTED, None),
        (attempts >= job.max_attempts, RefusalReason.SPENT, None),
        (is_paused, RefusalReason.PAUSED, None),
        (not taker.may_take(job, now), RefusalReason.UNHANDLED, taker.may_take_from(job, now)),
        (job.scheduled_for > now and not is_running, RefusalReason.NOT_DUE, job.scheduled_for),
    )
    return next(((reason, until) for holds, reason, until in checks if holds), None)
