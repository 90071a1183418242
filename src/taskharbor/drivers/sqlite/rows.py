"""Value codecs, select lists and row mappers of the SQLite store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.ids import JobId, Token, uuid_from_int
from taskharbor.core.model import job_from_values, stored_summary
from taskharbor.drivers import records
from taskharbor.drivers.records import STATUSES, progress_from_json, row_mapper, text_map

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.model import Job

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
SUMMARY: Final = ", ".join(records.SUMMARY_COLUMNS)
ATTEMPT: Final = ", ".join(records.ATTEMPT_COLUMNS)
OUTBOX: Final = ", ".join(records.OUTBOX_COLUMNS)
SCHEDULE: Final = ", ".join(records.SCHEDULE_COLUMNS)
WORKER: Final = ", ".join(records.WORKER_COLUMNS)
API_KEY: Final = ", ".join(records.API_KEY_COLUMNS)
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


_CODECS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("job_id", "last_job_id", "sample"), job_id),
    **dict.fromkeys(("token", "lease_token", "settled_token"), token),
    **dict.fromkeys(
        (
            "at", "cancel_requested_at", "completed_at", "created_at", "dead_at", "dispatch_at", "ended_at",
            "expires_at", "failed_at", "fired_at", "first_at", "given_up_at", "last_at", "lease_expires_at", "minute",
            "next_at", "oldest_due", "paused_at", "processing_started_at", "published_at", "revoked_at",
            "scheduled_for", "seen_at", "sent_at", "started_at", "used_at",
        ),
        moment,
    ),
    "timeout": _duration,
    **dict.fromkeys(("queues", "types", "scopes"), _json_tuple),
    "counts": json.loads,
}  # fmt: skip
"""Decoders of the columns whose type SQLite does not have, by name."""

summary: Final = row_mapper(records.SUMMARY_COLUMNS, stored_summary, {**_CODECS, "id": job_id})
attempt: Final = row_mapper(records.ATTEMPT_COLUMNS, records.attempt_from_values, _CODECS)
outbox_row: Final = row_mapper(records.OUTBOX_COLUMNS, records.outbox_row_from_values, _CODECS)
schedule: Final = row_mapper(records.SCHEDULE_COLUMNS, records.schedule_from_values, _CODECS)
worker: Final = row_mapper(records.WORKER_COLUMNS, records.worker_from_values, _CODECS)
api_key: Final = row_mapper(records.API_KEY_COLUMNS, records.api_key_from_values, _CODECS)
audit_entry: Final = row_mapper(records.AUDIT_COLUMNS, records.audit_entry_from_values, {**_CODECS, "id": token})
death: Final = row_mapper(records.DEATH_COLUMNS, records.death_from_values, _CODECS)
finished_count: Final = row_mapper(records.FINISHED_COLUMNS, records.finished_count_from_values, _CODECS)
dead_letter_group: Final = row_mapper(records.GROUP_COLUMNS, records.dead_letter_group_from_values, _CODECS)
queue_stats: Final = row_mapper(records.QUEUE_COLUMNS, records.queue_stats_from_values, _CODECS)


def marks(values: Sequence[object]) -> str:
    """Return one placeholder for each of *values*."""
    return ", ".join("?" * len(values))
