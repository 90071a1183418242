"""Extend leases, save progress, and record the outcomes of attempts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

import psycopg
from psycopg.errors import LockNotAvailable

from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.model import Lease
from taskharbor.core.results import Extended, Settled, Skipped, new_settled
from taskharbor.core.states import SETTLE_EVENTS, Event, Status
from taskharbor.core.trace_context import ATTEMPT_TRACEPARENT
from taskharbor.drivers.postgres.pool import run_statements
from taskharbor.drivers.postgres.rows import LIMIT_TO_IDS, MATCHES_ID, NOW, uuids
from taskharbor.drivers.records import (
    STATUSES,
    fence_error,
    landing_case,
    outcome_params,
    progress_to_json,
    settle_separately,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

    from taskharbor.core.errors import JobNotFound, LeaseLost
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Progress
    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import SettleAnswer as Answer
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps

# The fence: matches only while the lease is valid.
_FENCE: Final[LiteralString] = f"""
    {MATCHES_ID}
    AND job.lease_token = asked.token
    AND job.lease_expires_at > {NOW}
"""
COUNT_ENDED: Final[LiteralString] = f"""
        INSERT INTO th_tallies (minute, queue, status, ended, kept)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), queue, status, count(*), count(*)
"""

_EXTEND: Final[LiteralString] = f"""
    -- Rows locked by other transactions are skipped, not waited for.
    UPDATE th_jobs_processing AS job
       SET lease_expires_at = {NOW} + %(lease)s
     WHERE job.id = ANY (ARRAY(
           SELECT job.id
             FROM (SELECT * FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) {LIMIT_TO_IDS}) AS asked (id, token)
             JOIN th_jobs_processing AS job
               ON {_FENCE}
              FOR UPDATE OF job SKIP LOCKED
           ))
    RETURNING job.id, job.lease_expires_at, job.cancel_requested_at
"""


def extend(
    connections: PostgresPool, leases: Sequence[Lease], lease: timedelta
) -> list[Extended | Skipped | JobNotFound | LeaseLost]:
    rows = {row[0]: row for row in connections.fetch(_EXTEND, **_fence(leases), lease=lease)}
    rejected = [each for each in leases if each.job_id not in rows]
    found = run_statements(_read_holders(rejected, "extend"), connections.fetch)
    return [
        _extended(each, rows[each.job_id]) if each.job_id in rows else _rejected(each, found.get(each.job_id))
        for each in leases
    ]


def _extended(held: Lease, row: Row) -> Extended:
    return Extended(Lease(held.job_id, held.token, row[1]), row[2] is not None)


def _rejected(held: Lease, row: Row | None) -> Skipped | JobNotFound | LeaseLost:
    _, _, status, token, is_expired = row or (None,) * 5
    if status == Status.PROCESSING and token == held.token and not is_expired:
        return Skipped(held)  # its row was locked by another transaction
    return fence_error(held, status, token)


_CANCEL_REQUESTED: Final[LiteralString] = f"""
    SELECT job.id
      FROM (SELECT * FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]) {LIMIT_TO_IDS}) AS asked (id, token)
      JOIN th_jobs_processing AS job
        ON {_FENCE}
     WHERE job.cancel_requested_at IS NOT NULL
"""


def cancel_requested(connections: PostgresPool, leases: Sequence[Lease]) -> list[bool]:
    requested = {job_id for (job_id,) in connections.fetch(_CANCEL_REQUESTED, **_fence(leases))}
    return [held.job_id in requested for held in leases]


_SAVE_PROGRESS: Final[LiteralString] = f"""
    UPDATE th_jobs_processing AS job
       SET progress = held.progress
      FROM (
           SELECT job.id, asked.progress
             FROM (
                  SELECT *
                    FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(notes)s::jsonb[])
                   {LIMIT_TO_IDS}
                  ) AS asked (id, token, progress)
             JOIN th_jobs_processing AS job
               ON {_FENCE}
              FOR UPDATE OF job SKIP LOCKED
           ) AS held
     WHERE job.id = ANY (ARRAY[held.id])
    RETURNING job.id
