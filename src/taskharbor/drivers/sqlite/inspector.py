"""Read access: jobs, attempts, queues, workers, schedules, settings, API keys and the audit log."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, LiteralString

from taskharbor.drivers.records import audit_column
from taskharbor.drivers.sqlite import delivery_notes, schedule_runs, statistics, worker_records
from taskharbor.drivers.sqlite.roll_up import COUNTS, LINES
from taskharbor.drivers.sqlite.rows import (
    API_KEY,
    ATTEMPT,
    AUDIT,
    OUTBOX,
    SCHEDULE,
    WAITING,
    api_key,
    attempt,
    audit_entry,
    finished_count,
    job,
    job_id,
    micros,
    moment,
    outbox_row,
    queue_stats,
    schedule,
    span,
    summary,
)
from taskharbor.drivers.sqlite.search import GET, SUMMARIES, by_key, count, dead_groups, find, next_up, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import ApiKey, Attempt, AuditEntry, Job, JobSummary, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, Page, QueueStats, Refusal, Tally
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import AppVersion, DeadHour, SeriesPoint, SeriesQuery
    from taskharbor.drivers.sqlite.pool import SqlitePool
    from taskharbor.drivers.sqlite.settings import SqliteSettings


class SqliteInspector:
    def __init__(self, connections: SqlitePool, settings: SqliteSettings) -> None:
        self._connections = connections
        self._settings = settings

    def now(self) -> datetime:
        return moment(self._connections.now())

    def get(self, job_ids: Sequence[JobId]) -> dict[JobId, Job]:
        found = {each.id: each for each in map(job, self._of(GET, job_ids))}
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def summaries(self, job_ids: Sequence[JobId]) -> dict[JobId, JobSummary]:
        found = {each.id: each for each in map(summary, self._of(SUMMARIES, job_ids))}
        return {job_id: found[job_id] for job_id in job_ids if job_id in found}

    def find(self, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
        with self._connections.read() as db:
            return find(db, wanted, limit=limit, after=after)

    def count(self, wanted: JobFilter, *, after: JobId | None = None) -> Tally:
        with self._connections.read() as db:
            return count(db, wanted, after=after)

    def next_up(self, queue: str, *, limit: int) -> list[JobSummary]:
        now = self._connections.now()
        with self._connections.read() as db:
            return next_up(db, queue, limit=limit, now=now)

    def find_by_key(self, key: str) -> list[JobId]:
        with self._connections.read() as db:
            return by_key(db, key)

    _ATTEMPTS: LiteralString = f"""
        -- Life, event and attempt order the entries of one instant: a death comes before the requeue that follows it.
        SELECT {ATTEMPT}
          FROM th_attempts
         WHERE job_id IN (%s)
         ORDER BY ended_at, life, event = 'requeue', attempt
    """

    def attempts(self, job_ids: Sequence[JobId]) -> list[Attempt]:
        recorded: defaultdict[JobId, list[Attempt]] = defaultdict(list)
        for each in map(attempt, self._of(self._ATTEMPTS, job_ids)):
            recorded[each.job_id].append(each)
        return [each for job_id in job_ids for each in recorded[job_id]]

    def refusals(self, job_ids: Sequence[JobId]) -> list[Refusal]:
        return worker_records.read_refusals(self._connections, job_ids)

    def lost_attempts(self, worker_id: str, *, limit: int) -> list[Attempt]:
        return worker_records.read_lost(self._connections, worker_id, limit=limit)

    _OUTBOX: LiteralString = f"""
        SELECT {OUTBOX}
          FROM th_outbox
         WHERE job_id IN (%s)
         ORDER BY life
    """

    def outbox(self, job_ids: Sequence[JobId]) -> list[OutboxRow]:
        events: defaultdict[JobId, list[OutboxRow]] = defaultdict(list)
        for row in map(outbox_row, self._of(self._OUTBOX, job_ids)):
            events[row.event.job_id].append(row)
        return [row for job_id in job_ids for row in events[job_id]]

    _OUTBOX_PENDING: LiteralString = """
        SELECT count(*)
          FROM (
               SELECT 1
                 FROM th_outbox
                WHERE published_at IS NULL
                  AND given_up_at IS NULL
                LIMIT :limit
               )
    """

    def outbox_pending(self, *, limit: int) -> int:
        with self._connections.read() as db:
            return int(db.execute(self._OUTBOX_PENDING, {"limit": limit}).fetchone()[0])

    _KEPT_BY_EVENTS: LiteralString = """
        SELECT id
          FROM th_jobs
         WHERE id IN (
               SELECT job_id
                 FROM th_outbox
                WHERE published_at IS NULL
                  AND given_up_at IS NULL
               )
           AND status IN ('SUCCEEDED', 'CANCELED')
           AND completed_at <= :until
         ORDER BY id
         LIMIT :limit
    """

    def kept_by_events(self, *, older_than: timedelta, limit: int) -> list[JobId]:
        params = {"until": self._connections.now() - span(older_than), "limit": limit}
        with self._connections.read() as db:
            return [job_id(id) for (id,) in db.execute(self._KEPT_BY_EVENTS, params)]

    _PUBLISHER_SEEN_AT: LiteralString = """
        SELECT CAST(value AS INTEGER)
          FROM th_settings
         WHERE name = 'publisher_seen_at'
    """

    def publisher_seen_at(self) -> datetime | None:
        with self._connections.read() as db:
            row = db.execute(self._PUBLISHER_SEEN_AT).fetchone()
        return None if row is None else moment(row[0])

    def delivery(self, queue: str) -> list[DeliveryNote]:
        return delivery_notes.read(self._connections, queue)

    def _of(self, statement: str, job_ids: Sequence[JobId]) -> list[Any]:
        ids = [job_id.bytes for job_id in dict.fromkeys(job_ids)]
        with self._connections.read() as db:
            return rows_of(db, statement, ids)

    _QUEUES: LiteralString = f"""
        WITH RECURSIVE
        {LINES},
        due (name, oldest) AS (
            SELECT queue, min(scheduled_for)
              FROM line
             WHERE scheduled_for <= :now
             GROUP BY queue
        ),
        counted (name, counts) AS (
            SELECT queue, json_group_object(status, total)
              FROM (
                   SELECT queue, status, sum(count) AS total
                     FROM ({COUNTS})
                    GROUP BY queue, status
                   HAVING total > 0
                   )
             GROUP BY queue
        ),
        known (name) AS (
            SELECT name FROM counted
             UNION
            SELECT name FROM th_queues
        )
        SELECT name, coalesce(counts, '{{}}'), oldest, paused_at, paused_by, paused_reason, paused_until
          FROM known
          LEFT JOIN counted USING (name)
          LEFT JOIN due USING (name)
          LEFT JOIN th_queues USING (name)
         ORDER BY name
    """

    def queues(self) -> list[QueueStats]:
        now = self._connections.now()
        with self._connections.read() as db:
            return [queue_stats(row) for row in db.execute(self._QUEUES, {"now": now})]

    DUE_IN: LiteralString = f"""
        -- As in LINES, one seek per line, and then one past the due jobs of the line.
        WITH RECURSIVE
        line (priority) AS (
            SELECT (
                   SELECT priority
                     FROM th_jobs INDEXED BY th_jobs_waiting
                    WHERE {WAITING}
                      AND queue = :queue
                    ORDER BY priority
                    LIMIT 1
                   )
             UNION ALL
            SELECT (
                   SELECT priority
                     FROM th_jobs INDEXED BY th_jobs_waiting
                    WHERE {WAITING}
                      AND queue = :queue
                      AND priority > line.priority
                    ORDER BY priority
                    LIMIT 1
                   )
              FROM line
             WHERE line.priority IS NOT NULL
        )
        SELECT min((
               SELECT scheduled_for
                 FROM th_jobs INDEXED BY th_jobs_waiting
                WHERE {WAITING}
                  AND queue = :queue
                  AND priority = line.priority
                  AND scheduled_for > :now
                ORDER BY scheduled_for
                LIMIT 1
               )) - :now
          FROM line
    """

    def next_due_in(self, queue: str) -> timedelta | None:
        now = self._connections.now()
        with self._connections.read() as db:
            [(until,)] = db.execute(self.DUE_IN, {"queue": queue, "now": now})
        return None if until is None else timedelta(microseconds=until)

    _FINISHED: LiteralString = """
        SELECT minute, queue, status, sum(count)
          FROM (
               SELECT * FROM th_finished
                UNION ALL
               SELECT * FROM th_ended
               )
         WHERE minute >= :since
           AND (:queue IS NULL OR queue = :queue)
         GROUP BY minute, queue, status
         ORDER BY minute DESC, queue DESC, status DESC
         LIMIT :limit
    """

    def finished_counts(
        self, *, since: datetime, queue: str | None = None, limit: int | None = None
    ) -> list[FinishedCount]:
        params = {"since": micros(since), "queue": queue, "limit": -1 if limit is None else limit}
        with self._connections.read() as db:
            rows = db.execute(self._FINISHED, params).fetchall()
        return [finished_count(row) for row in reversed(rows)]

    def dead_letter_groups(self, *, limit: int, queue: str | None = None) -> list[DeadLetterGroup]:
        with self._connections.read() as db:
            return dead_groups(db, limit=limit, queue=queue)

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
        with self._connections.read() as db:
            return {name: moment(next_at) for name, next_at in db.execute(self._DUTIES)}

    _SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         ORDER BY name
    """

    def schedules(self) -> dict[str, Schedule]:
        with self._connections.read() as db:
            return {each.name: each for each in map(schedule, db.execute(self._SCHEDULES))}

    def schedule_runs(self, names: Sequence[str], *, limit: int) -> list[ScheduleRun]:
        return schedule_runs.read(self._connections, names, limit=limit)

    def settings(self) -> dict[str, str]:
        return self._settings.all()

    _KEYS: LiteralString = f"""
        SELECT {API_KEY}
          FROM th_api_keys
         WHERE :ids IS NULL OR id IN (SELECT value FROM json_each(:ids))
         ORDER BY id
    """

    def keys(self, ids: Sequence[str] | None = None) -> dict[str, ApiKey]:
        params = {"ids": None if ids is None else json.dumps(list(ids))}
        with self._connections.read() as db:
            return {key.id: key for key in map(api_key, db.execute(self._KEYS, params))}

    _AUDIT: LiteralString = f"""
        SELECT {AUDIT}
          FROM th_audit
         WHERE {{place}}
         ORDER BY at DESC, id DESC
         LIMIT :limit
    """
    _NEWEST: LiteralString = _AUDIT.format(place="TRUE")
    _BELOW: LiteralString = _AUDIT.format(place="(at, id) < (SELECT at, id FROM th_audit WHERE id = :before)")
    _NEWEST_OF: Mapping[str, LiteralString] = {
        "target": _NEWEST.replace("TRUE", "target = :name"),
        "actor": _NEWEST.replace("TRUE", "actor = :name"),
        "action": _NEWEST.replace("TRUE", "action = :name"),
    }
    _BELOW_OF: Mapping[str, LiteralString] = {
        "target": _BELOW.replace("(at, id) <", "target = :name AND (at, id) <"),
        "actor": _BELOW.replace("(at, id) <", "actor = :name AND (at, id) <"),
        "action": _BELOW.replace("(at, id) <", "action = :name AND (at, id) <"),
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
        if column is None:
            statement = self._NEWEST if before is None else self._BELOW
        else:
            statement = (self._NEWEST_OF if before is None else self._BELOW_OF)[column]
        params = {"limit": limit, "before": None if before is None else before.bytes, "name": name}
        with self._connections.read() as db:
            return [audit_entry(row) for row in db.execute(statement, params)]
