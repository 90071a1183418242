"""Value codecs, select lists and row mappers of the SQLite store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import JobId, Token, uuid_from_int, uuids_from_ints
from taskharbor.core.model import (
    DEFAULT_CODEC,
    UNDECODED,
    Job,
    MutableJob,
    claim_from_job,
    job_from_values,
    stored_summary,
)
from taskharbor.core.states import Status
from taskharbor.drivers import records
from taskharbor.drivers.records import NO_METADATA, STATUSES, progress_from_json, row_mapper, text_map
from taskharbor.drivers.stored_map import StoredMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.claims import Claimant
    from taskharbor.core.model import Claim

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def micros(moment: datetime) -> int:
    """Return *moment* in microseconds since 1970, without loss."""
    return (moment - EPOCH) // MICROSECOND


def span(duration: timedelta) -> int:
    return duration // MICROSECOND


# The jobs of one batch share most of their times. The cache is small: entries of a large one would leave the CPU cache.
@lru_cache(maxsize=64)
def moment(value: int) -> datetime:
    return EPOCH + value * MICROSECOND


def maybe_moment(value: int | None) -> datetime | None:
    return None if value is None else moment(value)


def maybe_micros(value: datetime | None) -> int | None:
    return None if value is None else micros(value)


def job_id(value: bytes) -> JobId:
    return JobId(uuid_from_int(int.from_bytes(value)))


@lru_cache(maxsize=16)  # the jobs of one batch share their token
def token(value: bytes) -> Token:
    return Token(uuid_from_int(int.from_bytes(value)))


def _duration(value: int) -> timedelta:
    return timedelta(microseconds=value)


def _json_tuple(value: str) -> tuple[str, ...]:
    return tuple(json.loads(value))


JOB: Final = ", ".join(records.JOB_COLUMNS)
# A claim gives the other columns values that the caller knows, or a CHECK keeps them NULL. The sort key stands first.
# The last two columns are 1 and NULL, unless a job has unusual values and must be read in full.
CLAIMED: Final = """
    priority, scheduled_for, id, type, payload, timeout, created_at, attempt_count, max_attempts, sent_at, sends,
    idempotency_key, metadata, life + releases,
    coalesce(last_error, failed_at, settled_token, cancel_requested_at, result, progress)
