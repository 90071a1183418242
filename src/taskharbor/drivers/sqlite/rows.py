"""From values to columns, and back."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, Token, uuid_from_int
from taskharbor.core.model import (
    Attempt,
    AttemptOutcome,
    DeadTaskEvent,
    OutboxRow,
    Progress,
    Schedule,
    WorkerRecord,
    job_from_values,
    stored_summary,
)
from taskharbor.core.states import Event, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taskharbor.core.model import Job, JobSummary

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return *moment* as a column keeps it, exactly."""
    return (moment - EPOCH) // MICROSECOND


def span(duration: timedelta) -> int:
    return duration // MICROSECOND


# The jobs of one batch share most of their moments. Few are kept: what leaves a large cache has left the processor's.
@lru_cache(maxsize=64)
def moment(value: int) -> datetime:
    return EPOCH + value * MICROSECOND


def maybe_moment(value: int | None) -> datetime | None:
    return None if value is None else moment(value)


def maybe_micros(value: datetime | None) -> int | None:
    return None if value is None else micros(value)


def job_id(value: bytes) -> JobId:
    return JobId(uuid_from_int(int.from_bytes(value)))


@lru_cache(maxsize=16)  # as they do their token
def token(value: bytes) -> Token:
    return Token(uuid_from_int(int.from_bytes(value)))


def text_map(value: str) -> Mapping[str, str]:
    return _EMPTY if value == "{}" else MappingProxyType(json.loads(value))


_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


JOB: Final = (
    "id, type, queue, priority, payload, status, scheduled_for, timeout, created_at, attempt_count, max_attempts,"
    " last_error, failed_at, lease_token, lease_expires_at, worker_id, processing_started_at, completed_at,"
    " settled_token, life, dispatch_at, sent_at, sends, resends, releases, dead_reason, dead_at, cancel_requested_at,"
    " idempotency_key, result, progress, metadata"
)
"""The columns of a job, in the order that `job` reads them."""

SUMMARY: Final = ", ".join(name for name in JOB.split(", ") if name not in {"payload", "result"})
"""The columns of a job that lists and waits read."""

WAITING: Final = "lease_expires_at IS NULL AND completed_at IS NULL"
"""PENDING, ENQUEUED or FAILED, in the words of the index of what waits: SQLite uses it for no others."""


_STATUSES: Final = {status.value: status for status in Status}


# fmt: off
def job(row: Sequence[Any], held: tuple[Token, datetime, datetime] | None = None) -> Job:
    """Return the job of *row*; who has just taken it knows the token, the end of its lease, and when that was."""
    # The most frequent thing done in Python: no loop, and no call for a column that is as it shall be, or null.
    (
        identity, kind, queue, priority, payload, status, scheduled_for, timeout, created_at, attempt_count,
        max_attempts, last_error, failed_at, lease_token, lease_expires_at, worker_id, started_at, completed_at,
        settled_token, life, dispatch_at, sent_at, sends, resends, releases, dead_reason, dead_at, cancel_requested_at,
        key, result, progress, metadata,
    ) = row
    lease, ends, started = held or (
        None if lease_token is None else token(lease_token),
        None if lease_expires_at is None else moment(lease_expires_at),
        None if started_at is None else moment(started_at),
    )
    return job_from_values((
        uuid_from_int(int.from_bytes(identity)), kind, queue, priority, payload, _STATUSES[status],
        moment(scheduled_for), None if timeout is None else timedelta(microseconds=timeout), moment(created_at),
        attempt_count, max_attempts, last_error, None if failed_at is None else moment(failed_at), lease, ends,
        worker_id, started,
        None if completed_at is None else moment(completed_at),
        None if settled_token is None else token(settled_token), life,
        None if dispatch_at is None else moment(dispatch_at), None if sent_at is None else moment(sent_at),
        sends, resends, releases, dead_reason, None if dead_at is None else moment(dead_at),
        None if cancel_requested_at is None else moment(cancel_requested_at), key, result,
        None if progress is None else Progress(**json.loads(progress)), text_map(metadata),
    ))
