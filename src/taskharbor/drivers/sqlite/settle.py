"""Extend leases, save progress, and record the outcomes of attempts."""

from __future__ import annotations

import sqlite3
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import Lease
from taskharbor.core.results import Extended, Settled, new_settled
from taskharbor.core.states import SETTLE_EVENTS, Event, Status
from taskharbor.core.trace_context import ATTEMPT_TRACEPARENT
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.drivers.records import fence_error, landing_case, outcome_params, progress_to_json
from taskharbor.drivers.sqlite.rows import moment, span, token

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.errors import JobNotFound, LeaseLost
    from taskharbor.core.model import Progress
    from taskharbor.core.outcome import Outcome
    from taskharbor.core.results import Settlement
    from taskharbor.drivers.base import SettleAnswer
    from taskharbor.drivers.sqlite.pool import SqlExecutor

# The fence: matches only while the lease is valid. A constraint ensures that a job with a lease token is PROCESSING.
_FENCE: Final = """
    id = :id
    AND lease_token = :token
    AND lease_expires_at > :now
"""

_EXTEND: Final = f"""
    UPDATE th_jobs
       SET lease_expires_at = :ends
     WHERE {_FENCE}
    RETURNING cancel_requested_at
"""


def extend(db: sqlite3.Connection, held: Lease, lease: timedelta, now: int) -> Extended | JobNotFound | LeaseLost:
    ends = now + span(lease)
    params = {"id": held.job_id.bytes, "token": held.token.bytes, "now": now, "ends": ends}
    row = db.execute(_EXTEND, params).fetchone()
    if row is None:
        return _fence_error(db, held)
    return Extended(Lease(held.job_id, held.token, moment(ends)), row[0] is not None)


_CANCEL_REQUESTED: Final = f"""
    SELECT 1
      FROM th_jobs
     WHERE {_FENCE}
       AND cancel_requested_at IS NOT NULL
"""


def cancel_requested(db: SqlExecutor, held: Lease, now: int) -> bool:
    params = {"id": held.job_id.bytes, "token": held.token.bytes, "now": now}
    return db.execute(_CANCEL_REQUESTED, params).fetchone() is not None


_SAVE_PROGRESS: Final = f"""
    UPDATE th_jobs
       SET progress = :progress
     WHERE {_FENCE}
"""


def save_progress(db: sqlite3.Connection, held: Lease, progress: Progress, now: int) -> bool:
    params = {"id": held.job_id.bytes, "token": held.token.bytes, "now": now, "progress": progress_to_json(progress)}
    return db.execute(_SAVE_PROGRESS, params).rowcount > 0


_SUCCEED: Final = """
    UPDATE th_jobs
       SET status = 'SUCCEEDED',
           settled_token = lease_token,
           lease_token = NULL,
           lease_expires_at = NULL
"""
ACK: Final = f"""
    {_SUCCEED},
           completed_at = :now,
           result = :result
     WHERE {_FENCE}
"""
# One statement for a batch takes half the time: SQLite prepares to undo each statement that may fail in a trigger.
_ACK_BATCH: Final = f"""
    {_SUCCEED},
           completed_at = ?,
           result = held.column3
      FROM (VALUES {{rows}}) AS held
     WHERE id = held.column1
       AND lease_token = held.column2
       AND lease_expires_at > ?
"""
BATCH_SIZES: Final = (4, 8, 16, 32, 64, 128, 256, STORE_BATCH)
"""Few sizes, so that the statements stay prepared. A batch is filled up with rows of NULLs, which match no job."""
_NO_ROW: Final = (None, None, None)


@cache
def ack_batch(rows: int) -> str:
    """Return the statement that records *rows* successes."""
    return _ACK_BATCH.format(rows=", ".join(["(?, ?, ?)"] * rows))


# The bound of a release is NULL if the handler did not begin.
_IS_FREE_RELEASE: Final = ":event = 'release' AND coalesce(releases < :bound, true)"
_STATUS_AFTER: Final = landing_case(
    SETTLE_EVENTS - {Event.ACK},
    event=":event",
    attempts=f"attempt_count - ({_IS_FREE_RELEASE})",
)
# Only this statement decides the status after an attempt; the next two write that status.
_LANDING: Final = f"""
    SELECT {_STATUS_AFTER}
      FROM th_jobs
     WHERE {_FENCE}
"""

_RECORD: Final = f"""
    INSERT INTO th_attempts (
        job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome,
        error_type, message, traceback, fingerprint
    )
    SELECT id, lease_token, life, attempt_count, worker_id, processing_started_at, :now, :event, :status, :outcome,
           :error_type, :message, :traceback, :fingerprint
      FROM th_jobs
     WHERE {_FENCE}
    ON CONFLICT DO NOTHING  -- (job, token) identifies one attempt; its first row is kept
"""

