"""Taking jobs: by queue, by id, and from those who lost them."""

from __future__ import annotations

import json
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.claims import refusal_reason
from taskharbor.core.model import claim_from_job
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.drivers.sqlite.rows import JOB, WAITING, job, maybe_moment, moment, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.claims import Claimant
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim


def _parameters(taker: Claimant, now: int) -> dict[str, Any]:
    return {
        "token": taker.token.bytes,
        "worker": taker.worker,
        "now": now,
        "ends": now + span(taker.lease),
        "types": None if taker.types is None else json.dumps(sorted(taker.types)),
        "unhandled_since": None if taker.unhandled_after is None else now - span(taker.unhandled_after),
        "reclaims": taker.reclaims,
    }


_HANDLED: Final = "(:types IS NULL OR type IN (SELECT value FROM json_each(:types)))"
_HANDLED_OR_LATE: Final = f"({_HANDLED} OR scheduled_for <= :unhandled_since)"
_NOT_PAUSED: Final = "NOT EXISTS (SELECT 1 FROM th_queues WHERE name = queue)"
LOST_TO_CLOCK: Final = (
    "EXISTS (SELECT 1 FROM th_clock WHERE jumped_from < lease_expires_at AND lease_expires_at <= jumped_to)"
)
# A lease that ended, of a job that may be taken over. An attempt lost to the clock is given back.
_LOST: Final = f"""
    status = 'PROCESSING'
    AND lease_expires_at <= :now
    AND lease_token <> :token
    AND :reclaims
    AND cancel_requested_at IS NULL
    AND attempt_count - {LOST_TO_CLOCK} < max_attempts
    AND NOT EXISTS (SELECT 1 FROM th_clock WHERE hold_until > :now)
    AND {_HANDLED}
    AND {_NOT_PAUSED}
"""
_TAKE: Final = """
    UPDATE th_jobs
       SET status = 'PROCESSING',
           lease_token = :token,
           lease_expires_at = :ends,
           worker_id = :worker,
           processing_started_at = :now,
           dispatch_at = NULL,
           resends = 0,
           attempt_count = attempt_count + 1
"""
_TAKE_OVER: Final = f"{_TAKE} - (status = 'PROCESSING' AND {LOST_TO_CLOCK})"
_RECORD_LOST: Final = f"""
    INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
    SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, :now, 'reclaim', 'PROCESSING',
           CASE WHEN {LOST_TO_CLOCK} THEN 'CLOCK' ELSE 'LOST' END
      FROM th_jobs
"""

_TAKE_DUE: Final = f"""
    {_TAKE}
     WHERE id IN (
        SELECT id
          FROM th_jobs
         WHERE queue = :queue
           AND {WAITING}
           AND scheduled_for <= :due
           AND (status <> 'ENQUEUED' OR scheduled_for < :overdue)
           AND attempt_count < max_attempts
           AND {{handled}}
           AND NOT EXISTS (SELECT 1 FROM th_queues WHERE name = :queue)
         ORDER BY priority, scheduled_for, id
         LIMIT :limit
     )
    RETURNING {JOB}
"""
TAKE_ANY: Final = _TAKE_DUE.format(handled="TRUE")
TAKE_HANDLED: Final = _TAKE_DUE.format(handled=_HANDLED_OR_LATE)
_ORDER: Final = itemgetter(3, 6, 0)  # priority, scheduled_for and id


def claim_due(
    db: sqlite3.Connection, queue: str, taker: Claimant, *, now: int, limit: int, patience: timedelta, overdue: bool
) -> list[Claim]:
    since = now - span(patience)
    asked = _parameters(taker, now)
    asked["queue"], asked["limit"] = queue, max(limit, 0)
    asked["overdue"], asked["due"] = since, since if overdue else now
    rows = db.execute(TAKE_ANY if taker.types is None else TAKE_HANDLED, asked).fetchall()
    rows.sort(key=_ORDER)  # SQLite promises no order of what a statement returns
    taken = (taker.token, moment(now) + taker.lease, moment(now))
    return [claim_from_job(job(row, taken)) for row in rows]


