"""Operator actions: cancel, requeue and reschedule jobs, and the `Control` protocol."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.results import Cancellation, Transitioned
from taskharbor.core.states import Event, Status
from taskharbor.drivers.sqlite.rows import maybe_micros, micros, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import ApiKey, AuditEntry, Schedule
    from taskharbor.drivers.records import RequeueChange
    from taskharbor.drivers.sqlite.pool import SqlitePool
    from taskharbor.drivers.sqlite.settings import SqliteSettings

Answer = Transitioned | IllegalTransition | JobNotFound

_CANCEL: Final = """
    UPDATE th_jobs
       SET status = iif(status = 'PROCESSING', status, 'CANCELED'),
           completed_at = iif(status = 'PROCESSING', NULL, :now),
           dispatch_at = iif(status = 'PROCESSING', dispatch_at, NULL),
           cancel_requested_at = iif(status = 'PROCESSING', coalesce(cancel_requested_at, :now), NULL)
     WHERE id = :id
       AND status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
    RETURNING status, iif(status = 'PROCESSING', worker_id, NULL), type, queue
"""


def cancel(db: sqlite3.Connection, job_id: JobId, now: int) -> tuple[Answer, str | None]:
    """Cancel a job, and return the answer and the worker that runs the job, if any."""
    row = db.execute(_CANCEL, {"id": job_id.bytes, "now": now}).fetchone()
    if row is None:
        return _refused(db, job_id, Event.CANCEL), None
    state, worker, type, queue = row
    status = Status(state)
    canceled = Cancellation(job_id=job_id, type=type, queue=queue) if status is Status.CANCELED else None
    return Transitioned(job_id, status, canceled), worker


_RECORD_REQUEUE: Final = """
    INSERT INTO th_attempts (
        job_id, token, life, attempt, worker_id, ended_at, event, status, outcome,
        error_type, message, traceback, fingerprint
    )
    SELECT id, :token, life, attempt_count, :by, :now, 'requeue', 'PENDING', 'REQUEUED', '', :why, '', ''
      FROM th_jobs
     WHERE id = :id
       AND status IN ('DEAD', 'CANCELED')
       AND (:queue IS NULL OR queue = :queue)
    ON CONFLICT DO NOTHING
"""
# Runs only if the statement above has inserted a row, in the same transaction. A token requeues a job once.
_REQUEUE: Final = """
    UPDATE th_jobs
       SET status = 'PENDING',
           payload = coalesce(:payload, payload),
           life = life + 1,
           max_attempts = attempt_count + coalesce(:budget, max_attempts - coalesce((
               -- What earlier lives have used: 0 in the first one.
               SELECT before.attempt
                 FROM th_attempts AS before
                WHERE before.job_id = th_jobs.id
                  AND before.life = th_jobs.life - 1
                  AND before.event = 'requeue'
           ), 0)),
           scheduled_for = :due,
           cancel_requested_at = NULL,
           dead_at = NULL,
           dead_reason = NULL,
           fingerprint = NULL,
           completed_at = NULL,
           dispatch_at = NULL,
           sent_at = NULL,
           releases = 0,
           resends = 0,
           settled_token = NULL,
           result = NULL,
           progress = NULL
     WHERE id = :id
"""
_IS_REQUEUED: Final = """
    SELECT EXISTS (SELECT 1 FROM th_attempts WHERE job_id = :id AND token = :token)
      FROM th_jobs
     WHERE id = :id
       AND (:queue IS NULL OR queue = :queue)
