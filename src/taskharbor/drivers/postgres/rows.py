"""From columns to values."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.failure import Failure
from taskharbor.core.model import (
    Attempt,
    AttemptOutcome,
    Claim,
    DeadTaskEvent,
    Job,
    JobSummary,
    OutboxRow,
    Progress,
    Schedule,
    claim_from_job,
    job_from_values,
    stored_summary,
)
from taskharbor.core.states import Event, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

NOW: Final[LiteralString] = "coalesce(%(now)s::timestamptz, statement_timestamp())"
"""The store's time: its own, also inside of somebody's transaction, unless a test brings one."""

LIMIT_TO_IDS: Final[LiteralString] = "LIMIT cardinality(%(ids)s::uuid[])"
"""Ends what is asked for, where it is joined with jobs: it changes no row, but what the planner believes of them.

An array that it does not know it takes for ten rows, and a leaf that was empty at its last
VACUUM for one; then it walks that leaf from end to end, an hour later too, when it is full.
A limit that it does not know makes a tenth of ten: now each id is looked up in the index.
"""

MATCHES_ID: Final[LiteralString] = "job.id = ANY (ARRAY[asked.id])"
"""Joins a leaf's jobs with the ids that are asked for, so that each is looked up.

By a plain `=` the planner may as well walk the index in its order. It does where it believes the leaf
to have no rows, as VACUUM says of one in which all is dead and kept there by an old snapshot; and
then it passes all of the dead each time.
"""

LOST_SLOTS_SINCE: Final = 2
"""The schema version that brought the lost slots of workers."""

_COLUMNS: Final[LiteralString] = (
    "id type queue priority payload status scheduled_for timeout created_at attempt_count max_attempts last_error"
    " failed_at lease_token lease_expires_at worker_id processing_started_at completed_at settled_token life"
    " dispatch_at sent_at sends resends releases dead_reason dead_at cancel_requested_at idempotency_key result"
    " progress::text metadata::text"
)
JOB: Final[LiteralString] = ", ".join(f"job.{name}" for name in _COLUMNS.split())
"""The columns of a job, in the order `job` reads them."""

SUMMARY: Final[LiteralString] = ", ".join(
    f"job.{name}" for name in _COLUMNS.split() if name not in {"payload", "result"}
)
"""The columns of a job that lists and waits read, in the order `summary` reads them."""

KEY_USE_VERSION: Final = 2
"""The migration that brought th_api_keys its column used_at."""

STATUSES: Final = {status.value: status for status in Status}
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


def job(row: Sequence[Any]) -> Job:
    values = list(row[:32])  # changed in place: a tuple put together of slices takes twice as long
    values[5], values[30], values[31] = STATUSES[row[5]], _progress(row[30]), text_map(row[31])
    return job_from_values(values)


def summary(row: Sequence[Any]) -> JobSummary:
    values = list(row[:30])
    values[4], values[28], values[29] = STATUSES[row[4]], _progress(row[28]), text_map(row[29])
    return stored_summary(values)


def _progress(value: str | None) -> Progress | None:
    return None if value is None else Progress(**json.loads(value))


def text_map(value: str) -> Mapping[str, str]:
    return _EMPTY if value == "{}" else MappingProxyType(json.loads(value))


def claimed(row: Sequence[Any]) -> Claim:
    """Return the job of *row*, which was taken, with its lease."""
    return claim_from_job(job(row))


def uuids(values: Iterable[UUID]) -> str:
    """Return an array as PostgreSQL reads it: psycopg looks at each item of a list three times."""
    return f"{{{','.join([value.hex for value in values])}}}"


ATTEMPT: Final[LiteralString] = (
    "job_id, token, life, attempt, worker_id, started_at, ended_at, event, status, outcome,"
    " error_type, message, traceback, fingerprint"
)


def attempt(row: Sequence[Any]) -> Attempt:
    has_failed = row[10] is not None
    return Attempt(
        job_id=row[0],
        token=row[1],
        life=row[2],
        attempt=row[3],
        worker_id=row[4],
        started_at=row[5],
        ended_at=row[6],
        event=Event(row[7]),
        status=Status(row[8]),
        outcome=AttemptOutcome(row[9]),
        failure=Failure(type=row[10], message=row[11], traceback=row[12], fingerprint=row[13]) if has_failed else None,
    )


OUTBOX: Final[LiteralString] = (
    "event.job_id, event.life, event.type, event.queue, event.worker_id, event.attempt_count, event.max_attempts,"
    " event.error, event.dead_at, event.next_at, event.attempts, event.last_error, event.published_at,"
    " event.given_up_at"
)


def outbox_row(row: Sequence[Any]) -> OutboxRow:
    event = DeadTaskEvent(
        job_id=row[0],
        life=row[1],
        type=row[2],
        queue=row[3],
        worker_id=row[4],
        attempt_count=row[5],
        max_attempts=row[6],
        error=row[7],
        dead_at=row[8],
    )
    return OutboxRow(
        event=event, next_at=row[9], attempts=row[10], last_error=row[11], published_at=row[12], given_up_at=row[13]
    )


SCHEDULE: Final[LiteralString] = (
    "name, cron, timezone, type, queue, payload, options::text, next_at, fired_at, paused_at, last_job_id"
)


def schedule(row: Sequence[Any]) -> Schedule:
    return Schedule(
        name=row[0],
        cron=row[1],
        timezone=row[2],
        type=row[3],
        queue=row[4],
        payload=row[5],
        options=text_map(row[6]),
        next_at=row[7],
        fired_at=row[8],
        paused_at=row[9],
        last_job_id=row[10],
    )
