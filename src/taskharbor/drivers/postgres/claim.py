"""Statements that claim jobs by queue, by id, or after an expired lease."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.errors import LockNotAvailable

from taskharbor.core.claims import refusal_reason
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.drivers.backlogs import HEAD_JOBS, QueueHead
from taskharbor.drivers.postgres.rows import CLAIMED, JOB, NOW, claims, job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.claims import Claimant
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.drivers.backlogs import Position
    from taskharbor.drivers.postgres.pool import PostgresPool, Row


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
              AND job.scheduled_for <= {NOW} - %(min_wait)s
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
    RETURNING {CLAIMED}
"""
_CLAIM_DUE: Final[LiteralString] = _DUE + _IN_ORDER
_CLAIM_BEFORE: Final[LiteralString] = f"""
    {_DUE}
              AND job.priority < %(priority)s
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
    min_wait: timedelta,
    asynchronous: bool,
    after: Position | None = None,
    before: int | None = None,
) -> list[Claim]:
    """Claim jobs that have been due for *min_wait*, in order: after a position, or of a priority below *before*."""
    parameters = _parameters(claimant) | {
        "queue": queue, "limit": max(limit, 0), "overdue_after": overdue_after, "min_wait": min_wait
    }  # fmt: skip
    statement = _CLAIM_DUE
    if before is not None:
        statement = _CLAIM_BEFORE
        parameters["priority"] = before
    elif after is not None:
        statement = _CLAIM_AFTER
        parameters |= {"priority": after[0], "scheduled_for": after[1], "id": after[2]}
    rows = connections.fetch(_asynchronous(statement) if asynchronous else statement, **parameters)
    rows.sort()
    return claims(rows, queue, claimant)


# The subquery runs once, before the first row is changed. The setting ends with the transaction, so that this works
# behind a pooler, and needs no connections of its own.
_WITHOUT_FLUSH: Final[LiteralString] = "AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'"


@cache
def _asynchronous(statement: LiteralString) -> LiteralString:
    """Return *statement* with a commit that does not wait for the disk (ADR 0021)."""
    return statement.replace("RETURNING", f"{_WITHOUT_FLUSH}\n    RETURNING")


_HEAD: Final[LiteralString] = f"""
    SELECT count(*) FILTER (WHERE NOT head.handled), min(head.priority) FILTER (WHERE NOT head.handled), {NOW}
      FROM (
           SELECT job.priority, coalesce({_HANDLED_OR_LATE}, false) AS handled
             FROM th_jobs_waiting AS job
            WHERE job.queue = %(queue)s
              AND job.scheduled_for <= {NOW} - %(min_wait)s
              AND job.attempt_count < job.max_attempts
            ORDER BY job.priority, job.scheduled_for, job.id
            LIMIT %(limit)s
           ) AS head
"""


def read_head(connections: PostgresPool, queue: str, claimant: Claimant, *, min_wait: timedelta) -> QueueHead:
    """Read how many of the first due jobs *claimant* leaves for other workers."""
    parameters = _parameters(claimant) | {"queue": queue, "min_wait": min_wait, "limit": HEAD_JOBS}
    [row] = connections.fetch(_HEAD, **parameters)
    return QueueHead(*row)


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
    RETURNING {CLAIMED}, ended.lease_expires_at
"""


def reclaim_expired(
    connections: PostgresPool, queue: str, claimant: Claimant, *, limit: int, asynchronous: bool
) -> list[Claim]:
    """Claim jobs whose lease has expired, in the order of expiry."""
    statement = _asynchronous(_RECLAIM) if asynchronous else _RECLAIM
    rows = connections.fetch(statement, **_parameters(claimant), queue=queue, limit=max(limit, 0))
    rows.sort(key=lambda row: (row[-1], row[2]))
    return claims([row[:-1] for row in rows], queue, claimant, reclaims=[True] * len(rows))


_CLAIM: Final[LiteralString] = f"""
    -- Locked in the order of ids, so that two claims of the same jobs cannot deadlock.
    WITH free AS (
        SELECT {_LOST_ATTEMPT}, job.status
          FROM th_jobs AS job
         -- The subquery runs before the first row is locked, so the timeout holds for every lock.
         WHERE job.id = ANY ((
               SELECT CASE WHEN set_config('lock_timeout', %(lock_timeout)s, true) <> '' THEN %(ids)s::uuid[] END
               )::uuid[])
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
    RETURNING {CLAIMED}, free.status = 'PROCESSING'
"""
_CLAIM_SKIPPING_LOCKED: Final[LiteralString] = _CLAIM.replace("FOR UPDATE\n", "FOR UPDATE SKIP LOCKED\n")
LOCK_TIMEOUT: Final = "100ms"
"""How long a claim by message waits for a locked row. An enqueuer that records what it sent locks it for about 1 ms."""


def claim(connections: PostgresPool, queue: str, job_ids: Sequence[JobId], claimant: Claimant) -> list[Claim | Refused]:
    """Claim these jobs. One whose row stays locked by another transaction is refused, and does not delay the others."""
    parameters = _parameters(claimant) | {
        "queue": queue, "ids": list(dict.fromkeys(job_ids)), "lock_timeout": LOCK_TIMEOUT
    }  # fmt: skip
    try:
        rows = connections.fetch(_CLAIM, **parameters)
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        rows = connections.fetch(_CLAIM_SKIPPING_LOCKED, **parameters)
    claimed = claims([row[:-1] for row in rows], queue, claimant, reclaims=[row[-1] for row in rows])
    made = {each.job.id: each for each in claimed}
    if len(made) == len(job_ids):
        return [made[each] for each in job_ids]
    # Read why the others were refused. An id that was passed twice is claimed once and refused the second time.
    unclaimed = [each for n, each in enumerate(job_ids) if each not in made or each in job_ids[:n]]
    refused = _refused(connections, queue, unclaimed, claimant)
    return [made.pop(each) if each in made else refused[each] for each in job_ids]


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
    # None: its row is locked, or it has become claimable since the claim was refused. Report it as leased until now.
    refusal, until = reason or (RefusalReason.LEASED, now)
    return Refused(found.id, refusal, until, found.sends)