"""
"""The columns of a job that was just claimed, for `claims_from_rows`."""
SUMMARY: Final = ", ".join(records.SUMMARY_COLUMNS)
ATTEMPT: Final = ", ".join(records.ATTEMPT_COLUMNS)
LOG: Final = ", ".join(records.LOG_COLUMNS)
OUTBOX: Final = ", ".join(records.OUTBOX_COLUMNS)
SCHEDULE: Final = ", ".join(records.SCHEDULE_COLUMNS)
WORKER: Final = ", ".join(records.WORKER_COLUMNS)
REFUSAL: Final = ", ".join(records.REFUSAL_COLUMNS)
API_KEY: Final = ", ".join(records.API_KEY_COLUMNS)
RUN: Final = ", ".join(records.RUN_COLUMNS)
AUDIT: Final = ", ".join(records.AUDIT_COLUMNS)

WAITING: Final = "lease_expires_at IS NULL AND completed_at IS NULL"
"""PENDING, ENQUEUED or FAILED, as in the partial index of waiting jobs: SQLite uses it only for the same condition."""


# fmt: off
def job(row: Sequence[Any], leased: tuple[Token, datetime, datetime] | None = None) -> Job:
    """Return the job of *row*. *leased* is the token, expiry and start of a lease that the caller knows already."""
    # The most frequent function of the store: no loop, and no call for a NULL or a value that needs no decoding.
    (
        identity, kind, queue, priority, payload, status, scheduled_for, timeout, created_at, attempt_count,
        max_attempts, last_error, failed_at, lease_token, lease_expires_at, worker_id, started_at, completed_at,
        settled_token, life, dispatch_at, sent_at, sends, resends, releases, dead_reason, dead_at, cancel_requested_at,
        key, result, progress, metadata,
    ) = row
    lease, ends, started = leased or (
        None if lease_token is None else token(lease_token),
        None if lease_expires_at is None else moment(lease_expires_at),
        None if started_at is None else moment(started_at),
    )
    return job_from_values((
        uuid_from_int(int.from_bytes(identity)), kind, queue, priority, payload, STATUSES[status],
        moment(scheduled_for), None if timeout is None else timedelta(microseconds=timeout), moment(created_at),
        attempt_count, max_attempts, last_error, None if failed_at is None else moment(failed_at), lease, ends,
        worker_id, started,
        None if completed_at is None else moment(completed_at),
        None if settled_token is None else token(settled_token), life,
        None if dispatch_at is None else moment(dispatch_at), None if sent_at is None else moment(sent_at),
        sends, resends, releases, dead_reason, None if dead_at is None else moment(dead_at),
        None if cancel_requested_at is None else moment(cancel_requested_at), key, result,
        None if progress is None else progress_from_json(progress), text_map(metadata),
    ))
# fmt: on


def claims_from_rows(
    rows: Sequence[Sequence[Any]], queue: str, claimant: Claimant, *, now: int, read: Callable[[bytes], Sequence[Any]]
) -> list[Claim]:
    """Return the jobs that *claimant* has just claimed in *queue*, by rows of `CLAIMED`.

    The row of an unusual job is read in full. *read* returns it by the id. The others take three quarters of the time.
    """
    started_at = moment(now)
    token, worker, expires_at = claimant.token, claimant.worker, started_at + claimant.lease
    job_ids = uuids_from_ints([int.from_bytes(row[2]) for row in rows], len(rows))
    claimed = []
    # One loop with few calls, for the sake of speed. See `mutable_twin`.
    for row, job_id in zip(rows, job_ids, strict=True):
        made = _new(MutableJob)
        (
            made.priority, scheduled_for, identity, made.type, made.payload, timeout, created_at, made.attempt_count,
            made.max_attempts, sent_at, made.sends, made.idempotency_key, metadata, lives, unusual,
        ) = row  # fmt: skip
        if unusual is not None or lives != 1:
            claimed.append(claim_from_job(job(read(identity), (token, expires_at, started_at))))
            continue
        made.id, made.queue, made.status, made.lease_token = job_id, queue, _PROCESSING, token
        made.lease_expires_at, made.worker_id, made.processing_started_at = expires_at, worker, started_at
        made.scheduled_for, made.created_at = moment(scheduled_for), moment(created_at)
        made.timeout = None if timeout is None else timedelta(microseconds=timeout)
        made.sent_at = None if sent_at is None else moment(sent_at)
        made.metadata = NO_METADATA if metadata == "{}" else StoredMap(metadata)
        made.dispatch_at = made.completed_at = made.dead_reason = made.dead_at = made.progress = made.last_error = None
        made.failed_at = made.settled_token = made.cancel_requested_at = made.result = None
        made.life, made.releases, made.resends = 1, 0, 0
        made.codec, made._data = DEFAULT_CODEC, UNDECODED  # noqa: SLF001  a field of Job
        made.__class__ = Job
        claimed.append(claim_from_job(made))
    return claimed


_new: Final = object.__new__
_PROCESSING: Final = Status.PROCESSING


CODECS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("job_id", "last_job_id", "sample"), job_id),
    **dict.fromkeys(("token", "lease_token", "settled_token"), token),
    **dict.fromkeys(
        (
            "at", "cancel_requested_at", "completed_at", "created_at", "dead_at", "declared_at", "dispatch_at",
            "ended_at", "expires_at", "failed_at", "fire_time", "fired_at", "first_at", "given_up_at", "last_at",
            "lease_expires_at",
            "minute", "next_at", "oldest_due", "paused_at", "paused_until", "processing_started_at", "published_at",
            "revoked_at",
            "saved_at", "scheduled_for", "seen_at", "sent_at", "started_at", "stopped_at", "used_at",
        ),
        moment,
    ),
    "timeout": _duration,
    **dict.fromkeys(("queues", "types", "schedules", "scopes"), _json_tuple),
    "counts": json.loads,
}  # fmt: skip
"""Decoders of the columns whose type SQLite does not have, by name."""

summary: Final = row_mapper(records.SUMMARY_COLUMNS, stored_summary, {**CODECS, "id": job_id})
attempt: Final = row_mapper(records.ATTEMPT_COLUMNS, records.attempt_from_values, CODECS)
attempt_lines: Final = row_mapper(records.LOG_COLUMNS, records.log_from_values, CODECS)
outbox_row: Final = row_mapper(records.OUTBOX_COLUMNS, records.outbox_row_from_values, CODECS)
schedule: Final = row_mapper(records.SCHEDULE_COLUMNS, records.schedule_from_values, CODECS)
worker: Final = row_mapper(records.WORKER_COLUMNS, records.worker_from_values, CODECS)
refusal: Final = row_mapper(records.REFUSAL_COLUMNS, records.refusal_from_values, CODECS)
api_key: Final = row_mapper(records.API_KEY_COLUMNS, records.api_key_from_values, CODECS)
audit_entry: Final = row_mapper(records.AUDIT_COLUMNS, records.audit_entry_from_values, {**CODECS, "id": token})
schedule_run: Final = row_mapper(records.RUN_COLUMNS, records.run_from_values, CODECS)
death: Final = row_mapper(records.DEATH_COLUMNS, records.death_from_values, CODECS)
finished_count: Final = row_mapper(records.FINISHED_COLUMNS, records.finished_count_from_values, CODECS)
dead_letter_group: Final = row_mapper(records.GROUP_COLUMNS, records.dead_letter_group_from_values, CODECS)
queue_stats: Final = row_mapper(records.QUEUE_COLUMNS, records.queue_stats_from_values, CODECS)


def marks(values: Sequence[object]) -> str:
    """Return one placeholder for each of *values*."""
    return ", ".join("?" * len(values))
