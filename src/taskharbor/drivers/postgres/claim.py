"""Statements that claim jobs by queue, by id, or after an expired lease; scan cursors for large batches."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.claims import refusal_reason
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.drivers.postgres.rows import JOB, NOW, claimed, job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.claims import Claimant
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.drivers.postgres.pool import PostgresPool, Row

MIN_CURSOR_BATCH: Final = 50
"""Smaller batches always scan from the head: they gain little, and keep the exact order."""
MIN_RESCAN_SECONDS: Final = 1.0  # between two scans from the head of a queue
RESCAN_COST_FACTOR: Final = 50
"""The pause after a scan from the head, as a multiple of the time it took beyond a batch from a cursor.

Such a scan past 300,000 dead entries takes 40 ms; once a second, that would slow a drain considerably.
"""
MAX_RESCAN_SECONDS: Final = 10.0  # after which the head is scanned regardless of its cost


@dataclass(frozen=True, slots=True)
class _CursorState:
    position: Position
    rescan_at: float
    usual_seconds: float  # of a batch from a cursor; a scan from the head takes longer by the cost of dead entries


@dataclass(frozen=True, slots=True)
class ScanStart:
    """The position after which a batch starts (None: the head of the queue), and when it was requested."""

    position: Position | None
    requested_at: float


class ScanCursors:
    """The keyset position of each queue at which its last batch ended, so that the next batch starts there.

    Claimed jobs leave dead index entries at the head of a queue. Every scan from the head must
    pass them until VACUUM removes them, and VACUUM removes none while an old snapshot is open,
    so a drain would slow down continuously. Jobs that arrive before the position are found
    after one second (up to ten if a scan from the head is slow), or as soon as a batch is not
    full. Only the order of jobs within that time is affected.
    """

    def __init__(self) -> None:
        self._cursors: dict[str, _CursorState] = {}

    def start(self, queue: str, limit: int) -> ScanStart:
        """Return the position after which the next batch of *limit* jobs starts."""
        cursor, now = self._cursors.get(queue), time.monotonic()
        is_at_head = limit < MIN_CURSOR_BATCH or cursor is None or now >= cursor.rescan_at
        return ScanStart(None if is_at_head or cursor is None else cursor.position, now)

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, start: ScanStart) -> None:
        """Record the *claims* of a batch of *limit* jobs that started at *start*."""
        known, now = self._cursors.get(queue), time.monotonic()
        seconds = now - start.requested_at
        if limit < MIN_CURSOR_BATCH or len(claims) < limit:
            self._cursors.pop(queue, None)
        elif start.position is None or known is None:
            usual = seconds if known is None else known.usual_seconds
            pause = min(max(MIN_RESCAN_SECONDS, RESCAN_COST_FACTOR * (seconds - usual)), MAX_RESCAN_SECONDS)
            self._cursors[queue] = _CursorState(position_of(claims[-1]), now + pause, usual)
        else:
            self._cursors[queue] = _CursorState(position_of(claims[-1]), known.rescan_at, seconds)


def _parameters(claimant: Claimant) -> dict[str, Any]:
    return {
        "token": claimant.token,
        "worker": claimant.worker,
        "lease": claimant.lease,
        "types": None if claimant.types is None else sorted(claimant.types),
        "unhandled_after": claimant.unhandled_after,
        "reclaims": claimant.reclaims,
    }


_HANDLED: Final[LiteralString] = "(%(types)s::text[] IS NULL OR job.type = ANY (%(types)s))"
_HANDLED_OR_LATE: Final[LiteralString] = f"({_HANDLED} OR job.scheduled_for <= {NOW} - %(unhandled_after)s::interval)"
ATTEMPTS_LEFT: Final[LiteralString] = "job.max_attempts - job.attempt_count > 0"
"""Written differently from the predicate of the ordered index, so that only ordered scans use that index."""
LOST_TO_CLOCK: Final[LiteralString] = (
    "EXISTS (SELECT FROM th_clock WHERE jumped_from < job.lease_expires_at AND job.lease_expires_at <= jumped_to)::int"
)
HELD: Final[LiteralString] = f"EXISTS (SELECT FROM th_clock WHERE hold_until > {NOW})"
# An expired lease of a job that may be reclaimed. An attempt lost to a clock jump does not count.
_RECLAIMABLE: Final[LiteralString] = f"""
    job.lease_expires_at <= {NOW}
    AND job.lease_token <> %(token)s
    AND %(reclaims)s
    AND job.cancel_requested_at IS NULL
    AND job.attempt_count - {LOST_TO_CLOCK} < job.max_attempts
    AND NOT {HELD}
    AND {_HANDLED}
