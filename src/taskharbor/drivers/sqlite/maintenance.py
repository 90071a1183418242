"""Maintenance: retention, duties, workers, the audit log, the outbox, schedules and aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString
from uuid import UUID

from taskharbor.core.model import PUBLISHER_NOTED
from taskharbor.core.results import Published
from taskharbor.drivers.sqlite import delivery_notes, roll_up, schedule_runs, statistics, worker_records
from taskharbor.drivers.sqlite.expire import SqliteLeaseExpiry
from taskharbor.drivers.sqlite.insert import insert
from taskharbor.drivers.sqlite.rows import OUTBOX, SCHEDULE, maybe_micros, micros, outbox_row, schedule, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import NewJob, OutboxRow, Schedule, WorkerRecord
    from taskharbor.core.results import Death, Expired, Refusal, Unpublished
    from taskharbor.core.schedule_runs import ScheduleRun
    from taskharbor.core.statistics import StatisticTally
    from taskharbor.drivers.sqlite.notify import SqliteNotifier
    from taskharbor.drivers.sqlite.pool import SqlitePool


_DELETE_OLD: LiteralString = """
    DELETE FROM th_jobs
     WHERE id IN (
           SELECT id
             FROM th_jobs AS job INDEXED BY {index}
            WHERE {states}
              AND completed_at <= :until
              AND NOT EXISTS (
                  SELECT 1
                    FROM th_outbox
                   WHERE job_id = job.id
                     AND published_at IS NULL
                     AND given_up_at IS NULL
                  )
            ORDER BY completed_at
            LIMIT :limit
           )
    RETURNING id
