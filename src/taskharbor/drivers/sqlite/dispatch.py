"""Mark due jobs for sending, and record what happened to their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.core.results import Declined, Dispatch, Sent
from taskharbor.drivers.sqlite.rows import WAITING, job_id, micros, moment, span

if TYPE_CHECKING:
    import sqlite3
    from datetime import timedelta

    from taskharbor.core.results import Unsent

# All resends that are due, and new jobs up to the limit of unclaimed ones.
_DISPATCH: Final = f"""
    UPDATE th_jobs
       SET status = 'ENQUEUED',
           sends = sends + 1,
           resends = resends + 1,
           dispatch_at = :locked
     WHERE id IN (
        SELECT id
          FROM (
            SELECT id, priority, dispatch_at, coalesce(dispatch_at, scheduled_for) AS since,
                   row_number() OVER (PARTITION BY dispatch_at IS NULL ORDER BY priority,
                       coalesce(dispatch_at, scheduled_for), id) AS place
              FROM th_jobs
             WHERE queue = :queue
               AND {WAITING}
               AND scheduled_for <= :now
               AND attempt_count < max_attempts
               AND (dispatch_at IS NULL OR dispatch_at <= :now)
               AND NOT EXISTS (SELECT 1 FROM th_queues WHERE name = :queue)
          )
         WHERE dispatch_at IS NOT NULL
            OR place <= :unclaimed - (
                SELECT count(*)
                  FROM th_jobs
                 WHERE queue = :queue
                   AND {WAITING}
                   AND scheduled_for <= :now
                   AND dispatch_at IS NOT NULL
            )
         ORDER BY priority, since, id
         LIMIT :limit
     )
    RETURNING id, sends, resends, priority
"""

_DISPATCH_ORDER: Final = f"""
    SELECT id, coalesce(dispatch_at, scheduled_for)
      FROM th_jobs
     WHERE queue = :queue
       AND {WAITING}
       AND scheduled_for <= :now
       AND (dispatch_at IS NULL OR dispatch_at <= :now)
"""


def dispatch(
    db: sqlite3.Connection,
    queue: str,
    *,
    now: int,
    limit: int,
    lock: timedelta,
    unclaimed: int,
) -> list[Dispatch]:
    locked = now + span(lock)
    params = {"queue": queue, "now": now, "locked": locked, "unclaimed": unclaimed, "limit": max(limit, 0)}
    since = dict(db.execute(_DISPATCH_ORDER, {"queue": queue, "now": now}).fetchall())  # only to order the result
    rows = db.execute(_DISPATCH, params).fetchall()
    rows.sort(key=lambda row: (row[3], since[row[0]], row[0]))
    return [Dispatch(job_id(row[0]), row[1], row[2], moment(locked)) for row in rows]


_SENT: Final = """
    UPDATE th_jobs
       SET sent_at = :now,
           dispatch_at = :again
     WHERE id = :id
       AND status = 'ENQUEUED'
       AND sends = :seq
       AND dispatch_at = :dispatch_at
"""
_UNSENT: Final = """
    UPDATE th_jobs
       SET resends = resends - 1,
           dispatch_at = :now
     WHERE id = :id
       AND status = 'ENQUEUED'
       AND sends = :seq
       AND dispatch_at = :dispatch_at
"""
_DECLINED: Final = """
    UPDATE th_jobs
       SET dispatch_at = :now
     WHERE id = :id
       AND status = 'ENQUEUED'
       AND sends = :seq
"""


def record_dispatch(db: sqlite3.Connection, result: Sent | Unsent | Declined, now: int) -> bool:
    if isinstance(result, Declined):
        params = {"id": result.job_id.bytes, "seq": result.seq, "now": now}
        return db.execute(_DECLINED, params).rowcount > 0
    sent = result.dispatch
    params = {"id": sent.job_id.bytes, "seq": sent.seq, "dispatch_at": micros(sent.dispatch_at), "now": now}
    if isinstance(result, Sent):
        return db.execute(_SENT, params | {"again": now + span(result.retry_in)}).rowcount > 0
    return db.execute(_UNSENT, params).rowcount > 0
