"""Read access, and the grouping of dead letters by error."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from taskharbor.core.model import AttemptOutcome
from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, Page, QueueStats, Tally, scan_limit
from taskharbor.core.states import Status
from taskharbor.drivers.memory import statistics

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import Refusal
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import AppVersion, DeadHour, SeriesPoint, SeriesQuery
    from taskharbor.drivers.memory.tables import Tables

PRUNED: Final = frozenset({Status.SUCCEEDED, Status.CANCELED})


def dead_groups(tables: Tables, *, queue: str | None) -> list[DeadLetterGroup]:
    """Group dead letters by queue, type and error fingerprint, largest group first."""
    letters: defaultdict[tuple[str, str, str], list[Job]] = defaultdict(list)
    for job in tables.rows.jobs.values():
        error = fingerprint(tables, job)
        if error is not None and queue in {None, job.queue}:
            letters[job.queue, job.type, error].append(job)
    groups = [_group(error, jobs) for (_, _, error), jobs in sorted(letters.items())]
    return sorted(groups, key=lambda group: -group.count)


def fingerprint(tables: Tables, job: Job) -> str | None:
    """Return the fingerprint of the error that *job* died of: empty if there was none, None if it is not dead."""
    if job.status is not Status.DEAD:
        return None
    attempts = tables.rows.attempts.get(job.id, {}).values()
    deaths = [each.failure for each in attempts if each.life == job.life and each.status is Status.DEAD]
    return next((failure.fingerprint for failure in deaths if failure is not None), "")


def _group(error: str, jobs: list[Job]) -> DeadLetterGroup:
    by_death = sorted(jobs, key=_death)
    newest = by_death[-1]
    return DeadLetterGroup(
        queue=newest.queue,
        type=newest.type,
        fingerprint=error,
        count=len(jobs),
        error=newest.last_error or "",
        first_at=_death(by_death[0])[0],
        last_at=_death(newest)[0],
        sample=newest.id,
    )


def _death(job: Job) -> tuple[datetime, JobId]:
    assert job.dead_at is not None  # noqa: S101  every dead letter has dead_at
    return job.dead_at, job.id


class MemoryInspector:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def now(self) -> datetime:
        return self._tables.clock.now()

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        with self._tables.statement():
            return {job_id: job for job_id in job_ids if (job := self._tables.rows.jobs.get(job_id)) is not None}

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        with self._tables.statement():
            jobs = self._tables.rows.jobs
            return {job_id: jobs[job_id].summary() for job_id in job_ids if job_id in jobs}

    def find(self, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
        with self._tables.statement():
            scanned = self._scanned(wanted, scan_limit(limit), after)
            found = [job.summary() for job in scanned if self._matches(job, wanted)]
            return Page.of(found, limit=limit, edge=scanned[-1].id if len(scanned) == scan_limit(limit) else None)

    def count(self, wanted: JobFilter, *, after: JobId | None = None) -> Tally:
        with self._tables.statement():
            scanned, most = self._scanned(wanted, scan_limit(1), after), scan_limit(1)
            matching = sum(self._matches(job, wanted) for job in scanned)
            return Tally(matching, scanned[-1].id if len(scanned) == most else None)

    def _scanned(self, wanted: JobFilter, most: int, after: JobId | None) -> list[Job]:
        lowest, below = wanted.id_bounds(after)
        jobs = [job for job in self._tables.rows.jobs.values() if lowest <= job.id < below]
        return sorted(jobs, key=lambda job: job.id, reverse=True)[:most]

    def next_up(self, queue: str, *, limit: int) -> list[JobSummary]:
        with self._tables.statement() as now:
            rows = self._tables.rows
            waiting = [rows.jobs[job_id] for job_id in rows.waiting.get(queue, ())]
            jobs = sorted((job for job in waiting if not job.is_exhausted), key=lambda job: _run_order(job, now))
            return [job.summary() for job in jobs[:limit]]

    def _matches(self, job: Job, wanted: JobFilter) -> bool:
        return (
            (wanted.queue is None or job.queue == wanted.queue)
            and (wanted.type is None or job.type == wanted.type)
            and (wanted.statuses is None or job.status in wanted.statuses)
            and (wanted.since is None or job.created_at >= wanted.since)
            and (wanted.until is None or job.created_at < wanted.until)
            and (wanted.worker is None or job.worker_id == wanted.worker)
            and (wanted.schedule is None or job.metadata.get("schedule") == wanted.schedule)
            and (wanted.tag is None or wanted.tag in job.metadata.items())
            and (wanted.fingerprint is None or fingerprint(self._tables, job) == wanted.fingerprint)
        )

    def find_by_key(self, key: str) -> list[JobId]:
        with self._tables.statement():
            return [held.holder for (_, name), held in sorted(self._tables.rows.keys.items()) if name == key]

    def attempts(self, job_ids: Sequence[JobId]) -> list[Attempt]:
        with self._tables.statement():
            recorded = self._tables.rows.attempts
            return [attempt for job_id in job_ids if job_id in recorded for attempt in _by_end(recorded[job_id])]

    def refusals(self, job_ids: Sequence[JobId]) -> list[Refusal]:
        with self._tables.statement():
            recorded = sorted(self._tables.rows.refusals.values(), key=_refused_at)
            return [each for job_id in job_ids for each in recorded if each.job_id == job_id]

    def lost_attempts(self, worker_id: str, *, limit: int) -> list[Attempt]:
        with self._tables.statement():
            attempts = [each for attempts in self._tables.rows.attempts.values() for each in attempts.values()]
            lost = [each for each in attempts if each.outcome is AttemptOutcome.LOST and each.worker_id == worker_id]
            return sorted(lost, key=lambda attempt: (attempt.ended_at, attempt.job_id), reverse=True)[:limit]

    def outbox(self, job_ids: Sequence[JobId]) -> list[OutboxRow]:
        with self._tables.statement():
            rows = self._tables.rows.outbox.values()
            return [row for job_id in job_ids for row in rows if row.event.job_id == job_id]

    def outbox_pending(self, *, limit: int) -> int:
        with self._tables.statement():
            return min(sum(not row.is_done for row in self._tables.rows.outbox.values()), limit)

    def kept_by_events(self, *, older_than: timedelta, limit: int) -> list[JobId]:
        with self._tables.statement() as now:
            rows, until = self._tables.rows, now - older_than
            ids = sorted({row.event.job_id for row in rows.outbox.values() if not row.is_done})
            jobs = [rows.jobs[job_id] for job_id in ids if rows.jobs[job_id].status in PRUNED]
            return [job.id for job in jobs if job.completed_at is not None and job.completed_at <= until][:limit]

    def publisher_seen_at(self) -> datetime | None:
        with self._tables.statement():
            return self._tables.rows.publisher_seen_at

    def delivery(self, queue: str) -> list[DeliveryNote]:
        with self._tables.statement():
            return [note for note in self._tables.rows.delivery.values() if note.queue == queue]

    def queues(self) -> list[QueueStats]:
        with self._tables.statement() as now:
            rows = self._tables.rows
            names = {queue for (queue, _), count in rows.counts.items() if count} | set(rows.paused)
            return [self._view(name, now) for name in sorted(names)]

    def _view(self, name: str, now: datetime) -> QueueStats:
        rows = self._tables.rows
        waiting = (rows.jobs[job_id].scheduled_for for job_id in rows.waiting.get(name, ()))
        pause = rows.paused.get(name)
        return QueueStats(
            name=name,
            counts={status: rows.counts[name, status] for status in Status},
            oldest_due=min((due for due in waiting if due <= now), default=None),
            paused_at=pause.at if pause else None,
            paused_by=pause.by if pause else None,
            paused_reason=pause.reason if pause else "",
            paused_until=pause.until if pause else None,
        )

    def next_due_in(self, queue: str) -> timedelta | None:
        with self._tables.statement() as now:
            rows = self._tables.rows
            times = [rows.jobs[job_id].scheduled_for for job_id in rows.waiting.get(queue, ())]
            return min((time - now for time in times if time > now), default=None)

    def finished_counts(
        self, *, since: datetime, queue: str | None = None, limit: int | None = None
    ) -> list[FinishedCount]:
        with self._tables.statement():
            found = [
                FinishedCount(minute=minute, queue=name, status=status, count=count)
                for (minute, name, status), count in sorted(self._tables.rows.finished.items())
                if minute >= since
                if queue is None or name == queue
            ]
            return found if limit is None else found[max(0, len(found) - limit) :]

    def dead_letter_groups(self, *, limit: int, queue: str | None = None) -> list[DeadLetterGroup]:
        with self._tables.statement():
            return dead_groups(self._tables, queue=queue)[:limit]

    def series(self, query: SeriesQuery) -> list[SeriesPoint]:
        with self._tables.statement():
            return statistics.series(self._tables, query)

    def dead_hours(self, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
        with self._tables.statement():
            return statistics.dead_hours(self._tables, groups, since=since)

    def versions(self, *, limit: int) -> list[AppVersion]:
        with self._tables.statement():
            return statistics.versions(self._tables, limit=limit)

    def workers(self) -> list[WorkerRecord]:
        with self._tables.statement():
            return sorted(self._tables.rows.workers.values(), key=lambda worker: worker.id)

    def past_workers(self) -> list[WorkerRecord]:
        with self._tables.statement():
            rows = self._tables.rows
            past = [worker for worker in rows.past_workers.values() if worker.id not in rows.workers]
            return sorted(past, key=lambda worker: worker.id)

    def duties(self) -> dict[str, datetime]:
        with self._tables.statement():
            return dict(sorted(self._tables.rows.duties.items()))

    def schedules(self) -> dict[str, Schedule]:
        with self._tables.statement():
            return dict(sorted(self._tables.rows.schedules.items()))

    def schedule_runs(self, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
        with self._tables.statement():
            return [run for name in names for run in self._tables.rows.runs.get(name, ())[: -limit - 1 : -1]]

    def settings(self) -> dict[str, str]:
        with self._tables.statement():
            return dict(sorted(self._tables.settings.items()))

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        with self._tables.statement():
            known = sorted(self._tables.rows.api_keys.items())
            return {key_id: key for key_id, key in known if ids is None or key_id in ids}

    def audit(
        self,
        *,
        limit: int,
        before: Token | None = None,
        target: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        with self._tables.statement():
            entries = sorted(self._tables.rows.audit.values(), key=_position, reverse=True)
            if before is not None:
                known = [_position(each) for each in entries if each.id == before]
                entries = [each for each in entries if known and _position(each) < known[0]]
            entries = [each for each in entries if target in {None, each.target} and actor in {None, each.actor}]
            return [each for each in entries if action in {None, each.action}][:limit]


def _by_end(attempts: dict[Token, Attempt]) -> list[Attempt]:
    """Sort attempts by the time they ended, which differs from the order of insertion after a backward clock jump."""
    return sorted(attempts.values(), key=lambda attempt: attempt.ended_at)


def _run_order(job: Job, now: datetime) -> tuple[bool, int, datetime, int, JobId]:
    is_later = job.scheduled_for > now
    return is_later, 0 if is_later else job.priority, job.scheduled_for, job.priority, job.id


def _refused_at(refusal: Refusal) -> tuple[datetime, Token]:
    assert refusal.at is not None  # noqa: S101  the store sets it
    return refusal.at, refusal.token


def _position(entry: AuditEntry) -> tuple[datetime, Token]:
    assert entry.at is not None  # noqa: S101  the store sets it
    return entry.at, entry.id