_END_LEASE: Final = f"""
    UPDATE th_jobs
       SET status = :status,
           attempt_count = attempt_count - (:event = 'snooze' OR {_IS_FREE_RELEASE}),
           releases = releases + (:event = 'release' AND :bound IS NOT NULL),
           settled_token = lease_token,
           lease_token = NULL,
           lease_expires_at = NULL,
           scheduled_for = CASE
               WHEN :event IN ('retry', 'snooze') AND :status IN ('PENDING', 'ENQUEUED', 'FAILED') THEN :due
               ELSE scheduled_for
           END,
           last_error = CASE
               WHEN :status = 'DEAD' THEN coalesce(:error, :reason)
               WHEN :event = 'retry' THEN :error
               ELSE last_error
           END,
           failed_at = CASE WHEN :status = 'DEAD' OR :event = 'retry' THEN :now ELSE failed_at END,
           completed_at = CASE WHEN :status IN ('DEAD', 'CANCELED') THEN :now END,
           dead_at = CASE WHEN :status = 'DEAD' THEN :now END,
           dead_reason = CASE WHEN :status = 'DEAD' THEN :reason END,
           fingerprint = CASE WHEN :status = 'DEAD' THEN coalesce(:fingerprint, '') END,
           metadata = CASE
               WHEN :traceparent IS NULL THEN metadata
               ELSE json_set(metadata, '$.{ATTEMPT_TRACEPARENT}', :traceparent)
           END
     WHERE {_FENCE}
"""


# For loops: the lookup of an enum member takes as long as the rest of the work for a job.
_ACK: Final = Event.ACK


def ack(db: SqlExecutor, settlements: Sequence[Settlement], now: int) -> list[SettleAnswer]:
    """Record successes."""
    rows = [
        # to_bytes equals UUID.bytes, without a Python frame
        (each.lease.job_id.int.to_bytes(16), each.lease.token.int.to_bytes(16), each.outcome.result)
        for each in settlements
    ]
    if record_acks(db, rows, now) == len(settlements):
        return [*new_settled([each.lease.job_id for each in settlements], Status.SUCCEEDED)]
    # At least one was rejected. The stored rows show which.
    return [_settled_before(db, each.lease, each.outcome) or _fence_error(db, each.lease) for each in settlements]


def record_acks(db: SqlExecutor, rows: list[tuple[bytes, bytes, bytes | None]], now: int) -> int:
    """Record successes, given as id, token and result, and return how many leases were valid."""
    if len(rows) > STORE_BATCH:
        return record_acks(db, rows[:STORE_BATCH], now) + record_acks(db, rows[STORE_BATCH:], now)
    if len(rows) < BATCH_SIZES[0] or len({each[0] for each in rows}) < len(rows):  # of two results, the first counts
        named = [{"id": job_id, "token": held, "now": now, "result": result} for job_id, held, result in rows]
        return db.executemany(ACK, named).rowcount
    size = next(size for size in BATCH_SIZES if size >= len(rows))
    filled = [*rows, *[_NO_ROW] * (size - len(rows))]
    return db.execute(ack_batch(size), (now, *chain.from_iterable(filled), now)).rowcount


def settle_all(db: SqlExecutor, settlements: Sequence[Settlement], now: int) -> list[SettleAnswer]:
    """Record the outcomes of attempts in the open transaction of *db*."""
    acks = [each for each in settlements if each.outcome.event is _ACK]
    acked = ack(db, acks, now) if acks else []
    if len(acks) == len(settlements):
        return acked
    rest = iter(acked)
    return [
        next(rest) if each.outcome.event is _ACK else settle(db, each.lease, each.outcome, now) for each in settlements
    ]


def settle(db: SqlExecutor, lease: Lease, outcome: Outcome, now: int) -> Settled | JobNotFound | LeaseLost:
    params: dict[str, Any] = {"id": lease.job_id.bytes, "token": lease.token.bytes, "now": now}
    params |= outcome_params(outcome)
    params["due"] = now + span(outcome.delay)
    row = db.execute(_LANDING, params).fetchone()
    if row is None:
        return _settled_before(db, lease, outcome) or _fence_error(db, lease)
    params["status"] = row[0]
    db.execute(_RECORD, params)
    db.execute(_END_LEASE, params)
    return Settled(lease.job_id, Status(row[0]))


def rejection(error: Exception) -> str | None:
    """Return the name of *error* if it blames the data of a statement."""
    is_about_data = isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | UnicodeError | OverflowError)
    return type(error).__name__ if is_about_data else None


_EARLIER_STATUS: Final = """
    SELECT CASE
               WHEN :event = 'ack' THEN CASE WHEN status = 'SUCCEEDED' AND settled_token = :token THEN status END
               ELSE (SELECT status FROM th_attempts WHERE job_id = :id AND token = :token AND event = :event)
           END
      FROM th_jobs
     WHERE id = :id
"""


def _settled_before(db: SqlExecutor, lease: Lease, outcome: Outcome) -> Settled | None:
    """Return the answer to this settlement if it was committed before."""
    params = {"id": lease.job_id.bytes, "token": lease.token.bytes, "event": outcome.event}
    row = db.execute(_EARLIER_STATUS, params).fetchone()
    return None if row is None or row[0] is None else Settled(lease.job_id, Status(row[0]))


_HOLDER: Final = "SELECT status, lease_token FROM th_jobs WHERE id = ?"


def _fence_error(db: SqlExecutor, lease: Lease) -> JobNotFound | LeaseLost:
    row = db.execute(_HOLDER, (lease.job_id.bytes,)).fetchone()
    status, holder = row or (None, None)
    return fence_error(lease, status, None if holder is None else token(holder))