# fmt: on


def summary(row: Sequence[Any]) -> JobSummary:
    """Return the summary of *row*, which has the columns of `SUMMARY`."""
    values = list(row)
    values[0], values[4], values[29] = job_id(row[0]), _STATUSES[row[4]], text_map(row[29])
    values[6] = None if row[6] is None else timedelta(microseconds=row[6])
    values[28] = None if row[28] is None else Progress(**json.loads(row[28]))
    for place in _TOKENS:
        values[place] = None if row[place] is None else token(row[place])
    for place in _MOMENTS:
        values[place] = maybe_moment(row[place])
    return stored_summary(values)


def _places(*names: str) -> tuple[int, ...]:
    columns = SUMMARY.split(", ")
    return tuple(columns.index(name) for name in names)


_TOKENS: Final = _places("lease_token", "settled_token")
_MOMENTS: Final = _places(
    "scheduled_for", "created_at", "failed_at", "lease_expires_at", "processing_started_at", "completed_at",
    "dispatch_at", "sent_at", "dead_at", "cancel_requested_at",
)  # fmt: skip


def progress_text(progress: Progress) -> str:
    """Return *progress* as a column keeps it."""
    return json.dumps(asdict(progress))


ATTEMPT: Final = (
    "job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome,"
    " error_type, message, traceback, fingerprint"
)


def attempt(row: Sequence[Any]) -> Attempt:
    has_failed = row[10] is not None
    return Attempt(
        job_id=job_id(row[0]),
        token=token(row[1]),
        life=row[2],
        attempt=row[3],
        worker_id=row[4],
        started_at=maybe_moment(row[5]),
        ended_at=moment(row[6]),
        event=Event(row[7]),
        status=Status(row[8]),
        outcome=AttemptOutcome(row[9]),
        failure=Failure(type=row[10], message=row[11], traceback=row[12], fingerprint=row[13]) if has_failed else None,
    )


OUTBOX: Final = (
    "job_id, life, type, queue, worker_id, attempt_count, max_attempts, error, dead_at,"
    " next_at, attempts, last_error, published_at, given_up_at"
)


def outbox_row(row: Sequence[Any]) -> OutboxRow:
    event = DeadTaskEvent(
        job_id=job_id(row[0]),
        life=row[1],
        type=row[2],
        queue=row[3],
        worker_id=row[4],
        attempt_count=row[5],
        max_attempts=row[6],
        error=row[7],
        dead_at=moment(row[8]),
    )
    return OutboxRow(
        event=event,
        next_at=moment(row[9]),
        attempts=row[10],
        last_error=row[11],
        published_at=maybe_moment(row[12]),
        given_up_at=maybe_moment(row[13]),
    )


def marks(values: Sequence[object]) -> str:
    """Return a question mark for each of *values*."""
    return ", ".join("?" * len(values))


SCHEDULE: Final = "name, cron, timezone, type, queue, payload, options, next_at, fired_at, paused_at, last_job_id"


def schedule(row: Sequence[Any]) -> Schedule:
    return Schedule(
        name=row[0],
        cron=row[1],
        timezone=row[2],
        type=row[3],
        queue=row[4],
        payload=row[5],
        options=text_map(row[6]),
        next_at=maybe_moment(row[7]),
        fired_at=maybe_moment(row[8]),
        paused_at=maybe_moment(row[9]),
        last_job_id=None if row[10] is None else job_id(row[10]),
    )


def worker(row: Sequence[Any]) -> WorkerRecord:
    return WorkerRecord(
        id=row[0],
        host=row[1],
        pid=row[2],
        queues=tuple(json.loads(row[3])),
        types=tuple(json.loads(row[4])),
        concurrency=row[5],
        started_at=moment(row[6]),
        seen_at=moment(row[7]),
        lost_slots=row[8],
    )
