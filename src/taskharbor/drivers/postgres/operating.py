"""What people do to jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.core.answers import Transitioned
from taskharbor.core.errors import IllegalTransition, JobNotFound
from taskharbor.core.states import Event, Status
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.settling import COUNT_ENDED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    from taskharbor.core.ids import JobId, Token
    from taskharbor.drivers.postgres.connection import PostgresPool, Row

    Answer = Transitioned | IllegalTransition | JobNotFound

_CANCEL: Final[LiteralString] = f"""
    WITH canceled AS (
        UPDATE th_jobs AS job
           SET status = CASE job.status WHEN 'PROCESSING' THEN job.status ELSE 'CANCELED' END,
               completed_at = CASE job.status WHEN 'PROCESSING' THEN NULL ELSE {NOW} END,
               dispatch_at = CASE job.status WHEN 'PROCESSING' THEN job.dispatch_at END,
               cancel_requested_at =
                   CASE job.status WHEN 'PROCESSING' THEN coalesce(job.cancel_requested_at, {NOW}) END
         WHERE job.id = ANY (%(ids)s)
           AND job.status IN ('PENDING', 'ENQUEUED', 'FAILED', 'PROCESSING')
        RETURNING job.id, job.queue, job.status
    ),
    tallied AS (
        {COUNT_ENDED}
          FROM canceled
         WHERE status = 'CANCELED'
         GROUP BY queue, status
    )
    SELECT id, status
      FROM canceled
"""


def cancel(connections: PostgresPool, job_ids: Sequence[JobId]) -> list[Answer]:
    return _answers(connections, job_ids, connections.fetch(_CANCEL, ids=list(job_ids)), Event.CANCEL)


_REQUEUE: Final[LiteralString] = f"""
    WITH ended AS (
        SELECT job.id, job.life, job.attempt_count, job.queue, job.status
          FROM th_jobs AS job
         WHERE job.id = ANY (%(ids)s)
           AND job.status IN ('DEAD', 'CANCELED')
           AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
         ORDER BY job.id
           FOR UPDATE
    ),
    -- Whoever was requeued under this token before is let through no second time.
    recorded AS (
        INSERT INTO th_attempts (
            job_id, token, life, attempt, worker_id, ended_at, event, status, outcome,
            error_type, message, traceback, fingerprint
        )
        SELECT id, %(token)s, life, attempt_count, %(by)s, {NOW}, 'requeue', 'PENDING', 'REQUEUED', '', %(why)s, '', ''
          FROM ended
            ON CONFLICT DO NOTHING
        RETURNING job_id
    ),
    revived AS (
        UPDATE th_jobs AS job
           SET status = 'PENDING',
               payload = coalesce(%(payload)s, job.payload),
               life = job.life + 1,
               max_attempts = job.attempt_count + %(budget)s,
               scheduled_for = coalesce(%(scheduled_for)s, {NOW} + %(delay)s),
               cancel_requested_at = NULL,
               dead_at = NULL,
               dead_reason = NULL,
               fingerprint = NULL,
               completed_at = NULL,
               dispatch_at = NULL,
               sent_at = NULL,
               releases = 0,
               resends = 0,
               settled_token = NULL,
               result = NULL,
               progress = NULL
         WHERE job.id = ANY (ARRAY(SELECT job_id FROM recorded))
           AND job.status IN ('DEAD', 'CANCELED')
        RETURNING job.id, job.status
    ),
    tallied AS (
        INSERT INTO th_tallies (minute, queue, status, ended, kept)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), ended.queue, ended.status, 0, -count(*)
          FROM ended
          JOIN recorded ON recorded.job_id = ended.id
         GROUP BY ended.queue, ended.status
    )
    SELECT id, status
      FROM revived
"""
_REQUEUED: Final[LiteralString] = """
    SELECT job.id, 'PENDING'
      FROM th_attempts AS before
      JOIN th_jobs AS job
        ON job.id = ANY (ARRAY[before.job_id])
     WHERE before.job_id = ANY (%(ids)s)
       AND before.token = %(token)s
       AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
"""


def requeue(
    connections: PostgresPool,
    job_ids: Sequence[JobId],
    *,
    token: Token,
    budget: int,
    by: str,
    reason: str,
    scheduled_for: datetime | None,
    delay: timedelta,
    queue: str | None,
    payload: bytes | None,
) -> list[Answer]:
    rows = connections.fetch(
        _REQUEUE,
        ids=list(job_ids),
        token=token,
        budget=budget,
        by=by,
        why=reason,
        scheduled_for=scheduled_for,
        delay=delay,
        queue=queue,
        payload=payload,
    )
    if len(rows) < len(job_ids):
        rows = connections.fetch(_REQUEUED, ids=list(job_ids), token=token, queue=queue)
    return _answers(connections, job_ids, rows, Event.REQUEUE, queue=queue)


_RESCHEDULE: Final[LiteralString] = f"""
    UPDATE th_jobs_waiting AS job
       SET scheduled_for = coalesce(%(scheduled_for)s, {NOW} + %(delay)s::interval, job.scheduled_for),
           priority = coalesce(%(priority)s, job.priority),
           dispatch_at = NULL
     WHERE job.id = ANY (%(ids)s)
    RETURNING job.id, job.status
"""


def reschedule(
    connections: PostgresPool,
    job_ids: Sequence[JobId],
    *,
    scheduled_for: datetime | None,
    delay: timedelta | None,
    priority: int | None,
) -> list[Answer]:
    asked = {"scheduled_for": scheduled_for, "delay": delay, "priority": priority}
    rows = connections.fetch(_RESCHEDULE, ids=list(job_ids), **asked)
    return _answers(connections, job_ids, rows, Event.RESCHEDULE)


_STATUS: Final[LiteralString] = """
    SELECT job.id, job.status
      FROM th_jobs AS job
     WHERE job.id = ANY (%(ids)s)
       AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
"""


def _answers(
    connections: PostgresPool, job_ids: Sequence[JobId], rows: Sequence[Row], event: Event, *, queue: str | None = None
) -> list[Answer]:
    moved = {row[0]: Status(row[1]) for row in rows}
    refused = [each for each in job_ids if each not in moved]
    found = {row[0]: row[1] for row in connections.fetch(_STATUS, ids=refused, queue=queue)} if refused else {}
    return [
        Transitioned(each, moved[each])
        if each in moved
        else IllegalTransition(each, Status(found[each]), event)
        if each in found
        else JobNotFound(each)
        for each in job_ids
    ]
