"""Lease due jobs of a queue, jobs named by messages, and jobs with expired leases."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.claims import refusal_reason
from taskharbor.core.model import claim_from_job
from taskharbor.core.results import RefusalReason, Refused
from taskharbor.drivers.backlogs import (
    HEAD_JOBS,
    QueueHead,
    UnhandledBacklogs,
    last_position,
)
from taskharbor.drivers.sqlite.rows import (
    CLAIMED,
    JOB,
    WAITING,
    claims_from_rows,
    job,
    maybe_moment,
    micros,
    moment,
    span,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Hashable, Sequence

    from taskharbor.core.claims import Claimant
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Claim
    from taskharbor.drivers.backlogs import Backlog


def _parameters(claimant: Claimant, now: int) -> dict[str, Any]:
    return {
        "token": claimant.token.bytes,
        "worker": claimant.worker,
        "now": now,
        "ends": now + span(claimant.lease),
        "types": None if claimant.types is None else json.dumps(sorted(claimant.types)),
        "unhandled_since": None if claimant.unhandled_after is None else now - span(claimant.unhandled_after),
        "reclaims": claimant.reclaims,
    }


_HANDLED: Final = "(:types IS NULL OR type IN (SELECT value FROM json_each(:types)))"
_HANDLED_OR_LATE: Final = f"({_HANDLED} OR scheduled_for <= :unhandled_since)"
_NOT_PAUSED: Final = "NOT EXISTS (SELECT 1 FROM th_queues WHERE name = queue)"
LOST_TO_CLOCK: Final = (
    "EXISTS (SELECT 1 FROM th_clock WHERE jumped_from < lease_expires_at AND lease_expires_at <= jumped_to)"
)
# A job with an expired lease that may be reclaimed. An attempt lost to a clock jump does not count.
_RECLAIMABLE: Final = f"""
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
_CLAIM: Final = """
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
_RECLAIM: Final = f"{_CLAIM} - (status = 'PROCESSING' AND {LOST_TO_CLOCK})"
_RECORD_LOST: Final = f"""
    INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
    SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, :now, 'reclaim', 'PROCESSING',
           CASE WHEN {LOST_TO_CLOCK} THEN 'CLOCK' ELSE 'LOST' END
      FROM th_jobs
"""

_CLAIM_DUE: Final = f"""
    {_CLAIM}
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
           {{part}}
         ORDER BY priority, scheduled_for, id
         LIMIT :limit
     )
    RETURNING {CLAIMED}
"""
CLAIM_ANY_TYPE: Final = _CLAIM_DUE.format(handled="TRUE", part="")
CLAIM_HANDLED_TYPES: Final = _CLAIM_DUE.format(handled=_HANDLED_OR_LATE, part="")
_BEFORE: Final = "AND priority < :priority"
_AFTER: Final = "AND (priority, scheduled_for, id) > (:priority, :after, :after_id)"
CLAIM_BEFORE: Final = _CLAIM_DUE.format(handled=_HANDLED_OR_LATE, part=_BEFORE)
CLAIM_AFTER: Final = _CLAIM_DUE.format(handled=_HANDLED_OR_LATE, part=_AFTER)


class SqliteQueueScans:
    """Claims waiting jobs of queues, and remembers for how many of them there is no handler."""

    def __init__(self) -> None:
        self._backlogs = UnhandledBacklogs()

    def claim(
        self,
        db: sqlite3.Connection,
        queue: str,
        claimant: Claimant,
        *,
        now: int,
        limit: int,
        overdue_after: timedelta,
        overdue_only: bool,
    ) -> list[Claim]:
        overdue = now - span(overdue_after)
        scan = SqliteQueueScan(db, queue, claimant, now=now, overdue=overdue, due=overdue if overdue_only else now)
        if claimant.types is None:
            return scan.claim(CLAIM_ANY_TYPE, limit)
        key = (queue, frozenset(claimant.types), overdue_only)
        if (backlog := self._backlogs.find(key)) is not None:
            return self._claim_around(backlog, key, scan, limit)
        began_at = time.monotonic()
        claimed = scan.claim(CLAIM_HANDLED_TYPES, limit)
        seconds = time.monotonic() - began_at
        head = scan.head() if self._backlogs.must_examine(key, seconds, len(claimed)) else None
        self._backlogs.note_scan(key, head, seconds=seconds, last=last_position(claimed, limit))
        return claimed

    def _claim_around(self, backlog: Backlog, key: Hashable, scan: SqliteQueueScan, limit: int) -> list[Claim]:
        """Claim jobs before and behind the backlog."""
        claimed = scan.claim(CLAIM_BEFORE, limit, priority=backlog.priority)
        if (left := limit - len(claimed)) > 0:
            priority, after, after_id = backlog.start(timedelta(microseconds=scan.now - scan.due))
            behind = scan.claim(CLAIM_AFTER, left, priority=priority, after=micros(after), after_id=after_id.bytes)
            self._backlogs.advance(key, backlog, last_position(behind, left))
            claimed += behind
        return claimed


class SqliteQueueScan:
    """A scan of one queue for one claimant."""

    def __init__(
        self, db: sqlite3.Connection, queue: str, claimant: Claimant, *, now: int, overdue: int, due: int
    ) -> None:
        self._db = db
        self._queue = queue
        self._claimant = claimant
        self._params = _parameters(claimant, now) | {"queue": queue, "overdue": overdue, "due": due}
        self.now, self.due = now, due

    def claim(self, statement: str, limit: int, **more: Any) -> list[Claim]:
        rows = self._db.execute(statement, {**self._params, "limit": max(limit, 0), **more}).fetchall()
        rows.sort()  # SQLite does not order the rows of RETURNING
        return claims_from_rows(rows, self._queue, self._claimant, now=self.now, read=self._read)

    def _read(self, identity: bytes) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._db.execute(_ONE, (identity,)).fetchone()
        return row

    def head(self) -> QueueHead:
        """Read how many of the first due jobs the claimant leaves for other workers."""
        unhandled, priority = self._db.execute(_HEAD, {**self._params, "limit": HEAD_JOBS}).fetchone()
        return QueueHead(unhandled, priority, moment(self.now))


_ONE: Final = f"SELECT {JOB} FROM th_jobs WHERE id = ?"
_HEAD: Final = f"""
    SELECT count(*) FILTER (WHERE NOT handled), min(priority) FILTER (WHERE NOT handled)
      FROM (
        SELECT priority, coalesce({_HANDLED_OR_LATE}, FALSE) AS handled
          FROM th_jobs
         WHERE queue = :queue
           AND {WAITING}
           AND scheduled_for <= :due
         ORDER BY priority, scheduled_for, id
         LIMIT :limit
      )