"""
_SET_CLAIMED: Final[LiteralString] = f"""
       SET status = 'PROCESSING',
           lease_token = %(token)s,
           lease_expires_at = {NOW} + %(lease)s,
           worker_id = %(worker)s,
           processing_started_at = {NOW},
           dispatch_at = NULL,
           resends = 0,
           attempt_count = job.attempt_count + 1
"""
_LOST_ATTEMPT: Final[LiteralString] = f"""
    job.id, job.lease_token, job.life, job.attempt_count, job.worker_id, job.processing_started_at,
    job.lease_expires_at, {LOST_TO_CLOCK} AS clock
"""
_RECORD_LOST: Final[LiteralString] = f"""
        INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
        SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, {NOW}, 'reclaim', 'PROCESSING',
               CASE clock WHEN 1 THEN 'CLOCK' ELSE 'LOST' END
"""

_DUE: Final[LiteralString] = f"""
    UPDATE th_jobs AS job
           {_SET_CLAIMED}
     WHERE job.status IN ('PENDING', 'ENQUEUED', 'FAILED')
       AND job.id = ANY (ARRAY(
           SELECT job.id
             FROM th_jobs_waiting AS job
            WHERE job.queue = %(queue)s
              AND job.scheduled_for <= {NOW}
              AND (job.status <> 'ENQUEUED' OR job.scheduled_for < {NOW} - %(overdue_after)s)
              AND job.attempt_count < job.max_attempts
              AND {_HANDLED_OR_LATE}
              AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
"""
_IN_ORDER: Final[LiteralString] = f"""
            ORDER BY job.priority, job.scheduled_for, job.id
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED
           ))
    RETURNING {JOB}
"""
_CLAIM_DUE: Final[LiteralString] = _DUE + _IN_ORDER
_OVERDUE: Final[LiteralString] = f"""
    {_DUE}
              AND job.scheduled_for <= {NOW} - %(overdue_after)s
    {_IN_ORDER}
"""
_CLAIM_AFTER: Final[LiteralString] = f"""
    {_DUE}
              AND (job.priority, job.scheduled_for, job.id)
                  > (%(priority)s, %(scheduled_for)s::timestamptz, %(id)s)
    {_IN_ORDER}
"""


def claim_due(
    connections: PostgresPool,
    queue: str,
    claimant: Claimant,
    *,
    limit: int,
    overdue_after: timedelta,
    after: Position | None,
) -> list[Claim]:
    """Claim due jobs in order, from the head of the queue or after a position in it."""
    parameters = _parameters(claimant) | {"queue": queue, "limit": max(limit, 0), "overdue_after": overdue_after}
    if after is None:
        rows = connections.fetch(_CLAIM_DUE, **parameters)
    else:
        position = {"priority": after[0], "scheduled_for": after[1], "id": after[2]}
        rows = connections.fetch(_CLAIM_AFTER, **parameters | position)
    return _in_order(rows)


def claim_overdue(
    connections: PostgresPool, queue: str, claimant: Claimant, *, limit: int, overdue_after: timedelta
) -> list[Claim]:
    """Claim jobs of any waiting status that have been due for *overdue_after*."""
    parameters = _parameters(claimant) | {"queue": queue, "limit": max(limit, 0), "overdue_after": overdue_after}
    return _in_order(connections.fetch(_OVERDUE, **parameters))


def _in_order(rows: list[Row]) -> list[Claim]:
    rows.sort(key=lambda row: (row[3], row[6], row[0].int))
    return [claimed(row) for row in rows]


Position = tuple[int, "datetime", "JobId"]


def position_of(claim: Claim) -> Position:
    return claim.job.priority, claim.job.scheduled_for, claim.job.id


_RECLAIM: Final[LiteralString] = f"""
    WITH ended AS (
        SELECT {_LOST_ATTEMPT}
          FROM th_jobs_processing AS job
         WHERE job.queue = %(queue)s
           AND {_RECLAIMABLE}
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.lease_expires_at, job.id
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED
    ),
    recorded AS (
        {_RECORD_LOST}
          FROM ended
            ON CONFLICT DO NOTHING
    )
    UPDATE th_jobs_processing AS job
           {_SET_CLAIMED} - ended.clock
      FROM ended
     WHERE job.id = ANY (ARRAY[ended.id])
    RETURNING {JOB}, ended.lease_expires_at
