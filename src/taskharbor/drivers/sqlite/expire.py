"""End expired leases, bury exhausted jobs, and handle clock jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString
from uuid import UUID

from taskharbor.core.ids import Token
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, LEASE_LOST
from taskharbor.core.results import Cancellation, Expired
from taskharbor.core.states import Event, Status
from taskharbor.core.trace_context import TRACEPARENT
from taskharbor.drivers.records import landing_case
from taskharbor.drivers.sqlite.rows import WAITING, death, job_id, micros, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.results import Death
    from taskharbor.drivers.sqlite.pool import SqlitePool

_STATUS_AFTER: Final[LiteralString] = landing_case(
    {Event.EXPIRE}, job="job.", attempts="job.attempt_count - (jump.id IS NOT NULL)"
)


class SqliteLeaseExpiry:
    """Ends leases of dead workers, buries exhausted jobs, and records clock jumps."""

    def __init__(self, connections: SqlitePool) -> None:
        self._connections = connections

    _LOST: LiteralString = f"""
        -- Selects each job's next status, and whether its lease was lost to a clock jump. The two statements below
        -- run in the same IMMEDIATE transaction, so the leases cannot change in between.
        SELECT job.id,
               job.lease_token AS token,
               {_STATUS_AFTER} AS status,
               iif(jump.id IS NOT NULL, 'CLOCK', 'LOST') AS outcome,
               job.type,
               job.queue
          FROM th_jobs AS job
          LEFT JOIN th_clock AS jump
            ON jump.jumped_from < job.lease_expires_at
           AND jump.jumped_to >= job.lease_expires_at
         WHERE job.status = 'PROCESSING'
           AND job.lease_expires_at <= :now
           AND NOT EXISTS (SELECT 1 FROM th_clock WHERE hold_until > :now)
         ORDER BY job.lease_expires_at, job.id
         LIMIT :limit
    """

    _RECORD: LiteralString = """
        INSERT INTO th_attempts
               (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
        SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, :now, 'expire', :status, :outcome
          FROM th_jobs
         WHERE id = :id
        ON CONFLICT DO NOTHING  -- (job, token) identifies one attempt; its first row is kept
    """

    _END_LEASE: LiteralString = """
        UPDATE th_jobs
           SET status = :status,
               attempt_count = attempt_count - (:outcome = 'CLOCK'),
               scheduled_for = iif(:status IN ('ENQUEUED', 'FAILED'), :now, scheduled_for),
               last_error = :error,
               failed_at = :now,
               lease_token = NULL,
               lease_expires_at = NULL,
               completed_at = iif(:status IN ('DEAD', 'CANCELED'), :now, NULL),
               dead_at = iif(:status = 'DEAD', :now, NULL),
               dead_reason = iif(:status = 'DEAD', :exhausted, NULL),
               fingerprint = iif(:status = 'DEAD', '', NULL)
         WHERE id = :id
    """

    def expire(self, *, limit: int) -> list[Expired]:
        with self._connections as (db, now):
            lost = db.execute(self._LOST, {"now": now, "limit": limit}).fetchall()
            common = {"now": now, "error": LEASE_LOST, "exhausted": ATTEMPTS_EXHAUSTED}
            params = [common | dict(zip(("id", "token", "status", "outcome"), row[:4], strict=True)) for row in lost]
            db.executemany(self._RECORD, params)
            db.executemany(self._END_LEASE, params)
            deaths = _deaths(db, [id for id, _, status, *_ in lost if status == Status.DEAD])
        canceled = {
            id: Cancellation(job_id=job_id(id), type=type, queue=queue)
            for id, _, status, _, type, queue in lost
            if status == Status.CANCELED
        }
        return [
            Expired(job_id(id), Token(UUID(bytes=token)), Status(status), deaths.get(id), canceled.get(id))
            for id, token, status, *_ in lost
        ]

    _EXHAUSTED: LiteralString = f"""
        SELECT id
          FROM th_jobs INDEXED BY th_jobs_spent
         WHERE {WAITING}
           AND attempt_count >= max_attempts
         LIMIT :limit
    """

    _BURY: LiteralString = """
        UPDATE th_jobs
           SET status = 'DEAD',
               last_error = coalesce(last_error, :exhausted),
               failed_at = :now,
               completed_at = :now,
               dead_at = :now,
               dead_reason = :exhausted,
               fingerprint = '',
               dispatch_at = NULL
         WHERE id = :id
           AND status IN ('PENDING', 'ENQUEUED', 'FAILED')
           AND attempt_count >= max_attempts
    """

    def bury(self, *, limit: int) -> list[Death]:
        # Normally there are none, and the read avoids a write transaction. The write repeats the guard, since the
        # jobs may have changed since the read.
        with self._connections.read() as db:
            exhausted = [id for (id,) in db.execute(self._EXHAUSTED, {"limit": limit})]
        if not exhausted:
            return []
        with self._connections as (db, now):
            buried = [
                id
                for id in exhausted
                if db.execute(self._BURY, {"id": id, "now": now, "exhausted": ATTEMPTS_EXHAUSTED}).rowcount
            ]
            return list(_deaths(db, buried).values())

    _JUMP_FORWARD: tuple[LiteralString, ...] = (
        """
        -- A report during the hold is about the same jump and widens it. jumped_to and hold_until need no such guard:
        -- for a later jump, the new values are always larger.
        INSERT INTO th_clock (id, jumped_from, jumped_to, hold_until)
        VALUES (1, :expected, :now, :until)
            ON CONFLICT (id) DO UPDATE
           SET jumped_from = iif(:now < hold_until, min(jumped_from, :expected), :expected),
               jumped_to = max(jumped_to, :now),
               hold_until = max(hold_until, :until)
        """,
    )

    # Otherwise holds, duties and leases from an earlier forward jump would last until the clock reaches them again.
    _JUMP_BACKWARD: tuple[LiteralString, ...] = (
        """
        DELETE FROM th_clock
        """,
        """
        UPDATE th_duties
           SET next_at = :now
         WHERE next_at > :now
        """,
        """
        UPDATE th_jobs
           SET lease_expires_at = :until
         WHERE status = 'PROCESSING'
           AND lease_expires_at > :until
        """,
    )

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        with self._connections as (db, now):
            jump = {"expected": micros(expected), "now": now, "until": now + span(lease)}
            for statement in self._JUMP_FORWARD if now > jump["expected"] else self._JUMP_BACKWARD:
                db.execute(statement, jump)


_DEATHS: Final[LiteralString] = f"""
    SELECT id, type, queue, life, attempt_count, dead_reason, worker_id, json_extract(metadata, '$.{TRACEPARENT}')
      FROM th_jobs
     WHERE id = ?
"""


def _deaths(db: sqlite3.Connection, ids: Sequence[bytes]) -> dict[bytes, Death]:
    """Return the deaths to report, by id, of jobs that died in this transaction."""
    rows = [db.execute(_DEATHS, (id,)).fetchone() for id in ids]
    return {row[0]: death(row) for row in rows}