"""


def save_progress(connections: PostgresPool, notes: Sequence[tuple[Lease, Progress]]) -> list[bool]:
    encoded = [progress_to_json(progress) for _, progress in notes]
    rows = connections.fetch(_SAVE_PROGRESS, **_fence([held for held, _ in notes]), notes=encoded)
    saved = {job_id for (job_id,) in rows}
    return [held.job_id in saved for held, _ in notes]


_ACK: Final[LiteralString] = f"""
    -- No join with the partitioned table: for one of its leaves, PostgreSQL 18 ignores that sequential scans are off.
    -- IS TRUE keeps the pairs of ids and tokens from becoming a join; they are hashed.
    WITH settled AS (
        UPDATE th_jobs AS job
           SET status = 'SUCCEEDED',
               settled_token = job.lease_token,
               lease_token = NULL,
               lease_expires_at = NULL,
               completed_at = {NOW},
               result = (%(results)s::bytea[])[array_position(%(ids)s::uuid[], job.id)]
         WHERE job.status = 'PROCESSING'
           AND job.id = ANY (%(ids)s::uuid[])
           AND ((job.id, job.lease_token) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[]))) IS TRUE
           AND job.lease_expires_at > {NOW}
        RETURNING job.id, job.queue, job.status
    ),
    tallied AS (
        {COUNT_ENDED}
          FROM settled
         GROUP BY queue, status
    )
    -- NULL if all were settled: to send each id, and to read it, takes half of the time of a settlement.
    SELECT CASE WHEN count(*) < cardinality(%(ids)s::uuid[]) THEN coalesce(array_agg(id), '{{}}') END
      FROM settled
"""
_IDS: Final[LiteralString] = "= ANY (%(ids)s::uuid[])\n"
_ACK_WITH_LOCK_TIMEOUT: Final[LiteralString] = _ACK.replace(
    _IDS,
    # The subquery runs before the first row is locked, so the timeout holds for every lock.
    "= ANY ((SELECT CASE WHEN set_config('lock_timeout', '20ms', true) <> '' THEN %(ids)s::uuid[] END)::uuid[])\n",
)
_ACK_SKIPPING_LOCKED: Final[LiteralString] = _ACK.replace(
    _IDS,
    """= ANY (ARRAY(
               SELECT id
                 FROM th_jobs_processing
                WHERE id = ANY (%(ids)s::uuid[])
                  FOR UPDATE SKIP LOCKED
               ))
""",
)

# The bound of a release is NULL if the handler did not begin.
_IS_FREE_RELEASE: Final[LiteralString] = "asked.event = 'release' AND coalesce(job.releases < asked.bound, true)"
_STATUS_AFTER: Final[LiteralString] = landing_case(
    SETTLE_EVENTS - {Event.ACK},
    event="asked.event",
    job="job.",
    attempts=f"job.attempt_count - ({_IS_FREE_RELEASE})::int",
)
# Only `held` decides the status after an attempt.
_SETTLE: Final[LiteralString] = f"""
    WITH held AS (
        SELECT job.id, job.lease_token, job.life, job.attempt_count, job.worker_id, job.processing_started_at,
               asked.event, asked.outcome, asked.delay, asked.reason, asked.error,
               asked.error_type, asked.message, asked.traceback, asked.fingerprint, asked.traceparent,
               (asked.event = 'snooze' OR {_IS_FREE_RELEASE})::int AS uncounted,
               (asked.event = 'release' AND asked.bound IS NOT NULL)::int AS released,
               {_STATUS_AFTER} AS landing
          FROM (
               SELECT *
                 FROM unnest(
                      %(ids)s::uuid[], %(tokens)s::uuid[], %(events)s::text[], %(outcomes)s::text[],
                      %(delays)s::interval[], %(bounds)s::integer[], %(reasons)s::text[], %(errors)s::text[],
                      %(error_types)s::text[], %(messages)s::text[], %(tracebacks)s::text[], %(fingerprints)s::text[],
                      %(traceparents)s::text[]
                      )
                {LIMIT_TO_IDS}
               ) AS asked (id, token, event, outcome, delay, bound, reason, error,
                           error_type, message, traceback, fingerprint, traceparent)
          JOIN th_jobs_processing AS job
            ON {_FENCE}
           FOR UPDATE OF job SKIP LOCKED
    ),
    settled AS (
        UPDATE th_jobs AS job
           SET status = held.landing,
               attempt_count = job.attempt_count - held.uncounted,
               releases = job.releases + held.released,
               settled_token = job.lease_token,
               lease_token = NULL,
               lease_expires_at = NULL,
               scheduled_for = CASE
                   WHEN held.event IN ('retry', 'snooze') AND held.landing IN ('PENDING', 'ENQUEUED', 'FAILED')
                       THEN {NOW} + held.delay
                   ELSE job.scheduled_for
               END,
               last_error = CASE
                   WHEN held.landing = 'DEAD' THEN coalesce(held.error, held.reason)
                   WHEN held.event = 'retry' THEN held.error
                   ELSE job.last_error
               END,
               failed_at = CASE WHEN held.landing = 'DEAD' OR held.event = 'retry' THEN {NOW} ELSE job.failed_at END,
               completed_at = CASE WHEN held.landing IN ('DEAD', 'CANCELED') THEN {NOW} END,
               dead_at = CASE WHEN held.landing = 'DEAD' THEN {NOW} END,
               dead_reason = CASE WHEN held.landing = 'DEAD' THEN held.reason END,
               fingerprint = CASE WHEN held.landing = 'DEAD' THEN coalesce(held.fingerprint, '') END,
               metadata = CASE
                   WHEN held.traceparent IS NULL THEN job.metadata
                   ELSE job.metadata || jsonb_build_object('{ATTEMPT_TRACEPARENT}', held.traceparent)
               END
          FROM held
         WHERE job.status = 'PROCESSING'
           AND job.id = ANY (ARRAY(SELECT id FROM held))
           AND (job.id = held.id) IS TRUE  -- not a join condition, as above
        RETURNING job.id, job.queue, job.status
    ),
    recorded AS (
        INSERT INTO th_attempts (
            job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome,
            error_type, message, traceback, fingerprint
        )
        SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, {NOW}, event, landing, outcome,
               error_type, message, traceback, fingerprint
          FROM held
            ON CONFLICT DO NOTHING  -- (job, token) identifies one attempt; its first row is kept
    ),
    tallied AS (
        {COUNT_ENDED}
          FROM settled
         WHERE status IN ('DEAD', 'CANCELED')
         GROUP BY queue, status
    )
    SELECT id, status
      FROM settled
