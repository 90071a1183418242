"""The story of one job: what happened to it, when, where, and who asked for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import JobNotFound
from taskharbor.core.model import AttemptOutcome
from taskharbor.core.states import Status
from taskharbor.views import attempt_duration, error_view, failure_view, iso_time, last_failure, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import Attempt, AuditEntry, JobSummary, OutboxRow
    from taskharbor.core.results import Refusal
    from taskharbor.drivers.base import Inspector

MAX_AUDIT_ENTRIES: Final = 200
MAX_AUDIT_DELAY: Final = timedelta(minutes=1)
"""How long after an action its audit entry is written at the latest."""
RUNNING: Final = "RUNNING"
SUCCEEDED: Final = "SUCCEEDED"
_ZERO: Final = timedelta(0)


class Kind(StrEnum):
    """What an entry of a timeline is about."""

    CREATED = "created"
    ATTEMPT = "attempt"
    REFUSED = "refused"
    """The worker of a lost attempt called the store, and its lease token no longer matched."""
    CANCEL_REQUESTED = "cancel-requested"
    CANCELED = "canceled"
    """The job was canceled while it waited."""
    DIED = "died"
    REQUEUED = "requeued"
    CHANGED = "changed"
    """Any other action of the audit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEntry:
    """One entry. ``at`` is when it began.

    An attempt has the number of the attempt, and the life that it belongs to. Its ``wait`` is the time since its job
    was created or requeued, or since the previous attempt ended; a delay that was asked for is part of it. ``due_at``
    is known for the newest attempt only. ``by`` is who did it, as the audit log has it.
    """

    at: datetime
    kind: Kind
    life: int
    attempt: int | None = None
    worker: str | None = None
    outcome: str | None = None
    wait: timedelta | None = None
    run: timedelta | None = None
    due_at: datetime | None = None
    ended_at: datetime | None = None
    error: Mapping[str, Any] | None = None
    by: str | None = None
    action: str | None = None
    reason: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "at": iso_time(self.at),
            "kind": self.kind.value,
            "life": self.life,
            "attempt": self.attempt,
            "worker": self.worker,
            "outcome": self.outcome,
            "wait_seconds": seconds(self.wait),
            "run_seconds": seconds(self.run),
            "due_at": iso_time(self.due_at),
            "ended_at": iso_time(self.ended_at),
            "error": self.error,
            "by": self.by,
            "action": self.action,
            "reason": self.reason,
            "detail": dict(self.detail),
        }


def read_timeline(inspector: Inspector, job_id: JobId) -> list[TimelineEntry]:
    """Return the timeline of a job, oldest entry first, or raise `JobNotFound`. It reads five short lists."""
    job = inspector.summaries([job_id]).get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    return timeline(
        job,
        now=inspector.now(),
        attempts=inspector.attempts([job_id]),
        refusals=inspector.refusals([job_id]),
        events=inspector.outbox([job_id]),
        audit=inspector.audit(limit=MAX_AUDIT_ENTRIES, target=str(job_id)),
    )


def timeline(
    job: JobSummary,
    *,
    now: datetime,
    attempts: Sequence[Attempt],
    refusals: Sequence[Refusal],
    events: Sequence[OutboxRow],
    audit: Sequence[AuditEntry],
) -> list[TimelineEntry]:
    """Combine what is stored about *job*. *attempts* and *refusals* are oldest first, *audit* newest first."""
    actors = _Actors(audit)
    entries = [TimelineEntry(at=job.created_at, kind=Kind.CREATED, life=1, **_who(actors.take("jobs.enqueue")))]
    entries += attempt_entries(job, attempts, now=now)
    entries += [_requeued(each, actors) for each in attempts if each.outcome is AttemptOutcome.REQUEUED]
    runs = {each.token: each for each in attempts}
    entries += [_refused(each, job, runs) for each in refusals]
    entries += [_died(each, attempts) for each in events]
    entries += _cancel(job, attempts, actors)
    entries += actors.others([entry.at for entry in entries if entry.kind is Kind.REQUEUED])
    return sorted(entries, key=lambda entry: (entry.at, _ORDER.index(entry.kind)))


_ORDER: Final = list(Kind)
"""The order of entries of the same time: a death follows the attempt that caused it, and a requeue follows both."""


