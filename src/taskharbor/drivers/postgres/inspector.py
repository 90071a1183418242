"""Reads of jobs, attempts, queues, workers, schedules, keys and the audit log."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, LiteralString

from taskharbor.drivers.postgres.rows import (
    API_KEY,
    ATTEMPT,
    AUDIT,
    JOB,
    KEY_USE_VERSION,
    LOST_SLOTS_SINCE,
    NOW,
    OUTBOX,
    SCHEDULE,
    SUMMARY,
    WORKER,
    api_key,
    attempt,
    audit_entry,
    finished_count,
    job,
    outbox_row,
    schedule,
    summary,
    worker,
)
from taskharbor.drivers.postgres.schema import SETTINGS_VERSION
from taskharbor.drivers.postgres.search import by_key, dead_groups, find
from taskharbor.drivers.records import queue_stats_from_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, Page, QueueStats
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
        if self._connections.schema_version < SETTINGS_VERSION:
            return None
        return next((seen_at for (seen_at,) in self._connections.fetch(self._PUBLISHER_SEEN_AT)), None)

    _QUEUES: LiteralString = f"""
        -- A lane holds the waiting jobs of one queue and priority. Each step jumps to the first job
        -- of the next lane, so the cost depends on the number of lanes, not of jobs.
        WITH RECURSIVE
        lane AS (
            (
            SELECT queue, priority, scheduled_for
              FROM th_jobs_waiting
             WHERE attempt_count < max_attempts
             ORDER BY queue, priority, scheduled_for
             LIMIT 1
            )
             UNION ALL
            SELECT head.*
              FROM lane
             CROSS JOIN LATERAL (
                   SELECT queue, priority, scheduled_for
                     FROM th_jobs_waiting
                    WHERE (queue, priority) > (lane.queue, lane.priority)
                      AND attempt_count < max_attempts
                    ORDER BY queue, priority, scheduled_for
                    LIMIT 1
                   ) AS head
        ),
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
            SELECT name FROM th_queues
        )
        SELECT name, counts, oldest, paused_at, paused_by
          FROM known
          LEFT JOIN counted USING (name)
          LEFT JOIN due USING (name)
          LEFT JOIN th_queues USING (name)
         ORDER BY name
    """

    def queues(self) -> list[QueueStats]:
        return [queue_stats_from_values(row) for row in self._connections.fetch(self._QUEUES)]

    _DUE_IN: LiteralString = f"""
        -- As in _QUEUES, jump to each lane, and in each lane past all due jobs.
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

    _WORKERS: LiteralString = f"""
        SELECT {WORKER}
          FROM th_workers
         ORDER BY id
    """
    _WORKERS_1: LiteralString = _WORKERS.replace("lost_slots", "0")  # on schema version 1

    def workers(self) -> list[WorkerRecord]:
        statement = self._WORKERS_1 if self._connections.schema_version < LOST_SLOTS_SINCE else self._WORKERS
        return [worker(row) for row in self._connections.fetch(statement)]

    _SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         ORDER BY name
    """

    def schedules(self) -> dict[str, Schedule]:
        return {each.name: each for each in map(schedule, self._connections.fetch(self._SCHEDULES))}

    def settings(self) -> dict[str, str]:
        return self._settings.all()

    _KEYS: LiteralString = f"""
        SELECT {API_KEY}
          FROM th_api_keys
         WHERE %(ids)s::text[] IS NULL
            OR id = ANY (%(ids)s)
         ORDER BY id
    """
    _KEYS_BEFORE_USE: LiteralString = _KEYS.replace("used_at", "NULL::timestamptz")

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        has_use = self._connections.schema_version >= KEY_USE_VERSION
        rows = self._connections.fetch(
            self._KEYS if has_use else self._KEYS_BEFORE_USE, ids=None if ids is None else list(ids)
        )
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

    def audit(self, *, limit: int, before: Token | None = None) -> list[AuditEntry]:
        if before is None:
            rows = self._connections.fetch(self._NEWEST, limit=limit)
        else:
            rows = self._connections.fetch(self._BELOW, limit=limit, before=before)
        return [audit_entry(row) for row in rows]