"""

_IS_DECLARED: LiteralString = """EXISTS (
               SELECT 1
                 FROM th_workers AS worker, json_each(worker.schedules) AS declared
                WHERE worker.seen_at > :since
                  AND declared.value = th_schedules.name
               )"""
"""Whether a live worker declares a schedule."""


class SqliteMaintenance:
    def __init__(self, connections: SqlitePool, notifier: SqliteNotifier) -> None:
        self._connections = connections
        self._notifier = notifier
        self._expiring = SqliteLeaseExpiry(connections)

    def expire(self, *, limit: int) -> list[Expired]:
        return self._expiring.expire(limit=limit)

    def bury(self, *, limit: int) -> list[Death]:
        return self._expiring.bury(limit=limit)

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        self._expiring.report_clock_jump(expected=expected, lease=lease)

    def prune(
        self,
        *,
        older_than: timedelta,
        limit: int,
        within: timedelta | None = None,  # noqa: ARG002  *limit* bounds the time of a call
    ) -> int:
        return self._remove(self._PRUNE, older_than, limit)

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        if job_ids is None:
            return self._remove(self._PURGE, older_than, limit)
        return self._remove(self._PURGE_JOB, older_than, limit, [job_id.bytes for job_id in job_ids])

    # The conditions on dead_at repeat those of the partial indexes; SQLite does not use the indexes without them.
    _PRUNE: LiteralString = _DELETE_OLD.format(
        index="th_jobs_finished", states="status IN ('SUCCEEDED', 'CANCELED') AND dead_at IS NULL"
    )
    _PURGE: LiteralString = _DELETE_OLD.format(index="th_jobs_dead", states="status = 'DEAD' AND dead_at IS NOT NULL")
    _PURGE_JOB: LiteralString = _DELETE_OLD.replace("INDEXED BY {index}", "").format(
        states="status = 'DEAD' AND id = :id"
    )

    _REMOVE_WITH: tuple[LiteralString, ...] = (
        """
        DELETE FROM th_keys
         WHERE job_id = ?
        """,
        """
        DELETE FROM th_attempts
         WHERE job_id = ?
        """,
        """
        DELETE FROM th_attempt_logs
         WHERE job_id = ?
        """,
        """
        DELETE FROM th_outbox
         WHERE job_id = ?
        """,
    )

    def _remove(
        self, old: LiteralString, older_than: timedelta, limit: int, ids: Sequence[bytes | None] = (None,)
    ) -> int:
        with self._connections as (db, now):
            removed: list[Any] = []
            for job_id in ids:
                params = {"until": now - span(older_than), "limit": limit - len(removed), "id": job_id}
                removed += db.execute(old, params)
            for statement in self._REMOVE_WITH:
                db.executemany(statement, removed)
        return len(removed)

    def purge_in(self, db: sqlite3.Connection, job_id: JobId, now: int) -> bool:
        """Remove a dead letter in the transaction of *db*. Return False if it has an unpublished event."""
        removed = db.execute(self._PURGE_JOB, {"until": now, "limit": 1, "id": job_id.bytes}).fetchall()
        for statement in self._REMOVE_WITH:
            db.executemany(statement, removed)
        return bool(removed)

    _CLAIM_DUTY: LiteralString = """
        INSERT INTO th_duties (name, next_at)
        VALUES (:name, :next_at)
            ON CONFLICT (name) DO UPDATE
           SET next_at = :next_at
         WHERE next_at <= :now
    """

    def claim_duty(self, name: str, *, every: timedelta) -> bool:
        with self._connections as (db, now):
            params = {"name": name, "now": now, "next_at": now + span(every)}
            return db.execute(self._CLAIM_DUTY, params).rowcount == 1

    def record_worker(self, worker: WorkerRecord) -> None:
        worker_records.record(self._connections, worker)

    def record_delivery(self, notes: Sequence[DeliveryNote]) -> None:
        delivery_notes.record(self._connections, notes)

    def remove_worker(self, worker_id: str) -> None:
        worker_records.remove(self._connections, worker_id)

    def prune_workers(self, *, unseen_for: timedelta, keep: timedelta) -> int:
        return worker_records.prune(self._connections, unseen_for=unseen_for, keep=keep)

    def record_refusals(self, refusals: Sequence[Refusal]) -> None:
        worker_records.record_refusals(self._connections, refusals)

    _PRUNE_AUDIT: LiteralString = """
        DELETE FROM th_audit
         WHERE id IN (
               SELECT id
                 FROM th_audit
                WHERE at <= :until
                ORDER BY at, id
                LIMIT :limit
               )
    """

    def prune_audit(self, *, older_than: timedelta, limit: int) -> int:
        with self._connections as (db, now):
            return db.execute(self._PRUNE_AUDIT, {"until": now - span(older_than), "limit": limit}).rowcount

    _CLAIM_OUTBOX: LiteralString = f"""
        UPDATE th_outbox
           SET attempts = attempts + 1,
               next_at = :locked_until
         WHERE (job_id, life) IN (
               SELECT job_id, life
                 FROM th_outbox
                WHERE published_at IS NULL
                  AND given_up_at IS NULL
                  AND next_at <= :now
                ORDER BY dead_at, job_id, life
                LIMIT :limit
               )
        RETURNING {OUTBOX}
    """

    _PUBLISHER_SEEN: LiteralString = """
        INSERT INTO th_settings (name, value)
        VALUES ('publisher_seen_at', CAST(:now AS TEXT))
            ON CONFLICT (name) DO UPDATE
           SET value = excluded.value
         WHERE CAST(value AS INTEGER) NOT BETWEEN :now - :noted + 1 AND :now
    """

    def claim_outbox(self, *, limit: int, lock: timedelta) -> list[OutboxRow]:
        with self._connections as (db, now):
            db.execute(self._PUBLISHER_SEEN, {"now": now, "noted": span(PUBLISHER_NOTED)})
            claimed = db.execute(self._CLAIM_OUTBOX, {"now": now, "locked_until": now + span(lock), "limit": limit})
            rows = [outbox_row(row) for row in claimed]
        # SQLite does not order the rows of RETURNING.
        return sorted(rows, key=lambda row: (row.event.dead_at, row.event.event_id))

    _SETTLE_OUTBOX: LiteralString = """
        UPDATE th_outbox
           SET published_at = :published_at,
               given_up_at = :given_up_at,
               next_at = coalesce(:next_at, next_at),
               last_error = coalesce(:error, last_error)
         WHERE job_id = :job_id
           AND CAST(life AS TEXT) = :life
           AND published_at IS NULL
           AND given_up_at IS NULL
    """

    def settle_outbox(self, results: Sequence[Published | Unpublished]) -> list[bool]:
        with self._connections as (db, now):
            return [db.execute(self._SETTLE_OUTBOX, _outbox_columns(result, now)).rowcount == 1 for result in results]

    _CLOSE: LiteralString = """
        UPDATE th_outbox
           SET given_up_at = :now,
               last_error = :reason
         WHERE (job_id, life) IN (
               SELECT job_id, life
                 FROM th_outbox
                WHERE published_at IS NULL
                  AND given_up_at IS NULL
                  AND next_at <= :now
                  AND dead_at <= :until
                  {only}
                  AND NOT EXISTS (
                      SELECT 1
                        FROM th_settings
                       WHERE name = 'publisher_seen_at'
                         AND CAST(value AS INTEGER) > :since
                      )
                ORDER BY dead_at, job_id, life
                LIMIT :limit
               )
    """
    _CLOSE_OUTBOX: LiteralString = _CLOSE.format(only="")
    _CLOSE_OUTBOX_OF_JOB: LiteralString = _CLOSE.format(only="AND job_id = :id")

    def close_outbox(
        self,
        reason: str,
        *,
        unseen_for: timedelta,
        older_than: timedelta,
        limit: int,
        job_ids: Sequence[JobId] | None = None,
    ) -> int:
        close = self._CLOSE_OUTBOX if job_ids is None else self._CLOSE_OUTBOX_OF_JOB
        closed = 0
        with self._connections as (db, now):
            params = {"reason": reason, "now": now, "until": now - span(older_than), "since": now - span(unseen_for)}
            for job_id in (None,) if job_ids is None else [each.bytes for each in job_ids]:
                closed += db.execute(close, {**params, "id": job_id, "limit": limit - closed}).rowcount
        return closed

    _DUE_SCHEDULES: LiteralString = f"""
        SELECT {SCHEDULE}
          FROM th_schedules
         WHERE paused_at IS NULL
           AND next_at <= :now
           AND (declared_at IS NULL OR {_IS_DECLARED})
         ORDER BY next_at, name
         LIMIT :limit
    """

    def due_schedules(self, *, limit: int, alive_within: timedelta) -> list[Schedule]:
        now = self._connections.now()
        params = {"now": now, "limit": limit, "since": now - span(alive_within)}
        with self._connections.read() as db:
            return [schedule(row) for row in db.execute(self._DUE_SCHEDULES, params)]

    _ADVANCE_SCHEDULE: LiteralString = """
        UPDATE th_schedules
           SET next_at = :next_at,
               fired_at = iif(:last_job_id IS NULL, fired_at, :fired),
               last_job_id = coalesce(:last_job_id, last_job_id)
         WHERE name = :name
           AND next_at = :fired
    """

    def advance_schedule(
        self,
        name: str,
        *,
        fired: datetime,
        next_at: datetime | None,
        jobs: Sequence[NewJob] = (),
        runs: Sequence[ScheduleRun] = (),
    ) -> bool:
        params = {
            "name": name,
            "fired": micros(fired),
            "next_at": maybe_micros(next_at),
            "last_job_id": jobs[-1].id.bytes if jobs else None,
        }
        with self._connections as (db, now):
            if db.execute(self._ADVANCE_SCHEDULE, params).rowcount == 0:
                return False
            insert(db, jobs, now=now, repeat=False)
            schedule_runs.add(db, runs, now=now)
        self._notifier.notify(jobs, now)
        return True

    def record_runs(self, runs: Sequence[ScheduleRun]) -> None:
        with self._connections as (db, now):
            schedule_runs.add(db, runs, now=now)

    _RENEW_SCHEDULES: LiteralString = f"""
        UPDATE th_schedules
           SET declared_at = :now
         WHERE declared_at IS NOT NULL
           AND {_IS_DECLARED}
    """

    _PRUNE_SCHEDULES: LiteralString = f"""
        DELETE FROM th_schedules
         WHERE declared_at <= :until
           AND paused_at IS NULL
           AND NOT {_IS_DECLARED}
    """

    def prune_schedules(self, *, undeclared_for: timedelta, alive_within: timedelta) -> int:
        with self._connections as (db, now):
            params = {"now": now, "until": now - span(undeclared_for), "since": now - span(alive_within)}
            removed = db.execute(self._PRUNE_SCHEDULES, params).rowcount
            db.execute(self._RENEW_SCHEDULES, params)
        return removed

    _RESUME_PAUSED: LiteralString = """
        DELETE FROM th_queues
         WHERE paused_until <= :now
        RETURNING name
    """

    def resume_paused(self) -> list[str]:
        with self._connections as (db, now):
            return sorted(name for (name,) in db.execute(self._RESUME_PAUSED, {"now": now}).fetchall())

    def record_statistics(self, tallies: Sequence[StatisticTally], *, version: str | None = None) -> None:
        statistics.record(self._connections, tallies, version=version)

    def roll_up(self, *, keep: timedelta) -> int:
        return roll_up.roll_up(self._connections, keep=keep)


def _outbox_columns(result: Published | Unpublished, now: int) -> dict[str, bytes | int | str | None]:
    """Return the columns that *result* sets, and the key of its event, which is null for an invalid id."""
    job, _, life = result.event_id.rpartition(":")
    columns: dict[str, bytes | int | str | None] = {
        "job_id": _uuid_bytes(job),
        "life": life,
        "published_at": None,
        "given_up_at": None,
        "next_at": None,
        "error": None,
    }
    if isinstance(result, Published):
        return columns | {"published_at": now}
    if result.retry_in is None:
        return columns | {"given_up_at": now, "error": result.error}
    return columns | {"next_at": now + span(result.retry_in), "error": result.error}


def _uuid_bytes(text: str) -> bytes | None:
    try:
        uuid = UUID(text)
    except ValueError:
        return None
    return uuid.bytes if str(uuid) == text else None
