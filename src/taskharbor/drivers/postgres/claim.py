"""Taking jobs: by queue, by id, and from those who lost them."""

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
"""Batches from this size on are worth it, and their takers do not mind who of a second comes first."""
MIN_RESCAN_SECONDS: Final = 1.0  # seconds, after which the head of the line is looked at again
RESCAN_COST_FACTOR: Final = 50
"""So many times as long as a look at the head took beyond a batch from a place, none follows.

Past 300,000 dead entries that is 40 ms: once a second it would cost a drain more than all else that is dead.
"""
MAX_RESCAN_SECONDS: Final = 10.0  # seconds, after which it is looked at however long that takes


@dataclass(frozen=True, slots=True)
class _CursorState:
    place: Place
    look_at: float
    usual: float  # seconds of a batch from a place: what a look at the head takes beyond them, the dead entries cost


@dataclass(frozen=True, slots=True)
class ScanStart:
    """Where a batch begins (None: at the head), and when it was asked for."""

    place: Place | None
    asked_at: float


class ScanCursors:
    """Lets a batch begin where the last one ended, rather than at the head of the line.

    Jobs that were taken leave dead index entries at the head, which every scan from there
    has to pass until VACUUM removes them; and while somebody keeps an old snapshot open
    it removes none, so that a drain gets slower and slower. What comes in before the
    place is found a second later (where a look at the head takes long: up to ten), or as soon
    as a batch comes back short: nothing but the order within that time depends on it.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _CursorState] = {}

    def start(self, queue: str, limit: int) -> ScanStart:
        """Return where to begin."""
        mark, now = self._marks.get(queue), time.monotonic()
        is_at_head = limit < MIN_CURSOR_BATCH or mark is None or now >= mark.look_at
        return ScanStart(None if is_at_head or mark is None else mark.place, now)

    def note(self, queue: str, claims: Sequence[Claim], *, limit: int, start: ScanStart) -> None:
        """Learn what a batch of *limit*, begun at *start*, brought."""
        known, now = self._marks.get(queue), time.monotonic()
        took = now - start.asked_at
        if limit < MIN_CURSOR_BATCH or len(claims) < limit:
            self._marks.pop(queue, None)
        elif start.place is None or known is None:
            usual = took if known is None else known.usual
            pause = min(max(MIN_RESCAN_SECONDS, RESCAN_COST_FACTOR * (took - usual)), MAX_RESCAN_SECONDS)
            self._marks[queue] = _CursorState(place(claims[-1]), now + pause, usual)
        else:
            self._marks[queue] = _CursorState(place(claims[-1]), known.look_at, took)


def _parameters(taker: Claimant) -> dict[str, Any]:
    return {
        "token": taker.token,
        "worker": taker.worker,
        "lease": taker.lease,
        "types": None if taker.types is None else sorted(taker.types),
        "unhandled_after": taker.unhandled_after,
        "reclaims": taker.reclaims,
    }


_HANDLED: Final[LiteralString] = "(%(types)s::text[] IS NULL OR job.type = ANY (%(types)s))"
_HANDLED_OR_LATE: Final[LiteralString] = f"({_HANDLED} OR job.scheduled_for <= {NOW} - %(unhandled_after)s::interval)"
NOT_SPENT: Final[LiteralString] = "job.max_attempts - job.attempt_count > 0"
"""Said in other words than those of the index that only an ordered walk shall use."""
LOST_TO_CLOCK: Final[LiteralString] = (
    "EXISTS (SELECT FROM th_clock WHERE jumped_from < job.lease_expires_at AND job.lease_expires_at <= jumped_to)::int"
)
HELD: Final[LiteralString] = f"EXISTS (SELECT FROM th_clock WHERE hold_until > {NOW})"
# A lease that ended, of a job that may be taken over. An attempt lost to the clock is given back.
_LOST: Final[LiteralString] = f"""
    job.lease_expires_at <= {NOW}
    AND job.lease_token <> %(token)s
    AND %(reclaims)s
    AND job.cancel_requested_at IS NULL
    AND job.attempt_count - {LOST_TO_CLOCK} < job.max_attempts
    AND NOT {HELD}
    AND {_HANDLED}
