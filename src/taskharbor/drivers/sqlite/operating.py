"""What people do to jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from taskharbor.core.answers import Transitioned
from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.states import Event, Status

if TYPE_CHECKING:
    import sqlite3

    from taskharbor.core.ids import JobId, Token

Answer = Transitioned | IllegalTransition | JobNotFound

_CANCEL: Final = """
    UPDATE th_jobs
       SET status = iif(status = 'PROCESSING', status, 'CANCELED'),
           completed_at = iif(status = 'PROCESSING', NULL, :now),
           dispatch_at = iif(status = 'PROCESSING', dispatch_at, NULL),
           cancel_requested_at = iif(status = 'PROCESSING', coalesce(cancel_requested_at, :now), NULL)
     WHERE id = :id
       AND status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
    RETURNING status
"""


def cancel(db: sqlite3.Connection, job_id: JobId, now: int) -> Answer:
    row = db.execute(_CANCEL, {"id": job_id.bytes, "now": now}).fetchone()
    return _refused(db, job_id, Event.CANCEL) if row is None else Transitioned(job_id, Status(row[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteRequeue:
    """What a requeue gives, and who gives it."""

    token: Token
    budget: int
    by: str
    reason: str
    scheduled_for: int
    queue: str | None
    payload: bytes | None


_REMEMBER: Final = """
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
# For a job that the statement above has written a row of, in the same transaction: the row lets it through, once.
_REVIVE: Final = """
    UPDATE th_jobs
       SET status = 'PENDING',
           payload = coalesce(:payload, payload),
           life = life + 1,
           max_attempts = attempt_count + :budget,
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
_REQUEUED: Final = """
    SELECT EXISTS (SELECT 1 FROM th_attempts WHERE job_id = :id AND token = :token)
      FROM th_jobs
     WHERE id = :id
       AND (:queue IS NULL OR queue = :queue)
"""


def requeue(db: sqlite3.Connection, job_id: JobId, new: SqliteRequeue, now: int) -> Answer:
    asked = {
        "id": job_id.bytes,
        "token": new.token.bytes,
        "by": new.by,
        "why": new.reason,
        "budget": new.budget,
        "due": new.scheduled_for,
        "queue": new.queue,
        "payload": new.payload,
        "now": now,
    }
    if db.execute(_REMEMBER, asked).rowcount > 0:
        db.execute(_REVIVE, asked)
    row = db.execute(_REQUEUED, asked).fetchone()
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
