"""SQL fragments, select lists and row mappers of the PostgreSQL store."""

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

LOST_SLOTS_SINCE: Final = 2
"""The schema version that added the column lost_slots to th_workers."""

_AS_TEXT: Final = frozenset({"progress", "metadata", "options", "detail"})
"""JSON columns, which are selected as text."""


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
"""The schema version that added the column used_at to th_api_keys."""


def job(row: Sequence[Any]) -> Job:
    values = list(row[:32])  # changed in place: concatenating slices takes twice as long
    values[5], values[31] = STATUSES[row[5]], text_map(row[31])
    if row[30] is not None:
        values[30] = progress_from_json(row[30])
    return job_from_values(values)


def claimed(row: Sequence[Any]) -> Claim:
    """Return the claimed job of *row* with its lease."""
    return claim_from_job(job(row))


def uuids(values: Iterable[UUID]) -> str:
    """Render *values* as a PostgreSQL array literal: psycopg inspects each item of a list three times."""
    return f"{{{','.join([value.hex for value in values])}}}"


_CODECS: Final = dict.fromkeys(("queues", "types", "scopes"), tuple)
"""Decoders of the columns that psycopg returns as lists, by name."""

summary: Final = row_mapper(records.SUMMARY_COLUMNS, stored_summary, _CODECS)
attempt: Final = row_mapper(records.ATTEMPT_COLUMNS, records.attempt_from_values, _CODECS)
outbox_row: Final = row_mapper(records.OUTBOX_COLUMNS, records.outbox_row_from_values, _CODECS)
schedule: Final = row_mapper(records.SCHEDULE_COLUMNS, records.schedule_from_values, _CODECS)
worker: Final = row_mapper(records.WORKER_COLUMNS, records.worker_from_values, _CODECS)
api_key: Final = row_mapper(records.API_KEY_COLUMNS, records.api_key_from_values, _CODECS)
audit_entry: Final = row_mapper(records.AUDIT_COLUMNS, records.audit_entry_from_values, _CODECS)
finished_count: Final = row_mapper(records.FINISHED_COLUMNS, records.finished_count_from_values, _CODECS)
