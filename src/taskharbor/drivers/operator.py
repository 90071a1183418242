"""The driver protocols for operators: `Inspector` and `Auditor` read, `Control` steers queues, schedules and keys.

The rules for every method are in `taskharbor.drivers.base`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.audit import AuditPage, AuditPart
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import (
        DeadLetterGroup,
        FinishedCount,
        JobFilter,
        Page,
        QueueStats,
        Refusal,
        Tally,
    )
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import AppVersion, DeadHour, SeriesPoint, SeriesQuery


class Inspector(Protocol):
    """Read access. No method locks rows, changes rows, or counts the whole history."""

    def now(self) -> datetime:
        """Return the store's time."""

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        """Return the jobs that exist among *job_ids*, by id."""

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        """Return the jobs that exist among *job_ids*, by id, without reading payloads and results."""

    def find(self, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
        """Return a page of matching jobs with ids below *after*, newest id first, without payloads and results.

        Paging is stable: jobs that are inserted meanwhile are neither repeated nor hide others. A call scans at most
        `taskharbor.core.results.scan_limit` jobs, however few of them match. A page may therefore have fewer than
        *limit* jobs, even none; its ``after`` is where the next page starts. Jobs outside `JobFilter.id_bounds` are
        not scanned: a search by *since* ends there.
        """

    def count(self, wanted: JobFilter, *, after: JobId | None = None) -> Tally:
        """Count the matching jobs among the next ``scan_limit(1)`` ones with ids below *after*, newest id first."""

    def next_up(self, queue: str, *, limit: int) -> list[JobSummary]:
        """Return the jobs of *queue* that run next: the due ones in the order of `Driver.reserve`, then the others.

        Jobs that are not due are ordered by ``scheduled_for``, priority and id. A paused queue has the same answer.
        """

    def find_by_key(self, key: str) -> list[JobId]:
        """Return the ids of the jobs that hold the idempotency key *key*, at most one per queue, ordered by queue."""

    def attempts(self, job_ids: Sequence[JobId]) -> list[Attempt]:
        """Return the recorded attempts of these jobs, in the order of *job_ids*, each job's by the time they ended."""

    def refusals(self, job_ids: Sequence[JobId]) -> list[Refusal]:
        """Return the refused calls of workers about these jobs, in the order of *job_ids*, each job's oldest first."""

    def lost_attempts(self, worker_id: str, *, limit: int) -> list[Attempt]:
        """Return up to *limit* attempts that were lost with a worker, those that ended last first."""

    def outbox(self, job_ids: Sequence[JobId]) -> list[OutboxRow]:
        """Return the dead-letter events of these jobs, in the order of *job_ids*, each job's oldest life first."""

    def outbox_pending(self, *, limit: int) -> int:
        """Return how many dead-letter events are neither published nor given up. Count up to *limit* of them."""

    def kept_by_events(self, *, older_than: timedelta, limit: int) -> list[JobId]:
        """Return up to *limit* jobs that `Maintenance.prune` keeps because of an event, ordered by id.

        They are SUCCEEDED or CANCELED and ended at least *older_than* ago, and the event of an earlier death is neither
        published nor given up.
        """

    def publisher_seen_at(self) -> datetime | None:
        """Return when `Maintenance.claim_outbox` last recorded a publisher, or None if it never did."""

    def delivery(self, queue: str) -> list[DeliveryNote]:
        """Return what `Maintenance.record_delivery` recorded last about *queue*, at most one note of each role."""

    def queues(self) -> list[QueueStats]:
        """Return every queue that holds jobs or is paused, by name. Counts are as of the last `roll_up` or newer."""

    def next_due_in(self, queue: str) -> timedelta | None:
        """Return the time until the next job of *queue* becomes due, or None if no job has a future due time.

        Jobs that are already due are ignored.
        """

    def finished_counts(
        self, *, since: datetime, queue: str | None = None, limit: int | None = None
    ) -> list[FinishedCount]:
        """Return how many jobs ended in each minute that begins at *since* or later, oldest minute first.

        If *queue* is given, count its jobs only. If there are more than *limit* entries, return the newest ones, by
        minute, queue and status. Combinations without any job are omitted. Counts are as of the last `roll_up` or
        newer.
        """

    def dead_letter_groups(self, *, limit: int, queue: str | None = None) -> list[DeadLetterGroup]:
        """Return dead letters grouped by the error that caused them, largest group first.

        Jobs that died without an error of their own (lease lost, attempts exhausted) have an empty fingerprint.
        ``sample`` is the newest job of its group, and ``error`` is the error of that job. Counts are as of the last
        `roll_up` or newer.
        """

    def series(self, query: SeriesQuery) -> list[SeriesPoint]:
        """Return a series of statistics, by step and group. Steps without data are omitted.

        Raise `InvalidRequest` if the query is invalid, or has more than `taskharbor.core.statistics.MAX_POINTS`
        points, or sums up more than ``MAX_ROWS`` stored rows. Statistics are as of the last `roll_up` or newer.
        """

    def dead_hours(self, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
        """Return how many jobs of *groups* died in each hour that begins at *since* or later, oldest hour first.

        A job that is no longer dead stays counted in the hour of its death.
        """

    def versions(self, *, limit: int) -> list[AppVersion]:
        """Return up to *limit* versions of the application that workers reported, the last one to appear first."""

    def workers(self) -> list[WorkerRecord]:
        """Return the workers that are recorded and were not made past ones, ordered by id."""

    def past_workers(self) -> list[WorkerRecord]:
        """Return the workers that have stopped or were unseen for too long, ordered by id; none of `workers`."""

    def duties(self) -> Mapping[str, datetime]:
        """Return when each periodic duty is due next, by name. A duty that was never claimed is missing."""

    def schedules(self) -> Mapping[str, Schedule]:
        """Return all schedules, by name."""

    def schedule_runs(self, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
        """Return the newest *limit* runs of each schedule, in the order of *names*, each schedule's newest first."""

    def settings(self) -> dict[str, str]:
        """Return the settings that `Driver.remember` and `Control.change_setting` stored, by name."""

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        """Return all API keys, or those of *ids*, by id, including revoked and expired ones."""

    def audit(
        self,
        *,
        limit: int,
        before: Token | None = None,
        target: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        """Return up to *limit* audit entries, newest first, starting below the entry *before*.

        At most one of *target*, *actor* and *action* is given: it must be equal. `taskharbor.audit_log` combines them.
        """


class Auditor(Protocol):
    """Checks the invariants of `taskharbor.core.audit` on the stored rows, without changing or locking any.

    A driver whose store outlives the process has one as its attribute ``auditor``.
    """

    def audit(self, part: AuditPart, *, limit: int, after: JobId | None = None) -> AuditPage:
        """Check about *limit* rows of *part*, ordered by job id, starting above *after*. Read them in one snapshot."""


class Control(Protocol):
    """Operator actions on queues, schedules, settings, API keys and the audit log."""

    def pause(self, queues: Sequence[str], *, by: str, reason: str = "", lasts: timedelta | None = None) -> list[bool]:
        """Stop jobs of these queues from starting; running jobs continue. The result is False if already paused.

        With *lasts*, `Maintenance.resume_paused` resumes them after now + *lasts*. If the schema cannot store *reason*
        or *lasts* yet, raise `SchemaOutOfDate`.
        """

    def resume(self, queues: Sequence[str]) -> list[bool]:
        """Let jobs of these queues start again. The result is False if the queue was not paused."""

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Create or replace schedules by name.

        An existing schedule with the same cron and timezone keeps its ``next_at``. Otherwise a process that restarts
        more often than the schedule fires would prevent it from ever firing. An existing schedule always keeps its
        ``fired_at``, ``paused_at`` and ``last_job_id``.
        """

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        """Remove schedules. The result is False if there was none."""

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        """Stop schedules from firing. The result is False if the schedule is unknown or already paused."""

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        """Let schedules fire again. The result is False if the schedule is unknown or not paused."""

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        """Replace a setting's value *instead_of* by *value*. Return False if it has another value or does not exist."""

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        """Store new API keys. The result is False if the id already exists.

        If one has a ``parent``, keys with a parent that have expired are removed: otherwise each login would leave one.
        """

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        """Revoke API keys, and those whose ``parent`` they are. False if the key is unknown or already revoked."""

    def note_key_use(self, ids: Sequence[str]) -> None:
        """Set ``used_at`` of these API keys to the store's time. Unknown ids are ignored."""

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        """Append audit entries; the store sets ``at``. Entries whose id already exists are not changed."""