"""
_TAKE: Final[LiteralString] = f"""
       SET status = 'PROCESSING',
           lease_token = %(token)s,
           lease_expires_at = {NOW} + %(lease)s,
           worker_id = %(worker)s,
           processing_started_at = {NOW},
           dispatch_at = NULL,
           resends = 0,
           attempt_count = job.attempt_count + 1
"""
_OLD: Final[LiteralString] = f"""
    job.id, job.lease_token, job.life, job.attempt_count, job.worker_id, job.processing_started_at,
    job.lease_expires_at, {LOST_TO_CLOCK} AS clock
"""
_RECORD: Final[LiteralString] = f"""
        INSERT INTO th_attempts (job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome)
        SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, {NOW}, 'reclaim', 'PROCESSING',
               CASE clock WHEN 1 THEN 'CLOCK' ELSE 'LOST' END
"""

_DUE: Final[LiteralString] = f"""
    UPDATE th_jobs AS job
           {_TAKE}
     WHERE job.status IN ('PENDING', 'ENQUEUED', 'FAILED')
       AND job.id = ANY (ARRAY(
           SELECT job.id
             FROM th_jobs_waiting AS job
            WHERE job.queue = %(queue)s
              AND job.scheduled_for <= {NOW}
              AND (job.status <> 'ENQUEUED' OR job.scheduled_for < {NOW} - %(patience)s)
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
_FROM_THE_HEAD: Final[LiteralString] = _DUE + _IN_ORDER
_OVERDUE: Final[LiteralString] = f"""
    {_DUE}
              AND job.scheduled_for <= {NOW} - %(patience)s
    {_IN_ORDER}
"""
_FROM_THERE: Final[LiteralString] = f"""
    {_DUE}
              AND (job.priority, job.scheduled_for, job.id) > (%(priority)s, %(moment)s::timestamptz, %(id)s)
    {_IN_ORDER}
"""


def claim_due(
    connections: PostgresPool, queue: str, taker: Claimant, *, limit: int, patience: timedelta, after: Place | None
) -> list[Claim]:
    """Take due jobs in their order, from the head of the line or from a place in it on."""
    asked = _parameters(taker) | {"queue": queue, "limit": max(limit, 0), "patience": patience}
    if after is None:
        rows = connections.fetch(_FROM_THE_HEAD, **asked)
    else:
        there = {"priority": after[0], "moment": after[1], "id": after[2]}
        rows = connections.fetch(_FROM_THERE, **asked | there)
    return _in_order(rows)


def claim_overdue(
    connections: PostgresPool, queue: str, taker: Claimant, *, limit: int, patience: timedelta
) -> list[Claim]:
    """Take jobs of any status that have been due for *patience*."""
    asked = _parameters(taker) | {"queue": queue, "limit": max(limit, 0), "patience": patience}
    return _in_order(connections.fetch(_OVERDUE, **asked))


def _in_order(rows: list[Row]) -> list[Claim]:
    rows.sort(key=lambda row: (row[3], row[6], row[0].int))
    return [claimed(row) for row in rows]


Place = tuple[int, "datetime", "JobId"]


def place(claim: Claim) -> Place:
    return claim.job.priority, claim.job.scheduled_for, claim.job.id


_TAKE_OVER: Final[LiteralString] = f"""
    WITH ended AS (
        SELECT {_OLD}
          FROM th_jobs_processing AS job
         WHERE job.queue = %(queue)s
           AND {_LOST}
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.lease_expires_at, job.id
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED
    ),
    recorded AS (
        {_RECORD}
          FROM ended
            ON CONFLICT DO NOTHING
    )
    UPDATE th_jobs_processing AS job
           {_TAKE} - ended.clock
      FROM ended
     WHERE job.id = ANY (ARRAY[ended.id])
    RETURNING {JOB}, ended.lease_expires_at
"""


def reclaim_expired(connections: PostgresPool, queue: str, taker: Claimant, *, limit: int) -> list[Claim]:
    """Take jobs whose lease is over, longest over first."""
    rows = connections.fetch(_TAKE_OVER, **_parameters(taker), queue=queue, limit=max(limit, 0))
    return [claimed(row) for row in sorted(rows, key=lambda row: (row[-1], row[0]))]


_CLAIM: Final[LiteralString] = f"""
    -- Locked in the order of their ids, or two who claim the same jobs could wait for each other.
    WITH free AS (
        SELECT {_OLD}, job.status
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
           AND job.queue = %(queue)s
           AND job.status IN ('ENQUEUED', 'PROCESSING')
           AND (
               job.status = 'PROCESSING' AND {_LOST}
               OR job.status = 'ENQUEUED'
                   AND job.scheduled_for <= {NOW}
                   AND {NOT_SPENT}
                   AND {_HANDLED_OR_LATE}
           )
           AND NOT EXISTS (SELECT FROM th_queues WHERE name = %(queue)s)
         ORDER BY job.id
           FOR UPDATE
    ),
    recorded AS (
        {_RECORD}
          FROM free
         WHERE status = 'PROCESSING'
            ON CONFLICT DO NOTHING
    )
    UPDATE th_jobs AS job
           {_TAKE} - coalesce(free.clock, 0),
           -- A message that arrived was sent, even if the enqueuer has not noted that yet.
           sent_at = coalesce(job.sent_at, {NOW})
      FROM free
     WHERE job.id = ANY (ARRAY[free.id])
       AND job.status IN ('ENQUEUED', 'PROCESSING')
    RETURNING {JOB}
"""


def claim(connections: PostgresPool, queue: str, job_ids: Sequence[JobId], taker: Claimant) -> list[Claim | Refused]:
    asked = _parameters(taker) | {"queue": queue, "ids": list(dict.fromkeys(job_ids))}
    taken = {row[0]: claimed(row) for row in connections.fetch(_CLAIM, **asked)}
    if len(taken) == len(job_ids):
        return [taken[each] for each in job_ids]
    # Whoever was not taken is asked about once more; and who was taken, for whoever asks a second time.
    asked_again = [each for n, each in enumerate(job_ids) if each not in taken or each in job_ids[:n]]
    refused = _refused(connections, queue, asked_again, taker)
    return [taken.pop(each) if each in taken else refused[each] for each in job_ids]  # the first one to ask gets it


_LOOK: Final[LiteralString] = f"""
    SELECT {JOB},
           {NOW},
           (SELECT hold_until FROM th_clock WHERE hold_until > {NOW}),
           job.attempt_count - {LOST_TO_CLOCK},
           EXISTS (SELECT FROM th_queues WHERE name = job.queue)
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
"""


def _refused(connections: PostgresPool, queue: str, job_ids: Sequence[JobId], taker: Claimant) -> dict[JobId, Refused]:
    rows = {row[0]: row for row in connections.fetch(_LOOK, ids=list(job_ids))}
    return {
        each: _reason(rows[each], queue, taker) if each in rows else Refused(each, RefusalReason.NOT_FOUND)
        for each in job_ids
    }


def _reason(row: Row, queue: str, taker: Claimant) -> Refused:
    found = job(row)
    now, hold, attempts, is_paused = row[-4:]
    reason = refusal_reason(
        found,
        taker,
        queue=queue,
        now=now,
        hold=hold,
        attempts=attempts,
        is_paused=is_paused,
    )
    # None: it could not be claimed a moment ago, and could be now. That moment's answer is as good as any.
    why, until = reason or (RefusalReason.LEASED, now)
    return Refused(found.id, why, until, found.sends)
