"""Leases that are over, jobs that are spent, and a clock that jumped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString
from uuid import UUID

from taskharbor.core.ids import Token
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, LEASE_LOST
from taskharbor.core.results import Expired
from taskharbor.core.states import Event, Status
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
    """What brings back jobs that nobody runs any more."""

    def __init__(self, connections: SqlitePool) -> None:
        self._connections = connections

    _LOST: LiteralString = f"""
        -- Says where each job lands, and whether the clock took its lease. The two statements below follow it in the
        -- same transaction, which alone may write: every lease is still the one that was found.
        SELECT job.id,
               job.lease_token AS token,
               {_STATUS_AFTER} AS status,
               iif(jump.id IS NOT NULL, 'CLOCK', 'LOST') AS outcome
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
        ON CONFLICT DO NOTHING  -- (job, token) names one attempt; its first row stays
    """

    _LAND: LiteralString = """
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
               dead_reason = iif(:status = 'DEAD', :spent, NULL),
               fingerprint = iif(:status = 'DEAD', '', NULL)
         WHERE id = :id
    """

    def expire(self, *, limit: int) -> list[Expired]:
        with self._connections as (db, now):
            lost = db.execute(self._LOST, {"now": now, "limit": limit}).fetchall()
            common = {"now": now, "error": LEASE_LOST, "spent": ATTEMPTS_EXHAUSTED}
            asked = [common | dict(zip(("id", "token", "status", "outcome"), row, strict=True)) for row in lost]
            db.executemany(self._RECORD, asked)
            db.executemany(self._LAND, asked)
            deaths = _deaths(db, [id for id, _, status, _ in lost if status == Status.DEAD])
        return [
            Expired(job_id(id), Token(UUID(bytes=token)), Status(status), deaths.get(id))
            for id, token, status, _ in lost
        ]

    _SPENT: LiteralString = f"""
        SELECT id
          FROM th_jobs INDEXED BY th_jobs_spent
         WHERE {WAITING}
           AND attempt_count >= max_attempts
         LIMIT :limit
    """

    _BURY: LiteralString = """
        UPDATE th_jobs
           SET status = 'DEAD',
               last_error = coalesce(last_error, :spent),
               failed_at = :now,
               completed_at = :now,
               dead_at = :now,
               dead_reason = :spent,
               fingerprint = '',
               dispatch_at = NULL
         WHERE id = :id
           AND status IN ('PENDING', 'ENQUEUED', 'FAILED')
           AND attempt_count >= max_attempts
    """

    def bury(self, *, limit: int) -> list[Death]:
        # There are none, as a rule, and then nobody has to write: what is found is but a
        # hint, and the guard stands once more in the write.
        with self._connections.read() as db:
            spent = [id for (id,) in db.execute(self._SPENT, {"limit": limit})]
        if not spent:
            return []
        with self._connections as (db, now):
            buried = [
                id
                for id in spent
                if db.execute(self._BURY, {"id": id, "now": now, "spent": ATTEMPTS_EXHAUSTED}).rowcount
            ]
            return list(_deaths(db, buried).values())

    _AHEAD: tuple[LiteralString, ...] = (
        """
        -- A report within the hold is of the same jump, and widens it. The ends need no such
        -- guard: a jump that came after the hold ended later.
        INSERT INTO th_clock (id, jumped_from, jumped_to, hold_until)
        VALUES (1, :expected, :now, :until)
            ON CONFLICT (id) DO UPDATE
           SET jumped_from = iif(:now < hold_until, min(jumped_from, :expected), :expected),
               jumped_to = max(jumped_to, :now),
               hold_until = max(hold_until, :until)
        """,
    )

    # What an earlier jump ahead held back, or put off, would else wait until its time comes a second time.
    _BACK: tuple[LiteralString, ...] = (
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
            for statement in self._AHEAD if now > jump["expected"] else self._BACK:
                db.execute(statement, jump)


_DEATHS: Final[LiteralString] = """
    SELECT id, type, queue, life, attempt_count, dead_reason
      FROM th_jobs
     WHERE id = ?
"""


def _deaths(db: sqlite3.Connection, ids: Sequence[bytes]) -> dict[bytes, Death]:
    """Return what there is to report of jobs that died in this very transaction, by id."""
    rows = [db.execute(_DEATHS, (id,)).fetchone() for id in ids]
    return {row[0]: death(row) for row in rows}