"""


def requeue(db: sqlite3.Connection, job_id: JobId, new: RequeueChange, *, due: int, now: int) -> Answer:
    params = {
        "id": job_id.bytes,
        "token": new.token.bytes,
        "by": new.by,
        "why": new.reason,
        "budget": new.budget,
        "due": due,
        "queue": new.queue,
        "payload": new.payload,
        "now": now,
    }
    if db.execute(_RECORD_REQUEUE, params).rowcount > 0:
        db.execute(_REQUEUE, params)
    row = db.execute(_IS_REQUEUED, params).fetchone()
    if row is None:
        return JobNotFound(job_id)
    return Transitioned(job_id, Status.PENDING) if row[0] else _refused(db, job_id, Event.REQUEUE)


_RESCHEDULE: Final = """
    UPDATE th_jobs
       SET scheduled_for = coalesce(:due, scheduled_for),
           priority = coalesce(:priority, priority),
           dispatch_at = NULL
     WHERE id = :id
       AND status IN ('PENDING', 'ENQUEUED', 'FAILED')
    RETURNING status
"""


def reschedule(db: sqlite3.Connection, job_id: JobId, *, due: int | None, priority: int | None) -> Answer:
    row = db.execute(_RESCHEDULE, {"id": job_id.bytes, "due": due, "priority": priority}).fetchone()
    return _refused(db, job_id, Event.RESCHEDULE) if row is None else Transitioned(job_id, Status(row[0]))


def _refused(db: sqlite3.Connection, job_id: JobId, event: Event) -> IllegalTransition | JobNotFound:
    row = db.execute("SELECT status FROM th_jobs WHERE id = ?", (job_id.bytes,)).fetchone()
    return JobNotFound(job_id) if row is None else IllegalTransition(job_id, Status(row[0]), event)


class SqliteControl:
    def __init__(self, connections: SqlitePool, settings: SqliteSettings) -> None:
        self._connections = connections
        self._settings = settings

    _PAUSE: LiteralString = """
        INSERT INTO th_queues (name, paused_at, paused_by, paused_reason, paused_until)
        VALUES (:name, :now, :by, :reason, :now + :lasts)
            ON CONFLICT (name) DO NOTHING
    """

    def pause(self, queues: Sequence[str], *, by: str, reason: str = "", lasts: timedelta | None = None) -> list[bool]:
        return self._each(self._PAUSE, queues, by=by, reason=reason, lasts=None if lasts is None else span(lasts))

    _RESUME: LiteralString = """
        DELETE FROM th_queues
         WHERE name = :name
    """

    def resume(self, queues: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME, queues)

    _PUT_SCHEDULE: LiteralString = """
        INSERT INTO th_schedules
               (name, cron, timezone, type, queue, payload, options, next_at, fired_at, paused_at, last_job_id,
                declared_at)
        VALUES (:name, :cron, :timezone, :type, :queue, :payload, :options, :next_at, :fired_at, :paused_at,
                :last_job_id, :declared_at)
            ON CONFLICT (name) DO UPDATE
           SET cron = :cron,
               timezone = :timezone,
               type = :type,
               queue = :queue,
               payload = :payload,
               options = :options,
               next_at = iif(cron = :cron AND timezone = :timezone, next_at, :next_at),
               declared_at = :declared_at
    """

    def put_schedules(self, schedules: Sequence[Schedule]) -> None:
        with self._connections as (db, _):
            db.executemany(self._PUT_SCHEDULE, [_columns(schedule) for schedule in schedules])

    _DELETE_SCHEDULE: LiteralString = """
        DELETE FROM th_schedules
         WHERE name = :name
    """

    def delete_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._DELETE_SCHEDULE, names)

    _PAUSE_SCHEDULE: LiteralString = """
        UPDATE th_schedules
           SET paused_at = :now
         WHERE name = :name
           AND paused_at IS NULL
    """

    def pause_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._PAUSE_SCHEDULE, names)

    _RESUME_SCHEDULE: LiteralString = """
        UPDATE th_schedules
           SET paused_at = NULL
         WHERE name = :name
           AND paused_at IS NOT NULL
    """

    def resume_schedules(self, names: Sequence[str]) -> list[bool]:
        return self._each(self._RESUME_SCHEDULE, names)

    def change_setting(self, name: str, value: str, *, instead_of: str) -> bool:
        return self._settings.change(name, value, instead_of=instead_of)

    _ADD_KEY: LiteralString = """
        INSERT INTO th_api_keys (id, name, digest, scopes, created_at, expires_at, revoked_at, parent)
        VALUES (:id, :name, :digest, :scopes, :created_at, :expires_at, :revoked_at, :parent)
            ON CONFLICT (id) DO NOTHING
    """

    _REMOVE_SESSIONS: LiteralString = """
        DELETE FROM th_api_keys
         WHERE parent IS NOT NULL
           AND expires_at <= :now
    """

    def add_keys(self, keys: Sequence[ApiKey]) -> list[bool]:
        with self._connections as (db, now):
            if any(key.parent is not None for key in keys):
                db.execute(self._REMOVE_SESSIONS, {"now": now})
            return [db.execute(self._ADD_KEY, _key_columns(key)).rowcount == 1 for key in keys]

    _REVOKE_KEY: LiteralString = """
        UPDATE th_api_keys
           SET revoked_at = :now
         WHERE id = :name
           AND revoked_at IS NULL
    """
    _REVOKE_SESSIONS: LiteralString = _REVOKE_KEY.replace("id = :name", "parent = :name")

    def revoke_keys(self, ids: Sequence[str]) -> list[bool]:
        with self._connections as (db, now):
            for each in ids:
                db.execute(self._REVOKE_SESSIONS, {"name": each, "now": now})
            return [db.execute(self._REVOKE_KEY, {"name": each, "now": now}).rowcount == 1 for each in ids]

    _NOTE_KEY_USE: LiteralString = """
        UPDATE th_api_keys
           SET used_at = :now
         WHERE id = :name
    """

    def note_key_use(self, ids: Sequence[str]) -> None:
        self._each(self._NOTE_KEY_USE, ids)

    _RECORD_AUDIT: LiteralString = """
        INSERT INTO th_audit (id, at, actor, action, target, detail)
        VALUES (:id, :now, :actor, :action, :target, :detail)
            ON CONFLICT (id) DO NOTHING
    """

    def record_audit(self, entries: Sequence[AuditEntry]) -> None:
        with self._connections as (db, now):
            db.executemany(self._RECORD_AUDIT, [_entry_columns(entry) | {"now": now} for entry in entries])

    def _each(self, statement: str, names: Sequence[str], **params: str | int | None) -> list[bool]:
        """Run *statement* for every name in one transaction, and return for which it changed a row."""
        with self._connections as (db, now):
            return [db.execute(statement, {"name": name, "now": now, **params}).rowcount == 1 for name in names]


def _columns(schedule: Schedule) -> dict[str, str | bytes | int | None]:
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "type": schedule.type,
        "queue": schedule.queue,
        "payload": schedule.payload,
        "options": json.dumps(dict(schedule.options)),
        "next_at": maybe_micros(schedule.next_at),
        "fired_at": maybe_micros(schedule.fired_at),
        "paused_at": maybe_micros(schedule.paused_at),
        "last_job_id": None if schedule.last_job_id is None else schedule.last_job_id.bytes,
        "declared_at": maybe_micros(schedule.declared_at),
    }


def _key_columns(key: ApiKey) -> dict[str, str | bytes | int | None]:
    return {
        "id": key.id,
        "name": key.name,
        "digest": key.digest,
        "scopes": json.dumps(key.scopes),
        "created_at": micros(key.created_at),
        "expires_at": maybe_micros(key.expires_at),
        "revoked_at": maybe_micros(key.revoked_at),
        "parent": key.parent,
    }


def _entry_columns(entry: AuditEntry) -> dict[str, str | bytes | int]:
    return {
        "id": entry.id.bytes,
        "actor": entry.actor,
        "action": entry.action,
        "target": entry.target,
        "detail": json.dumps(dict(entry.detail)),
    }
