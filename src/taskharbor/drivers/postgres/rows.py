"""SQL fragments, select lists and row mappers of the PostgreSQL store."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

from taskharbor.core.ids import uuids_from_ints
from taskharbor.core.model import (
    DEFAULT_CODEC,
    UNDECODED,
    Claim,
    Job,
    Lease,
    MutableJob,
    claim_from_job,
    job_from_values,
    mutable_twin,
    stored_summary,
)
from taskharbor.core.states import Status
from taskharbor.drivers import records
from taskharbor.drivers.records import NO_METADATA, STATUSES, progress_from_json, row_mapper, text_map
from taskharbor.drivers.stored_map import StoredMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from taskharbor.core.claims import Claimant

NOW: Final[LiteralString] = "coalesce(%(now)s::timestamptz, statement_timestamp())"
"""The time of the statement by the server's clock, also in a joined transaction, unless a test passes another."""

LIMIT_TO_IDS: Final[LiteralString] = "LIMIT cardinality(%(ids)s::uuid[])"
"""Ends a subquery of ids that is joined with jobs. It drops no row, but lowers the planner's estimate.

The planner estimates an unknown array at ten rows, and a leaf that was empty at its last VACUUM at
one row. It then scans the whole leaf, even when the leaf has filled up since. An unknown limit
reduces the ten rows to one, so that each id is looked up in the index.
"""

MATCHES_ID: Final[LiteralString] = "job.id = ANY (ARRAY[asked.id])"
"""Joins the jobs of a leaf with the requested ids so that each id is looked up.

With a bare `=`, the planner may scan the index in order instead. It does so if VACUUM recorded
that the leaf has no live rows, as it does when all of them are dead and an old snapshot keeps them.
Each such scan passes all dead rows.
"""

_AS_TEXT: Final = frozenset({"progress", "metadata", "options", "detail"})
"""JSON columns, which are selected as text."""


def _select_list(columns: records.Columns, table: LiteralString = "") -> LiteralString:
    return ", ".join(f"{table}{name}::text" if name in _AS_TEXT else f"{table}{name}" for name in columns)


JOB: Final[LiteralString] = _select_list(records.JOB_COLUMNS, "job.")
# A claim gives the other columns values that the caller knows, or a CHECK keeps them NULL. Most jobs have no UNUSUAL
# values. The sort key stands first, with the id as bytes: so rows are sorted without a key function.
CLAIMED: Final[LiteralString] = """
           job.priority, job.scheduled_for, uuid_send(job.id), job.type, job.payload, job.timeout, job.created_at,
           job.attempt_count, job.max_attempts, job.sent_at, job.sends, job.idempotency_key,
           nullif(job.metadata, '{}')::text,
           timestamptz_send(job.processing_started_at),
           CASE
               WHEN (job.last_error, job.failed_at, job.settled_token, job.cancel_requested_at, job.result,
                     job.progress) IS NULL AND job.life = 1 AND job.releases = 0 THEN NULL
               ELSE (job.last_error, job.failed_at, job.settled_token, job.cancel_requested_at, job.result,
                     job.progress::text, job.life, job.releases)
           END
"""
"""The columns of a job that was just claimed, for `claims`."""
SUMMARY: Final[LiteralString] = _select_list(records.SUMMARY_COLUMNS, "job.")
ATTEMPT: Final[LiteralString] = _select_list(records.ATTEMPT_COLUMNS)
LOG: Final[LiteralString] = _select_list(records.LOG_COLUMNS)
OUTBOX: Final[LiteralString] = _select_list(records.OUTBOX_COLUMNS, "event.")
SCHEDULE: Final[LiteralString] = _select_list(records.SCHEDULE_COLUMNS)
SCHEDULE_2: Final[LiteralString] = SCHEDULE.replace("declared_at", "NULL::timestamptz")
"""The columns of a schedule on schema version 2."""
WORKER: Final[LiteralString] = _select_list(records.WORKER_COLUMNS)
REFUSAL: Final[LiteralString] = _select_list(records.REFUSAL_COLUMNS)
API_KEY: Final[LiteralString] = _select_list(records.API_KEY_COLUMNS)
API_KEY_3: Final[LiteralString] = API_KEY.replace("parent", "NULL")  # on schema versions below 4
RUN: Final[LiteralString] = _select_list(records.RUN_COLUMNS)
AUDIT: Final[LiteralString] = _select_list(records.AUDIT_COLUMNS)


def job(row: Sequence[Any]) -> Job:
    values = list(row[:32])  # changed in place: concatenating slices takes twice as long
    values[5], values[31] = STATUSES[row[5]], text_map(row[31])
    if row[30] is not None:
        values[30] = progress_from_json(row[30])
    return job_from_values(values)


def claimed(row: Sequence[Any]) -> Claim:
    """Return the claimed job of *row* with its lease."""
    return claim_from_job(job(row))