"""
_WITH_LOCK_TIMEOUT: Final = (_ACK_WITH_LOCK_TIMEOUT, _SETTLE)
_SKIPPING_LOCKED: Final = (_ACK_SKIPPING_LOCKED, _SETTLE)
WAITS: Final = (_ACK, _SETTLE.replace(" SKIP LOCKED", ""))
"""The same statements for a joined transaction, which waits for locked rows."""


def settle(connections: PostgresPool, settlements: Sequence[Settlement]) -> list[Answer]:
    """Record outcomes. One that is locked or cannot be stored does not delay the others."""
    return settle_separately(settlements, lambda some: _record(connections, some), _rejection)


def _record(connections: PostgresPool, settlements: Sequence[Settlement]) -> list[Answer]:
    """Record the outcomes of rows that no other transaction has locked.

    Successes are updated without locking their rows first: the lock costs the server 15 % more (ADR 0009).
    """
    try:
        return run_statements(settle_statements(settlements, _WITH_LOCK_TIMEOUT), connections.fetch)
    except StoreUnavailable as error:
        if not isinstance(error.__cause__, LockNotAvailable):
            raise
    return run_statements(settle_statements(settlements, _SKIPPING_LOCKED), connections.fetch)


def _rejection(error: Exception) -> str | None:
    """Return the name of *error* if it blames the data of a statement."""
    is_encoding = isinstance(error, UnicodeError | OverflowError)
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    is_local = isinstance(error, psycopg.DataError) and code is None  # raised by psycopg, before anything was sent
    return type(error).__name__ if is_encoding or is_local or (code or "")[:2] in _DATA_ERROR_CLASSES else None


_DATA_ERROR_CLASSES: Final = frozenset({"22", "23", "54"})
"""The SQLSTATE classes that blame values: data exceptions, constraint violations, exceeded limits."""


def settle_statements(
    settlements: Sequence[Settlement], statements: tuple[LiteralString, LiteralString]
) -> Steps[list[Answer]]:
    """Record successes in one statement and all other outcomes in another, in the caller's transaction."""
    answers: dict[int, Answer] = {}
    ack, settle = statements
    acks = [n for n, each in enumerate(settlements) if each.outcome.event is _ACKED]
    for group in _each_job_once(acks, settlements):
        chosen = settlements if len(group) == len(settlements) else [settlements[n] for n in group]
        [[settled]] = yield ack, _ack(chosen)
        done = new_settled([each.lease.job_id for each in chosen], Status.SUCCEEDED)
        if settled is None and len(done) == len(settlements):
            return [*done]  # the usual case
        if settled is None:
            answers.update(zip(group, done, strict=True))
        else:
            numbers = {job_id.int for job_id in settled}
            answers |= {n: each for n, each in zip(group, done, strict=True) if each.job_id.int in numbers}
    if len(acks) < len(settlements):
        others = [n for n, each in enumerate(settlements) if each.outcome.event is not _ACKED]
        # Rows are locked in this order: sorted by id, two settlements of the same jobs cannot deadlock.
        others.sort(key=lambda n: settlements[n].lease.job_id)
        for group in _each_job_once(others, settlements):
            place = {settlements[n].lease.job_id: n for n in group}
            for job_id, status in (yield settle, _settle([settlements[n] for n in group])):
                answers[place[job_id]] = Settled(job_id, STATUSES[status])
    if len(answers) < len(settlements):
        answers |= yield from _refused({n: each for n, each in enumerate(settlements) if n not in answers})
    return [answers[n] for n in range(len(settlements))]