_ENDED: Final = f"""
     WHERE id IN (
        SELECT id
          FROM th_jobs
         WHERE queue = :queue
           AND {_LOST}
         ORDER BY lease_expires_at, id
         LIMIT :limit
     )
"""
_RECORD_ENDED: Final = f"{_RECORD_LOST} {_ENDED} ON CONFLICT DO NOTHING"
TAKE_ENDED: Final = f"{_TAKE_OVER} {_ENDED} RETURNING {JOB}"
_ENDS: Final = f"SELECT id, lease_expires_at FROM th_jobs {_ENDED}"


def reclaim_expired(db: sqlite3.Connection, queue: str, taker: Claimant, *, now: int, limit: int) -> list[Claim]:
    """Take jobs whose lease is over, longest over first."""
    asked = _parameters(taker, now) | {"queue": queue, "limit": max(limit, 0)}
    ends = dict(db.execute(_ENDS, asked).fetchall())
    db.execute(_RECORD_ENDED, asked)
    jobs = [job(row) for row in db.execute(TAKE_ENDED, asked).fetchall()]
    return [claim_from_job(each) for each in sorted(jobs, key=lambda each: (ends[each.id.bytes], each.id))]


_NAMED: Final = f"""
     WHERE id IN (SELECT value FROM temp.th_asked)
       AND queue = :queue
       AND (
        ({_LOST})
        OR (
            status = 'ENQUEUED'
            AND scheduled_for <= :now
            AND attempt_count < max_attempts
            AND {_HANDLED_OR_LATE}
            AND {_NOT_PAUSED}
        )
       )
"""
_RECORD_NAMED: Final = f"{_RECORD_LOST} {_NAMED} AND status = 'PROCESSING' ON CONFLICT DO NOTHING"
# A message that arrived was sent, even if the enqueuer has not noted that yet.
_TAKE_NAMED: Final = f"{_TAKE_OVER}, sent_at = coalesce(sent_at, :now) {_NAMED} RETURNING {JOB}"


def claim(
    db: sqlite3.Connection, queue: str, job_ids: Sequence[JobId], taker: Claimant, now: int
) -> list[Claim | Refused]:
    asked = _parameters(taker, now) | {"queue": queue}
    db.execute("CREATE TEMP TABLE IF NOT EXISTS th_asked (value BLOB PRIMARY KEY) WITHOUT ROWID")
    db.execute("DELETE FROM temp.th_asked")
    db.executemany("INSERT OR IGNORE INTO temp.th_asked VALUES (?)", [(each.bytes,) for each in job_ids])
    db.execute(_RECORD_NAMED, asked)
    taken = {each.id: each for each in map(job, db.execute(_TAKE_NAMED, asked).fetchall())}
    # Whoever was not taken is asked about once more; and who was taken, for whoever asks a second time.
    return [
        # The first one to ask gets it.
        claim_from_job(taken.pop(each)) if each in taken else _refused(db, queue, each, taker, now)
        for each in job_ids
    ]


_LOOK: Final = f"""
    SELECT {JOB},
           EXISTS (SELECT 1 FROM th_queues WHERE name = queue),
           (SELECT hold_until FROM th_clock WHERE hold_until > :now),
           attempt_count - {LOST_TO_CLOCK}
      FROM th_jobs
     WHERE id = :id
"""


def _refused(db: sqlite3.Connection, queue: str, job_id: JobId, taker: Claimant, now: int) -> Refused:
    row = db.execute(_LOOK, {"id": job_id.bytes, "now": now}).fetchone()
    if row is None:
        return Refused(job_id, RefusalReason.NOT_FOUND)
    *columns, is_paused, hold, attempts = row
    found = job(columns)
    reason = refusal_reason(
        found,
        taker,
        queue=queue,
        now=moment(now),
        hold=maybe_moment(hold),
        attempts=attempts,
        is_paused=bool(is_paused),
    )
    assert reason is not None  # noqa: S101  or it would have been taken
    return Refused(job_id, *reason, found.sends)
