"""Statements that mark due jobs for sending, and record the results of sending them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.errors import LockNotAvailable

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.results import Declined, Dispatch, Sent, Unsent
from taskharbor.drivers.postgres import pool
from taskharbor.drivers.postgres.claim import ATTEMPTS_LEFT, LOCK_TIMEOUT
from taskharbor.drivers.postgres.rows import LIMIT_TO_IDS, MATCHES_ID, NOW, uuids

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.pool import PostgresPool

_DISPATCH: Final[LiteralString] = f"""
    -- All resends that are due, and new jobs up to the bound on unclaimed ones.
    WITH fresh AS (
        SELECT job.id, job.priority, job.scheduled_for AS since
          FROM th_jobs_waiting AS job
         WHERE job.queue = %(queue)s
           AND job.scheduled_for <= {NOW}
           AND job.dispatch_at IS NULL
           AND job.attempt_count < job.max_attempts
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.priority, job.scheduled_for, job.id
         LIMIT greatest(0, least(%(limit)s, %(unclaimed)s - (
               SELECT count(*)
                 FROM th_jobs_waiting AS sent
                WHERE sent.queue = %(queue)s
                  AND sent.dispatch_at IS NOT NULL
                  AND sent.scheduled_for <= {NOW}
               )))
           FOR UPDATE SKIP LOCKED
    ),
    again AS (
        SELECT job.id, job.priority, job.dispatch_at AS since
          FROM th_jobs_waiting AS job
         WHERE job.queue = %(queue)s
           AND job.scheduled_for <= {NOW}
           AND job.dispatch_at <= {NOW}
           AND {ATTEMPTS_LEFT}
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.priority, job.dispatch_at, job.id
         LIMIT greatest(0, %(limit)s)
           FOR UPDATE SKIP LOCKED
    ),
    turn AS (
        SELECT id, priority, since
          FROM (SELECT * FROM fresh UNION ALL SELECT * FROM again) AS either
         ORDER BY priority, since, id
         LIMIT greatest(0, %(limit)s)
    )
    UPDATE th_jobs_waiting AS job
       SET status = 'ENQUEUED',
           sends = job.sends + 1,
           resends = job.resends + 1,
           dispatch_at = {NOW} + %(lock)s
      FROM turn
     WHERE job.id = ANY (ARRAY[turn.id])
    RETURNING job.id, job.sends, job.resends, job.dispatch_at, turn.priority, turn.since
"""


def dispatch(connections: PostgresPool, queue: str, *, limit: int, lock: timedelta, unclaimed: int) -> list[Dispatch]:
    rows = connections.fetch(_DISPATCH, queue=queue, limit=limit, lock=lock, unclaimed=unclaimed)
    rows.sort(key=lambda row: (row[4], row[5], row[0]))
    return [Dispatch(row[0], row[1], row[2], row[3]) for row in rows]


_IDS: Final[LiteralString] = (
    # The subquery runs before the first row is locked, so the timeout holds for every lock.
    "(SELECT CASE WHEN set_config('lock_timeout', %(lock_timeout)s, true) <> '' THEN %(ids)s::uuid[] END)::uuid[]"
)
_SENT: Final[LiteralString] = f"""
    UPDATE th_jobs_waiting AS job
       SET sent_at = {NOW},
           dispatch_at = {NOW} + asked.again_in
      FROM (
           SELECT *
             FROM unnest({_IDS}, %(seqs)s::integer[], %(locks)s::timestamptz[], %(agains)s::interval[])
            {LIMIT_TO_IDS}
           ) AS asked (id, seq, dispatch_at, again_in)
     WHERE {MATCHES_ID}
       AND job.status = 'ENQUEUED'
       AND job.sends = asked.seq
       AND job.dispatch_at IS NOT DISTINCT FROM asked.dispatch_at
    RETURNING job.id
"""
_UNSENT: Final[LiteralString] = f"""
    UPDATE th_jobs_waiting AS job
       SET resends = job.resends - 1,
           dispatch_at = {NOW}
      FROM (SELECT * FROM unnest({_IDS}, %(seqs)s::integer[], %(locks)s::timestamptz[]) {LIMIT_TO_IDS})
           AS asked (id, seq, dispatch_at)
     WHERE {MATCHES_ID}
       AND job.status = 'ENQUEUED'
       AND job.sends = asked.seq
       AND job.dispatch_at IS NOT DISTINCT FROM asked.dispatch_at
    RETURNING job.id
"""
_DECLINED: Final[LiteralString] = f"""
    UPDATE th_jobs_waiting AS job
       SET dispatch_at = {NOW}
      FROM (SELECT * FROM unnest({_IDS}, %(seqs)s::integer[]) {LIMIT_TO_IDS}) AS asked (id, seq)
     WHERE {MATCHES_ID}
       AND job.status = 'ENQUEUED'
       AND job.sends = asked.seq
    RETURNING job.id
"""


def record_dispatch(connections: PostgresPool, results: Sequence[Sent | Unsent | Declined]) -> list[bool]:
    """Record results. One whose row stays locked by another transaction is not recorded, and delays no other."""
    sent = [each for each in results if isinstance(each, Sent)]
    unsent = [each for each in results if isinstance(each, Unsent)]
    declined = [each for each in results if isinstance(each, Declined)]
    done: set[JobId] = set()
    if sent:
        agains = pool.intervals(each.retry_in for each in sent)
        done |= _change_unlocked(connections, _SENT, **_locks(sent), agains=agains)
    if unsent:
        done |= _change_unlocked(connections, _UNSENT, **_locks(unsent))
    if declined:
        messages = {"ids": uuids(each.job_id for each in declined), "seqs": pool.integers(e.seq for e in declined)}
        done |= _change_unlocked(connections, _DECLINED, **messages)
    return [(each.job_id if isinstance(each, Declined) else each.dispatch.job_id) in done for each in results]


def _change_unlocked(connections: PostgresPool, statement: LiteralString, **parameters: Any) -> set[JobId]:
    """Run *statement*, and return the ids of the jobs that it changed.

    A job that is left out because of a lock is sent again at its ``dispatch_at``, if it still waits then.
    """
    parameters["lock_timeout"] = LOCK_TIMEOUT
    try:
        rows = connections.fetch(statement, **parameters)
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
        rows = connections.fetch(_skipping_locked(statement), **parameters)
    return {row[0] for row in rows}


@cache
def _skipping_locked(statement: LiteralString) -> LiteralString:
    """Return *statement* for the rows that no other transaction has locked: to lock them first takes time."""
    return statement.replace("RETURNING", f"{_IS_FREE}\n    RETURNING")


_IS_FREE: Final[LiteralString] = """AND job.id = ANY (ARRAY(
               SELECT id
                 FROM th_jobs_waiting
                WHERE id = ANY (%(ids)s::uuid[])
                  FOR UPDATE SKIP LOCKED
               ))"""


def _locks(results: Sequence[Sent | Unsent]) -> dict[str, Any]:
    dispatches = [each.dispatch for each in results]
    return {
        "ids": uuids(each.job_id for each in dispatches),
        "seqs": pool.integers(each.seq for each in dispatches),
        "locks": pool.timestamps(each.dispatch_at for each in dispatches),
    }
