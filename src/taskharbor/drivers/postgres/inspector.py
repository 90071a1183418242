"""Reads of jobs, attempts, queues, workers, schedules, keys and the audit log."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, LiteralString

from taskharbor.drivers.postgres import delivery_notes, schedule_runs, statistics, worker_records
from taskharbor.drivers.postgres.roll_up import LANES
from taskharbor.drivers.postgres.rows import (
    API_KEY,
    API_KEY_3,
    ATTEMPT,
    AUDIT,
    JOB,
    NOW,
    OUTBOX,
    SCHEDULE,
    SCHEDULE_2,
    SUMMARY,
    api_key,
    attempt,
    audit_entry,
    finished_count,
    job,
    outbox_row,
    schedule,
    summary,
)
from taskharbor.drivers.postgres.schema import DECLARED_VERSION, OPERATORS_VERSION
from taskharbor.drivers.postgres.search import by_key, count, dead_groups, find, next_up
from taskharbor.drivers.records import audit_column, queue_stats_from_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, Page, QueueStats, Refusal, Tally
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import AppVersion, DeadHour, SeriesPoint, SeriesQuery
    from taskharbor.drivers.postgres.pool import PostgresPool
    from taskharbor.drivers.postgres.settings import PostgresSettings


class PostgresInspector:
    def __init__(self, connections: PostgresPool, settings: PostgresSettings) -> None:
        self._connections = connections
        self._settings = settings

    _NOW: LiteralString = f"SELECT {NOW}"

    def now(self) -> datetime:
        [(now,)] = self._connections.fetch(self._NOW)
        time: datetime = now
        return time

    _GET: LiteralString = f"""
        SELECT {JOB}
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
    """

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        found = {each.id: each for each in map(job, self._connections.fetch(self._GET, ids=list(job_ids)))}
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    _SUMMARIES: LiteralString = f"""
        SELECT {SUMMARY}
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
    """

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        found = {each.id: each for each in map(summary, self._connections.fetch(self._SUMMARIES, ids=list(job_ids)))}
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def find(self, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
        return find(self._connections, wanted, limit=limit, after=after)

    def count(self, wanted: JobFilter, *, after: JobId | None = None) -> Tally:
        return count(self._connections, wanted, after=after)

    def next_up(self, queue: str, *, limit: int) -> list[JobSummary]:
        return next_up(self._connections, queue, limit=limit)

    def find_by_key(self, key: str) -> list[JobId]:
        return by_key(self._connections, key)

    _ATTEMPTS: LiteralString = f"""
        -- Attempts that ended at the same instant are ordered by life; a death comes before its requeue.
        SELECT {ATTEMPT}
          FROM th_attempts
         WHERE job_id = ANY (%(ids)s)
         ORDER BY ended_at, life, event = 'requeue', attempt
    """

    def attempts(self, job_ids: Sequence[JobId]) -> list[Attempt]:
        recorded: defaultdict[JobId, list[Attempt]] = defaultdict(list)
        for each in map(attempt, self._connections.fetch(self._ATTEMPTS, ids=list(job_ids))):
            recorded[each.job_id].append(each)
        return [each for job_id in job_ids for each in recorded[job_id]]

    def refusals(self, job_ids: Sequence[JobId]) -> list[Refusal]:
        return worker_records.read_refusals(self._connections, job_ids)

    def lost_attempts(self, worker_id: str, *, limit: int) -> list[Attempt]:
        return worker_records.read_lost(self._connections, worker_id, limit=limit)

    _OUTBOX: LiteralString = f"""
        SELECT {OUTBOX}
          FROM th_outbox AS event
         WHERE event.job_id = ANY (%(ids)s)
         ORDER BY event.life
    """

    def outbox(self, job_ids: Sequence[JobId]) -> list[OutboxRow]:
        events: defaultdict[JobId, list[OutboxRow]] = defaultdict(list)
        for row in map(outbox_row, self._connections.fetch(self._OUTBOX, ids=list(job_ids))):
            events[row.event.job_id].append(row)
        return [row for job_id in job_ids for row in events[job_id]]

    _OUTBOX_PENDING: LiteralString = """
        SELECT count(*)
          FROM (
               SELECT 1
                 FROM th_outbox
                WHERE published_at IS NULL
                  AND given_up_at IS NULL
                LIMIT %(limit)s
               ) AS event
    """

    def outbox_pending(self, *, limit: int) -> int:
        [(count,)] = self._connections.fetch(self._OUTBOX_PENDING, limit=limit)
        return int(count)

    _KEPT_BY_EVENTS: LiteralString = f"""
        SELECT job.id
          FROM th_jobs_finished AS job
         WHERE job.id = ANY (ARRAY(
               SELECT event.job_id
                 FROM th_outbox AS event
                WHERE event.published_at IS NULL
                  AND event.given_up_at IS NULL
                  -- Most of these jobs are still dead and are in one partition. Only the others are looked up in
                  -- the partitions of all days. LIMIT prevents a join, which might scan the whole partition.
                  AND (SELECT 1 FROM th_jobs_dead AS dead WHERE dead.id = event.job_id LIMIT 1) IS NULL
               ))
           AND job.completed_at <= {NOW} - %(older_than)s
         ORDER BY job.id
         LIMIT %(limit)s
    """

    def kept_by_events(self, *, older_than: timedelta, limit: int) -> list[JobId]:
        rows = self._connections.fetch(self._KEPT_BY_EVENTS, older_than=older_than, limit=limit)
        return [job_id for (job_id,) in rows]

    _PUBLISHER_SEEN_AT: LiteralString = """
        SELECT value::timestamptz
          FROM th_settings
         WHERE name = 'publisher_seen_at'
    """

    def publisher_seen_at(self) -> datetime | None:
        return next((seen_at for (seen_at,) in self._connections.fetch(self._PUBLISHER_SEEN_AT)), None)

    def delivery(self, queue: str) -> list[DeliveryNote]:
        return delivery_notes.read(self._connections, queue)

    _QUEUES: LiteralString = f"""
        WITH RECURSIVE
        {LANES},
        due AS (
            SELECT queue AS name, min(scheduled_for) AS oldest
              FROM lane
             WHERE scheduled_for <= {NOW}
             GROUP BY queue
        ),
        counted AS (
            SELECT queue AS name, jsonb_object_agg(status, count) AS counts
              FROM th_counts
             WHERE count > 0
             GROUP BY queue
        ),
        known AS (
            SELECT name FROM counted
             UNION
            -- Without a live janitor, nothing counts the first jobs of a new queue.
            SELECT queue FROM lane
             UNION
            SELECT name FROM th_queues
        )
        SELECT name, counts, oldest, paused_at, paused_by, paused_reason, paused_until
          FROM known
          LEFT JOIN counted USING (name)
          LEFT JOIN due USING (name)
          LEFT JOIN th_queues USING (name)
         ORDER BY name
    """

    _QUEUES_3: LiteralString = _QUEUES.replace(", paused_reason, paused_until", ", NULL, NULL::timestamptz")

    def queues(self) -> list[QueueStats]:
        rows = self._connections.fetch(self._QUEUES if self._has_operators else self._QUEUES_3)
        return [queue_stats_from_values(row) for row in rows]

    _DUE_IN: LiteralString = f"""
        -- As in LANES, jump to each lane, and in each lane past all due jobs.
        WITH RECURSIVE lane AS (
            (
            SELECT priority
              FROM th_jobs_waiting
             WHERE queue = %(queue)s
               AND attempt_count < max_attempts
             ORDER BY priority, scheduled_for
             LIMIT 1
            )
             UNION ALL
            SELECT head.priority
              FROM lane
             CROSS JOIN LATERAL (
                   SELECT priority
                     FROM th_jobs_waiting
                    WHERE queue = %(queue)s
                      AND priority > lane.priority
                      AND attempt_count < max_attempts
                    ORDER BY priority, scheduled_for
                    LIMIT 1
                   ) AS head
        )
        SELECT min(later.scheduled_for) - {NOW}
          FROM lane
         CROSS JOIN LATERAL (
               SELECT scheduled_for
                 FROM th_jobs_waiting
                WHERE queue = %(queue)s
                  AND priority = lane.priority
                  AND scheduled_for > {NOW}
                  AND attempt_count < max_attempts
                ORDER BY scheduled_for
                LIMIT 1
               ) AS later
    """

    def next_due_in(self, queue: str) -> timedelta | None:
        [(until,)] = self._connections.fetch(self._DUE_IN, queue=queue)
        duration: timedelta | None = until
        return duration

    _FINISHED: LiteralString = """
        SELECT minute, queue, status, count
          FROM th_finished
         WHERE minute >= %(since)s
           AND (%(queue)s::text IS NULL OR queue = %(queue)s)
         ORDER BY minute DESC, queue DESC, status DESC
         LIMIT %(limit)s
    """

    def finished_counts(
        self, *, since: datetime, queue: str | None = None, limit: int | None = None
    ) -> list[FinishedCount]:
        rows = self._connections.fetch(self._FINISHED, since=since, queue=queue, limit=limit)
        return [finished_count(row) for row in reversed(rows)]

    def dead_letter_groups(self, *, limit: int, queue: str | None = None) -> list[DeadLetterGroup]:
        return dead_groups(self._connections, limit=limit, queue=queue)

    def series(self, query: SeriesQuery) -> list[SeriesPoint]:
        return statistics.series(self._connections, query)

    def dead_hours(self, groups: Sequence[DeadLetterGroup], *, since: datetime) -> list[DeadHour]:
        return statistics.dead_hours(self._connections, groups, since=since)

    def versions(self, *, limit: int) -> list[AppVersion]:
        return statistics.versions(self._connections, limit=limit)

    def workers(self) -> list[WorkerRecord]:
        return worker_records.read(self._connections)

    def past_workers(self) -> list[WorkerRecord]:
        return worker_records.read_past(self._connections)

    _DUTIES: LiteralString = """
        SELECT name, next_at
          FROM th_duties
         ORDER BY name
    """

    def duties(self) -> dict[str, datetime]:
        return dict(self._connections.fetch(self._DUTIES))

    _SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         ORDER BY name
    """

    _SCHEDULES_2: LiteralString = _SCHEDULES.replace(SCHEDULE, SCHEDULE_2)

    def schedules(self) -> dict[str, Schedule]:
        has_declared = self._connections.schema_version >= DECLARED_VERSION
        rows = self._connections.fetch(self._SCHEDULES if has_declared else self._SCHEDULES_2)
        return {each.name: each for each in map(schedule, rows)}

    def schedule_runs(self, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
        return schedule_runs.read(self._connections, names, limit=limit)

    def settings(self) -> dict[str, str]:
        return self._settings.all()

    _KEYS: LiteralString = f"""
        SELECT {API_KEY}
          FROM th_api_keys
         WHERE %(ids)s::text[] IS NULL
            OR id = ANY (%(ids)s)
         ORDER BY id
    """

    _KEYS_3: LiteralString = _KEYS.replace(API_KEY, API_KEY_3)

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        statement = self._KEYS if self._has_operators else self._KEYS_3
        rows = self._connections.fetch(statement, ids=None if ids is None else list(ids))
        return {key.id: key for key in map(api_key, rows)}

    _AUDIT: LiteralString = f"""
        SELECT {AUDIT}
          FROM th_audit
         WHERE {{place}}
         ORDER BY at DESC, id DESC
         LIMIT %(limit)s
    """
    _NEWEST: LiteralString = _AUDIT.format(place="true")
    # Two subexpressions: with one row-valued subquery, the index scan would start from the time alone.
    _BELOW: LiteralString = _AUDIT.format(
        place="(at, id) < ((SELECT at FROM th_audit WHERE id = %(before)s), %(before)s::uuid)"
    )
    # The second condition is the predicate of the index.
    _OF: Mapping[str, LiteralString] = {
        "target": "AND target = %(name)s AND target <> ''",
        "actor": "AND actor = %(name)s AND actor <> ''",
        "action": "AND action = %(name)s AND action <> ''",
    }

    def audit(
        self,
        *,
        limit: int,
        before: Token | None = None,
        target: str | None = None,
        actor: str | None = None,
        action: str | None = None,
    ) -> list[AuditEntry]:
        column, name = audit_column(target=target, actor=actor, action=action)
        statement = self._NEWEST if before is None else self._BELOW
        if column is not None:
            if not self._has_operators:
                return []  # without its index, the statement would read all entries
            statement = statement.replace("ORDER BY", f"{self._OF[column]} ORDER BY", 1)
        rows = self._connections.fetch(statement, limit=limit, before=before, name=name)
        return [audit_entry(row) for row in rows]

    @property
    def _has_operators(self) -> bool:
        return self._connections.schema_version >= OPERATORS_VERSION
