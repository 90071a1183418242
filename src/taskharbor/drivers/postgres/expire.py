"""Statements for expired leases, exhausted jobs and clock jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, LEASE_LOST
from taskharbor.core.results import Cancellation, Expired
from taskharbor.core.states import Event, Status
from taskharbor.core.trace_context import TRACEPARENT
from taskharbor.drivers.postgres.claim import HELD, LOST_TO_CLOCK
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.settle import COUNT_ENDED
from taskharbor.drivers.records import death_from_values, landing_case

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.core.results import Death
    from taskharbor.drivers.postgres.pool import PostgresPool, Row

_STATUS_AFTER: Final[LiteralString] = landing_case(
    {Event.EXPIRE}, job="job.", attempts=f"job.attempt_count - {LOST_TO_CLOCK}"
)


class PostgresLeaseExpiry:
    """Ends expired leases, buries exhausted jobs and records clock jumps."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections

    _EXPIRE: LiteralString = f"""
        WITH lost AS (
            SELECT job.id, job.lease_token, job.life, job.attempt_count, job.worker_id, job.processing_started_at,
                   job.lease_expires_at, {LOST_TO_CLOCK} AS clock,
                   {_STATUS_AFTER} AS landing
              FROM th_jobs_processing AS job
             WHERE job.lease_expires_at <= {NOW}
               AND NOT {HELD}
             ORDER BY job.lease_expires_at, job.id
             LIMIT %(limit)s
               FOR UPDATE SKIP LOCKED
        ),
        landed AS (
            UPDATE th_jobs AS job
               SET status = lost.landing,
                   attempt_count = job.attempt_count - lost.clock,
                   scheduled_for =
                       CASE WHEN lost.landing IN ('ENQUEUED', 'FAILED') THEN {NOW} ELSE job.scheduled_for END,
                   last_error = %(error)s,
                   failed_at = {NOW},
                   lease_token = NULL,
                   lease_expires_at = NULL,
                   completed_at = CASE WHEN lost.landing IN ('DEAD', 'CANCELED') THEN {NOW} END,
                   dead_at = CASE lost.landing WHEN 'DEAD' THEN {NOW} END,
                   dead_reason = CASE lost.landing WHEN 'DEAD' THEN %(exhausted)s END,
                   fingerprint = CASE lost.landing WHEN 'DEAD' THEN '' END
              FROM lost
             WHERE job.status = 'PROCESSING'
               AND job.id = lost.id
            RETURNING job.id, job.queue, job.status, job.type, job.life, job.attempt_count, job.dead_reason,
                      job.worker_id, job.metadata ->> '{TRACEPARENT}' AS traceparent
        ),
        recorded AS (
            INSERT INTO th_attempts
                   (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
            SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, {NOW}, 'expire', landing,
                   CASE clock WHEN 1 THEN 'CLOCK' ELSE 'LOST' END
              FROM lost
                ON CONFLICT DO NOTHING
        ),
        tallied AS (
            {COUNT_ENDED}
              FROM landed
             WHERE status IN ('DEAD', 'CANCELED')
             GROUP BY queue, status
        )
        SELECT lost.lease_expires_at, lost.lease_token, lost.landing, landed.id, landed.type, landed.queue,
               landed.life, landed.attempt_count, landed.dead_reason, landed.worker_id, landed.traceparent
          FROM lost
          JOIN landed ON landed.id = lost.id
    """

    def expire(self, *, limit: int) -> list[Expired]:
        rows = self._connections.fetch(self._EXPIRE, limit=limit, error=LEASE_LOST, exhausted=ATTEMPTS_EXHAUSTED)
        rows.sort(key=lambda row: (row[0], row[3]))
        return [_expired(row) for row in rows]

    _BURY: LiteralString = f"""
        WITH exhausted AS (
            SELECT job.id
              FROM th_jobs_waiting AS job
             WHERE job.attempt_count >= job.max_attempts
             ORDER BY job.id
             LIMIT %(limit)s
               FOR UPDATE SKIP LOCKED
        ),
        buried AS (
            UPDATE th_jobs AS job
               SET status = 'DEAD',
                   last_error = coalesce(job.last_error, %(exhausted)s),
                   failed_at = {NOW},
                   completed_at = {NOW},
                   dead_at = {NOW},
                   dead_reason = %(exhausted)s,
                   fingerprint = '',
                   dispatch_at = NULL
             WHERE job.id = ANY (ARRAY(SELECT id FROM exhausted))
               AND job.status IN ('PENDING', 'ENQUEUED', 'FAILED')
            RETURNING job.id, job.queue, job.status, job.type, job.life, job.attempt_count, job.dead_reason,
                      job.worker_id, job.metadata ->> '{TRACEPARENT}' AS traceparent
        ),
        tallied AS (
            {COUNT_ENDED}
              FROM buried
             GROUP BY queue, status
        )
        SELECT id, type, queue, life, attempt_count, dead_reason, worker_id, traceparent
          FROM buried
    """

    def bury(self, *, limit: int) -> list[Death]:
        rows = self._connections.fetch(self._BURY, limit=limit, exhausted=ATTEMPTS_EXHAUSTED)
        return [death_from_values(row) for row in rows]

    _RECORD_CLOCK_JUMP: LiteralString = f"""
        WITH jump AS (
            SELECT %(expected)s::timestamptz AS expected, {NOW} AS now, {NOW} + %(lease)s AS until
        ),
        -- A report during the hold is about the same jump, and extends it. The two ends need no
        -- such check: a jump after the hold has later ends.
        ahead AS (
            INSERT INTO th_clock AS held (id, jumped_from, jumped_to, hold_until)
            SELECT 1, expected, now, until
              FROM jump
             WHERE now > expected
                ON CONFLICT (id) DO UPDATE
               SET jumped_from = CASE
                       WHEN excluded.jumped_to < held.hold_until THEN least(held.jumped_from, excluded.jumped_from)
                       ELSE excluded.jumped_from
                   END,
                   jumped_to = greatest(held.jumped_to, excluded.jumped_to),
                   hold_until = greatest(held.hold_until, excluded.hold_until)
        ),
        -- After a jump back, holds and duties of an earlier jump ahead must not last until the
        -- clock reaches their times again.
        released AS (
            DELETE FROM th_clock
             USING jump
             WHERE now <= expected
        ),
        freed AS (
            UPDATE th_duties
               SET next_at = now
              FROM jump
             WHERE now <= expected
               AND next_at > now
        )
        UPDATE th_jobs_processing AS job
           SET lease_expires_at = until
          FROM jump
         WHERE now <= expected
           AND job.lease_expires_at > until
    """

    def report_clock_jump(self, *, expected: datetime, lease: timedelta) -> None:
        self._connections.fetch(self._RECORD_CLOCK_JUMP, expected=expected, lease=lease)


def _expired(row: Row) -> Expired:
    _, token, landing, job_id, type, queue, *_ = row
    status = Status(landing)
    return Expired(
        job_id,
        token,
        status,
        death_from_values(row[3:]) if status is Status.DEAD else None,
        Cancellation(job_id=job_id, type=type, queue=queue) if status is Status.CANCELED else None,
    )