_ACKED: Final = Event.ACK  # the lookup of an enum member takes as long as the rest of a loop


def _each_job_once(numbers: Sequence[int], settlements: Sequence[Settlement]) -> Iterator[Sequence[int]]:
    """Yield groups of *numbers* without a job twice: one that was reclaimed may have two leases in a batch."""
    while numbers:
        chosen = {settlements[n].lease.job_id.int: n for n in numbers}  # a UUID as key takes three times as long
        if len(chosen) == len(numbers):
            yield numbers
            return
        yield [*chosen.values()]
        later = {*numbers}.difference(chosen.values())
        numbers = [n for n in numbers if n in later]


def _ack(acks: Sequence[Settlement]) -> dict[str, Any]:
    has_results = any(each.outcome.result is not None for each in acks)
    results = [each.outcome.result for each in acks] if has_results else None
    return {**_fence([each.lease for each in acks]), "results": results}


def _settle(others: Sequence[Settlement]) -> dict[str, Any]:
    params = [outcome_params(each.outcome) for each in others]
    columns = {f"{name}s": [each[name] for each in params] for name in params[0]}
    delays = [each.outcome.delay for each in others]
    return {**_fence([each.lease for each in others]), **columns, "delays": delays}


def _fence(leases: Sequence[Lease]) -> dict[str, Any]:
    return {"ids": uuids([each.job_id for each in leases]), "tokens": uuids([each.token for each in leases])}


_READ_HOLDERS: Final[LiteralString] = f"""
    -- The status if this settlement was committed before, and the holder of the job.
    SELECT job.id,
           CASE
               WHEN asked.event <> 'ack' THEN (
                   SELECT attempt.status
                     FROM th_attempts AS attempt
                    WHERE attempt.job_id = asked.id
                      AND attempt.token = asked.token
                      AND attempt.event = asked.event
                   )
               WHEN job.status = 'SUCCEEDED' AND job.settled_token = asked.token THEN job.status
           END,
           job.status,
           job.lease_token,
           job.lease_expires_at <= {NOW}
      FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(events)s::text[]) AS asked (id, token, event)
     -- OFFSET 0 makes each id an index lookup: for a join, the planner may scan leaves that it estimates as empty.
     CROSS JOIN LATERAL (SELECT * FROM th_jobs WHERE id = asked.id OFFSET 0) AS job
"""


def _refused(refused: Mapping[int, Settlement]) -> Steps[dict[int, Answer]]:
    events = [each.outcome.event.value for each in refused.values()]
    found = yield from _read_holders([each.lease for each in refused.values()], *events)
    return {n: _answer(each.lease, found.get(each.lease.job_id)) for n, each in refused.items()}


def _answer(held: Lease, row: Row | None) -> Answer:
    if row is not None and row[1] is not None:
        return Settled(held.job_id, Status(row[1]))
    return _rejected(held, row)


def _read_holders(leases: Sequence[Lease], *events: str) -> Steps[dict[JobId, Row]]:
    if not leases:
        return {}
    each_event = events if len(events) == len(leases) else [*events] * len(leases)
    rows = yield _READ_HOLDERS, {**_fence(leases), "events": list(each_event)}
    return {row[0]: row for row in rows}