"""


_EXPIRED: Final = f"""
     WHERE id IN (
        SELECT id
          FROM th_jobs
         WHERE queue = :queue
           AND {_RECLAIMABLE}
         ORDER BY lease_expires_at, id
         LIMIT :limit
     )
"""
_RECORD_EXPIRED: Final = f"{_RECORD_LOST} {_EXPIRED} ON CONFLICT DO NOTHING"
RECLAIM_EXPIRED: Final = f"{_RECLAIM} {_EXPIRED} RETURNING {JOB}"
_EXPIRY_TIMES: Final = f"SELECT id, lease_expires_at FROM th_jobs {_EXPIRED}"


def reclaim_expired(db: sqlite3.Connection, queue: str, claimant: Claimant, *, now: int, limit: int) -> list[Claim]:
    """Reclaim jobs with expired leases, earliest expiry first."""
    params = _parameters(claimant, now) | {"queue": queue, "limit": max(limit, 0)}
    expired_at = dict(db.execute(_EXPIRY_TIMES, params).fetchall())
    db.execute(_RECORD_EXPIRED, params)
    jobs = [job(row) for row in db.execute(RECLAIM_EXPIRED, params).fetchall()]
    jobs.sort(key=lambda each: (expired_at[each.id.bytes], each.id))
    return [claim_from_job(each, is_reclaim=True) for each in jobs]


_CLAIMABLE_BY_ID: Final = f"""
     WHERE id IN (SELECT value FROM temp.th_asked)
       AND queue = :queue
       AND (
        ({_RECLAIMABLE})
        OR (
            status = 'ENQUEUED'
            AND scheduled_for <= :now
            AND attempt_count < max_attempts
            AND {_HANDLED_OR_LATE}
            AND {_NOT_PAUSED}
        )
       )
"""
_RECORD_LOST_BY_ID: Final = (
    f"{_RECORD_LOST} {_CLAIMABLE_BY_ID} AND status = 'PROCESSING' ON CONFLICT DO NOTHING RETURNING job_id"
)
# A message that arrived was sent, even if the enqueuer has not recorded that yet.
_CLAIM_BY_ID: Final = f"{_RECLAIM}, sent_at = coalesce(sent_at, :now) {_CLAIMABLE_BY_ID} RETURNING {JOB}"


def claim(
    db: sqlite3.Connection, queue: str, job_ids: Sequence[JobId], claimant: Claimant, now: int
) -> list[Claim | Refused]:
    params = _parameters(claimant, now) | {"queue": queue}
    db.execute("CREATE TEMP TABLE IF NOT EXISTS th_asked (value BLOB PRIMARY KEY) WITHOUT ROWID")
    db.execute("DELETE FROM temp.th_asked")
    db.executemany("INSERT OR IGNORE INTO temp.th_asked VALUES (?)", [(each.bytes,) for each in job_ids])
    lost = {row[0] for row in db.execute(_RECORD_LOST_BY_ID, params).fetchall()}
    claimed = {each.id: each for each in map(job, db.execute(_CLAIM_BY_ID, params).fetchall())}
    # pop: the second occurrence of an id is refused, as a job that was not claimed is.
    return [
        claim_from_job(claimed.pop(each), is_reclaim=each.bytes in lost)
        if each in claimed
        else _refused(db, queue, each, claimant, now)
        for each in job_ids
    ]


_REFUSAL_FACTS: Final = f"""
    SELECT {JOB},
           EXISTS (SELECT 1 FROM th_queues WHERE name = queue),
           (SELECT hold_until FROM th_clock WHERE hold_until > :now),
           attempt_count - {LOST_TO_CLOCK}
      FROM th_jobs
     WHERE id = :id
"""


def _refused(db: sqlite3.Connection, queue: str, job_id: JobId, claimant: Claimant, now: int) -> Refused:
    row = db.execute(_REFUSAL_FACTS, {"id": job_id.bytes, "now": now}).fetchone()
    if row is None:
        return Refused(job_id, RefusalReason.NOT_FOUND)
    *columns, is_paused, hold, attempts = row
    found = job(columns)
    reason = refusal_reason(
        found,
        claimant,
        queue=queue,
        now=moment(now),
        hold=maybe_moment(hold),
        attempts=attempts,
        is_paused=bool(is_paused),
    )
    assert reason is not None  # noqa: S101  otherwise it would have been claimed
    return Refused(job_id, *reason, found.sends)
