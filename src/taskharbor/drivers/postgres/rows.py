"""From columns to values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, LiteralString

from taskharbor.core.model import claim_from_job, job_from_values, stored_summary
from taskharbor.drivers import records
from taskharbor.drivers.records import STATUSES, progress_from_json, row_mapper, text_map

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from taskharbor.core.model import Claim, Job

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

_AS_TEXT: Final = frozenset({"progress", "metadata", "options", "detail"})
"""The columns of JSON, which are read as text."""


def _select_list(columns: records.Columns, table: LiteralString = "") -> LiteralString:
    return ", ".join(f"{table}{name}::text" if name in _AS_TEXT else f"{table}{name}" for name in columns)


JOB: Final[LiteralString] = _select_list(records.JOB_COLUMNS, "job.")
SUMMARY: Final[LiteralString] = _select_list(records.SUMMARY_COLUMNS, "job.")
ATTEMPT: Final[LiteralString] = _select_list(records.ATTEMPT_COLUMNS)
OUTBOX: Final[LiteralString] = _select_list(records.OUTBOX_COLUMNS, "event.")
SCHEDULE: Final[LiteralString] = _select_list(records.SCHEDULE_COLUMNS)
WORKER: Final[LiteralString] = _select_list(records.WORKER_COLUMNS)
API_KEY: Final[LiteralString] = _select_list(records.API_KEY_COLUMNS)
AUDIT: Final[LiteralString] = _select_list(records.AUDIT_COLUMNS)

KEY_USE_VERSION: Final = 2
"""The migration that brought th_api_keys its column used_at."""


def job(row: Sequence[Any]) -> Job:
    values = list(row[:32])  # changed in place: a tuple put together of slices takes twice as long
    values[5], values[31] = STATUSES[row[5]], text_map(row[31])
    if row[30] is not None:
        values[30] = progress_from_json(row[30])
    return job_from_values(values)


def claimed(row: Sequence[Any]) -> Claim:
    """Return the job of *row*, which was taken, with its lease."""
    return claim_from_job(job(row))


def uuids(values: Iterable[UUID]) -> str:
    """Return an array as PostgreSQL reads it: psycopg looks at each item of a list three times."""
    return f"{{{','.join([value.hex for value in values])}}}"


_CODECS: Final = dict.fromkeys(("queues", "types", "scopes"), tuple)
"""How the arrays are decoded that psycopg returns as lists."""

summary: Final = row_mapper(records.SUMMARY_COLUMNS, stored_summary, _CODECS)
attempt: Final = row_mapper(records.ATTEMPT_COLUMNS, records.attempt_from_values, _CODECS)
outbox_row: Final = row_mapper(records.OUTBOX_COLUMNS, records.outbox_row_from_values, _CODECS)
schedule: Final = row_mapper(records.SCHEDULE_COLUMNS, records.schedule_from_values, _CODECS)
worker: Final = row_mapper(records.WORKER_COLUMNS, records.worker_from_values, _CODECS)
api_key: Final = row_mapper(records.API_KEY_COLUMNS, records.api_key_from_values, _CODECS)
audit_entry: Final = row_mapper(records.AUDIT_COLUMNS, records.audit_entry_from_values, _CODECS)
finished_count: Final = row_mapper(records.FINISHED_COLUMNS, records.finished_count_from_values, _CODECS)