def attempt_entries(job: JobSummary, attempts: Sequence[Attempt], *, now: datetime) -> Iterator[TimelineEntry]:
    """Yield the attempts. The one that runs, or has succeeded, is not among *attempts*: it is read from the job."""
    since = job.created_at
    for each in attempts:
        if each.started_at is not None:
            yield TimelineEntry(
                at=each.started_at,
                kind=Kind.ATTEMPT,
                life=each.life,
                attempt=each.attempt,
                worker=each.worker_id,
                outcome=each.outcome.value,
                wait=max(each.started_at - since, _ZERO),
                run=attempt_duration(each),
                ended_at=each.ended_at,
                error=None if each.failure is None else failure_view(each.failure),
            )
        since = max(since, each.ended_at)
    is_recorded = any(each.token in {job.lease_token, job.settled_token} for each in attempts)
    started_at = job.processing_started_at
    if job.status in {Status.PROCESSING, Status.SUCCEEDED} and started_at is not None and not is_recorded:
        yield TimelineEntry(
            at=started_at,
            kind=Kind.ATTEMPT,
            life=job.life,
            attempt=job.attempt_count,
            worker=job.worker_id,
            outcome=RUNNING if job.completed_at is None else SUCCEEDED,
            wait=max(started_at - since, _ZERO),
            run=max((job.completed_at or now) - started_at, _ZERO),
            due_at=job.scheduled_for,
            ended_at=job.completed_at,
        )


def _requeued(attempt: Attempt, actors: _Actors) -> TimelineEntry:
    audited = actors.take("jobs.requeue", attempt.ended_at)
    return TimelineEntry(
        at=attempt.ended_at,
        kind=Kind.REQUEUED,
        life=attempt.life + 1,
        by=attempt.worker_id,
        action=None if audited is None else audited.action,
        reason=None if attempt.failure is None else attempt.failure.message or None,
        detail={} if audited is None else _without_reason(audited),
    )


def _refused(refusal: Refusal, job: JobSummary, attempts: Mapping[Token, Attempt]) -> TimelineEntry:
    assert refusal.at is not None  # noqa: S101  the store sets it
    lost = attempts.get(refusal.token)
    return TimelineEntry(
        at=refusal.at,
        kind=Kind.REFUSED,
        life=job.life if lost is None else lost.life,
        attempt=job.attempt_count if lost is None else lost.attempt,
        worker=job.worker_id if lost is None else lost.worker_id,
        action=refusal.event.value,
    )


def _died(row: OutboxRow, attempts: Sequence[Attempt]) -> TimelineEntry:
    """Return a death. Its detail is what became of the dead-letter event."""
    event = row.event
    published, given_up = iso_time(row.published_at), iso_time(row.given_up_at)
    state = {"event_published_at": published, "event_given_up_at": given_up, "event_error": row.last_error}
    detail = {name: text for name, text in state.items() if text is not None}
    failure = last_failure(each for each in attempts if each.life == event.life)
    return TimelineEntry(
        at=event.dead_at,
        kind=Kind.DIED,
        life=event.life,
        attempt=event.attempt_count,
        worker=event.worker_id,
        error=error_view(event.error, failure),
        detail=detail,
    )


def _cancel(job: JobSummary, attempts: Sequence[Attempt], actors: _Actors) -> Iterable[TimelineEntry]:
    """Yield the request of a cancel, or a cancel that ended the job while it waited."""
    if job.cancel_requested_at is not None:
        yield _canceled(job, Kind.CANCEL_REQUESTED, job.cancel_requested_at, actors)
    elif job.status is Status.CANCELED and job.completed_at is not None and not _ends_canceled(job, attempts):
        yield _canceled(job, Kind.CANCELED, job.completed_at, actors)


def _ends_canceled(job: JobSummary, attempts: Sequence[Attempt]) -> bool:
    return any(each.life == job.life and each.status is Status.CANCELED for each in attempts)


def _canceled(job: JobSummary, kind: Kind, at: datetime, actors: _Actors) -> TimelineEntry:
    return TimelineEntry(at=at, kind=kind, life=job.life, **_who(actors.take("jobs.cancel", at)))


class _Actors:
    """The audit entries of a job that no other entry of the timeline shows yet, oldest first."""

    def __init__(self, audit: Sequence[AuditEntry]) -> None:
        self._left = [(each.at, each) for each in reversed(audit) if each.at is not None]

    def take(self, action: str, done_at: datetime | None = None) -> AuditEntry | None:
        """Remove and return the entry of an *action* that was done at this time. It is written when that is done."""
        for at, entry in self._left:
            if entry.action == action and (done_at is None or done_at <= at < done_at + MAX_AUDIT_DELAY):
                self._left.remove((at, entry))
                return entry
        return None

    def others(self, requeues: Sequence[datetime]) -> Iterable[TimelineEntry]:
        for at, entry in self._left:
            yield TimelineEntry(
                at=at,
                kind=Kind.CHANGED,
                life=1 + sum(requeued_at <= at for requeued_at in requeues),
                by=entry.actor,
                action=entry.action,
                reason=entry.detail.get("why") or None,
                detail=_without_reason(entry),
            )


def _who(entry: AuditEntry | None) -> dict[str, Any]:
    return {} if entry is None else {"by": entry.actor, "action": entry.action}


def _without_reason(entry: AuditEntry) -> dict[str, str]:
    return {name: text for name, text in entry.detail.items() if name != "why"}