"""


def reclaim_expired(connections: PostgresPool, queue: str, claimant: Claimant, *, limit: int) -> list[Claim]:
    """Claim jobs whose lease has expired, in the order of expiry."""
    rows = connections.fetch(_RECLAIM, **_parameters(claimant), queue=queue, limit=max(limit, 0))
    return [claimed(row) for row in sorted(rows, key=lambda row: (row[-1], row[0]))]


_CLAIM: Final[LiteralString] = f"""
    -- Locked in the order of ids, so that two claims of the same jobs cannot deadlock.
    WITH free AS (
        SELECT {_LOST_ATTEMPT}, job.status
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
           AND job.queue = %(queue)s
           AND job.status IN ('ENQUEUED', 'PROCESSING')
           AND (
               job.status = 'PROCESSING' AND {_RECLAIMABLE}
               OR job.status = 'ENQUEUED'
                   AND job.scheduled_for <= {NOW}
                   AND {ATTEMPTS_LEFT}
                   AND {_HANDLED_OR_LATE}
           )
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.id
           FOR UPDATE
    ),
    recorded AS (
        {_RECORD_LOST}
          FROM free
         WHERE status = 'PROCESSING'
            ON CONFLICT DO NOTHING
    )
    UPDATE th_jobs AS job
           {_SET_CLAIMED} - coalesce(free.clock, 0),
           -- A message that arrived was sent, even if the enqueuer has not recorded that yet.
           sent_at = coalesce(job.sent_at, {NOW})
      FROM free
     WHERE job.id = ANY (ARRAY[free.id])
       AND job.status IN ('ENQUEUED', 'PROCESSING')
    RETURNING {JOB}
"""


def claim(connections: PostgresPool, queue: str, job_ids: Sequence[JobId], claimant: Claimant) -> list[Claim | Refused]:
    parameters = _parameters(claimant) | {"queue": queue, "ids": list(dict.fromkeys(job_ids))}
    claims = {row[0]: claimed(row) for row in connections.fetch(_CLAIM, **parameters)}
    if len(claims) == len(job_ids):
        return [claims[each] for each in job_ids]
    # Read why the others were refused. An id that was passed twice is claimed once and refused the second time.
    unclaimed = [each for n, each in enumerate(job_ids) if each not in claims or each in job_ids[:n]]
    refused = _refused(connections, queue, unclaimed, claimant)
    return [claims.pop(each) if each in claims else refused[each] for each in job_ids]


_REFUSAL_FACTS: Final[LiteralString] = f"""
    SELECT {JOB},
           {NOW},
           (SELECT hold_until FROM th_clock WHERE hold_until > {NOW}),
           job.attempt_count - {LOST_TO_CLOCK},
           EXISTS (SELECT FROM th_queues WHERE name = job.queue)
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
"""


def _refused(
    connections: PostgresPool, queue: str, job_ids: Sequence[JobId], claimant: Claimant
) -> dict[JobId, Refused]:
    rows = {row[0]: row for row in connections.fetch(_REFUSAL_FACTS, ids=list(job_ids))}
    return {
        each: _reason(rows[each], queue, claimant) if each in rows else Refused(each, RefusalReason.NOT_FOUND)
        for each in job_ids
    }


def _reason(row: Row, queue: str, claimant: Claimant) -> Refused:
    found = job(row)
    now, hold, attempts, is_paused = row[-4:]
    reason = refusal_reason(
        found,
        claimant,
        queue=queue,
        now=now,
        hold=hold,
        attempts=attempts,
        is_paused=is_paused,
    )
    # None: the job has become claimable since the claim was refused. Report it as leased until now.
    refusal, until = reason or (RefusalReason.LEASED, now)
    return Refused(found.id, refusal, until, found.sends)