def claims(
    rows: Sequence[Sequence[Any]], queue: str, claimant: Claimant, *, reclaims: Sequence[bool] | None = None
) -> list[Claim]:
    """Return the jobs that *claimant* has just claimed in *queue*, by rows of `CLAIMED`.

    Values that are equal in all rows are not sent by the store: that takes a third less time (ADR 0021). *reclaims*
    says of each row whether the claim ended an expired lease; by default none did.
    """
    if not rows:
        return []
    started_at = _EPOCH + timedelta(microseconds=int.from_bytes(rows[0][13], signed=True))
    token, worker, expires_at = claimant.token, claimant.worker, started_at + claimant.lease
    size = len(rows)
    claimed: list[Any] = [*map(_new, repeat(_MutableClaim, size))]
    jobs, leases = map(_new, repeat(MutableJob, size)), map(_new, repeat(_MutableLease, size))
    job_ids = uuids_from_ints([int.from_bytes(row[2]) for row in rows], size)
    # One loop without calls: they would take longer than the rest. See `mutable_twin`.
    for row, job_id, job, lease, claim in zip(rows, job_ids, jobs, leases, claimed, strict=True):
        (
            job.priority, job.scheduled_for, _, job.type, job.payload, job.timeout, job.created_at,
            job.attempt_count, job.max_attempts, job.sent_at, job.sends, job.idempotency_key, metadata, _, unusual,
        ) = row  # fmt: skip
        job.id, job.queue, job.status, job.lease_token = job_id, queue, _PROCESSING, token
        job.lease_expires_at, job.worker_id, job.processing_started_at = expires_at, worker, started_at
        job.dispatch_at = job.completed_at = job.dead_reason = job.dead_at = job.progress = None
        job.resends = 0
        job.metadata = NO_METADATA if metadata is None else StoredMap(metadata)
        if unusual is None:
            job.last_error = job.failed_at = job.settled_token = job.cancel_requested_at = job.result = None
            job.life, job.releases = 1, 0
        else:
            (
                job.last_error, job.failed_at, job.settled_token, job.cancel_requested_at, job.result,
                progress, job.life, job.releases,
            ) = unusual  # fmt: skip
            if progress is not None:
                job.progress = progress_from_json(progress)
        job.codec, job._data = DEFAULT_CODEC, UNDECODED  # noqa: SLF001  a field of Job
        job.__class__ = Job
        lease.job_id, lease.token, lease.expires_at = job_id, token, expires_at
        lease.__class__ = Lease
        claim.job, claim.lease, claim.is_reclaim = job, lease, False
        claim.__class__ = Claim
    if reclaims is not None:
        return [replace(claim, is_reclaim=is_reclaim) for claim, is_reclaim in zip(claimed, reclaims, strict=True)]
    return claimed


_new: Final = object.__new__
_MutableLease: Final = mutable_twin(Lease)
_MutableClaim: Final = mutable_twin(Claim)
_PROCESSING: Final = Status.PROCESSING
_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)  # of PostgreSQL's binary timestamps


class UuidArray(bytes):
    """A parameter of type uuid[] in the binary format: psycopg inspects each item of a list three times."""


class UuidArrayDumper(Dumper):
    """Passes a `UuidArray` unchanged. It must be registered with every connection or cursor that gets one."""

    format = Format.BINARY
    oid = types["uuid"].array_oid

    def dump(self, obj: UuidArray) -> UuidArray:
        return obj


def uuids(values: Iterable[UUID]) -> UuidArray:
    """Return *values* as a parameter. The server reads it in less time than text, too."""
    items = [value.int.to_bytes(16) for value in values]
    if not items:
        return UuidArray(_ARRAY.pack(0, 0, _UUID_OID))
    header = _ARRAY.pack(1, 0, _UUID_OID) + _DIMENSION.pack(len(items), 1)
    return UuidArray(header + _UUID_SIZE + _UUID_SIZE.join(items))


class ByteaArray(bytes):
    """A parameter of type bytea[] in the binary format."""


class ByteaArrayDumper(Dumper):
    """Passes a `ByteaArray` unchanged, as `UuidArrayDumper` does a `UuidArray`."""

    format = Format.BINARY
    oid = types["bytea"].array_oid

    def dump(self, obj: ByteaArray) -> ByteaArray:
        return obj


def byteas(values: Sequence[bytes]) -> ByteaArray:
    """Return *values*, of which there is at least one, as a parameter."""
    parts = [b""] * (2 * len(values))
    parts[::2] = map(int.to_bytes, map(len, values), repeat(4))
    parts[1::2] = values
    header = _ARRAY.pack(1, 0, _BYTEA_OID) + _DIMENSION.pack(len(values), 1)
    return ByteaArray(header + b"".join(parts))


_ARRAY: Final = Struct("!iiI")  # dimensions, whether it has NULLs, type of the items
_DIMENSION: Final = Struct("!ii")  # number of items, first index
_UUID_OID: Final = types["uuid"].oid
_BYTEA_OID: Final = types["bytea"].oid
_UUID_SIZE: Final = (16).to_bytes(4)  # stands before each item


_CODECS: Final = dict.fromkeys(("queues", "types", "schedules", "scopes"), tuple)
"""Decoders of the columns that psycopg returns as lists, by name."""

summary: Final = row_mapper(records.SUMMARY_COLUMNS, stored_summary, _CODECS)
attempt: Final = row_mapper(records.ATTEMPT_COLUMNS, records.attempt_from_values, _CODECS)
attempt_lines: Final = row_mapper(records.LOG_COLUMNS, records.log_from_values, _CODECS)
outbox_row: Final = row_mapper(records.OUTBOX_COLUMNS, records.outbox_row_from_values, _CODECS)
schedule: Final = row_mapper(records.SCHEDULE_COLUMNS, records.schedule_from_values, _CODECS)
worker: Final = row_mapper(records.WORKER_COLUMNS, records.worker_from_values, _CODECS)
refusal: Final = row_mapper(records.REFUSAL_COLUMNS, records.refusal_from_values, _CODECS)
api_key: Final = row_mapper(records.API_KEY_COLUMNS, records.api_key_from_values, _CODECS)
schedule_run: Final = row_mapper(records.RUN_COLUMNS, records.run_from_values, _CODECS)
audit_entry: Final = row_mapper(records.AUDIT_COLUMNS, records.audit_entry_from_values, _CODECS)
finished_count: Final = row_mapper(records.FINISHED_COLUMNS, records.finished_count_from_values, _CODECS)
