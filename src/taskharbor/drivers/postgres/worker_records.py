"""Workers, live and past, what was lost with them, and their calls that were refused."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, LiteralString

from taskharbor.drivers.postgres.rows import ATTEMPT, LIMIT_TO_IDS, NOW, REFUSAL, WORKER, attempt, refusal, worker
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION, require_operators
from taskharbor.drivers.records import WORKER_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt, WorkerRecord
    from taskharbor.core.results import Refusal
    from taskharbor.drivers.postgres.pool import PostgresPool

_RECORD: Final[LiteralString] = f"""
    INSERT INTO th_workers (id, host, pid, queues, types, concurrency, started_at, seen_at, lost_slots, schedules,
                            busy_slots, version, library)
    VALUES (%(id)s, %(host)s, %(pid)s, %(queues)s, %(types)s, %(concurrency)s, %(started_at)s, {NOW}, %(lost_slots)s,
            %(schedules)s, %(busy_slots)s, %(version)s, %(library)s)
        ON CONFLICT (id) DO UPDATE
       SET host = excluded.host,
           pid = excluded.pid,
           queues = excluded.queues,
           types = excluded.types,
           concurrency = excluded.concurrency,
           started_at = excluded.started_at,
           seen_at = excluded.seen_at,
           lost_slots = excluded.lost_slots,
           schedules = excluded.schedules,
           busy_slots = excluded.busy_slots,
           version = excluded.version,
           library = excluded.library
"""
_RECORD_3: Final[LiteralString] = (  # on schema version 3
    _RECORD.replace(",\n                            busy_slots, version, library)", ")")
    .replace(", %(busy_slots)s, %(version)s, %(library)s)", ")")
    .replace(
        """,
           busy_slots = excluded.busy_slots,
           version = excluded.version,
           library = excluded.library""",
        "",
    )
)


def record(connections: PostgresPool, record: WorkerRecord) -> None:
    connections.fetch(
        _RECORD if _has_history(connections) else _RECORD_3,
        id=record.id,
        host=record.host,
        pid=record.pid,
        queues=list(record.queues),
        types=list(record.types),
        concurrency=record.concurrency,
        started_at=record.started_at,
        lost_slots=record.lost_slots,
        schedules=list(record.schedules),
        busy_slots=record.busy_slots,
        version=record.version,
        library=record.library,
    )


_READ: Final[LiteralString] = f"""
    SELECT {WORKER.replace("stopped_at", "NULL::timestamptz")}
      FROM th_workers
     ORDER BY id
"""
_READ_3: Final[LiteralString] = _READ.replace("busy_slots, version, library", "0, NULL, NULL")
_READ_PAST: Final[LiteralString] = f"""
    SELECT {WORKER}
      FROM th_past_workers AS past
     WHERE NOT EXISTS (SELECT FROM th_workers WHERE id = past.id)  -- it came back
     ORDER BY id
"""


def read(connections: PostgresPool) -> list[WorkerRecord]:
    return [worker(row) for row in connections.fetch(_READ if _has_history(connections) else _READ_3)]


def read_past(connections: PostgresPool) -> list[WorkerRecord]:
    return [worker(row) for row in connections.fetch(_READ_PAST)] if _has_history(connections) else []


_GONE: Final[LiteralString] = """
    DELETE FROM th_workers
     WHERE {only}
    RETURNING *
"""
_KEEP: Final[LiteralString] = f"""
    WITH gone AS ({_GONE})
    INSERT INTO th_past_workers ({WORKER})
    SELECT {WORKER.replace("stopped_at", "{stopped_at}")}
      FROM gone
        ON CONFLICT (id) DO UPDATE
       SET ({WORKER}) = ROW ({", ".join(f"excluded.{name}" for name in WORKER_COLUMNS)})
    RETURNING id
"""
_BY_ID: Final[LiteralString] = "id = %(id)s"
_UNSEEN: Final[LiteralString] = f"seen_at <= {NOW} - %(unseen_for)s"
_STOP: Final[LiteralString] = _KEEP.format(only=_BY_ID, stopped_at=NOW)
_STOP_3: Final[LiteralString] = _GONE.format(only=_BY_ID)
_RETIRE: Final[LiteralString] = _KEEP.format(only=_UNSEEN, stopped_at="NULL::timestamptz")
_RETIRE_3: Final[LiteralString] = _GONE.format(only=_UNSEEN)
_FORGET: Final[LiteralString] = f"""
    DELETE FROM th_past_workers
     WHERE seen_at <= {NOW} - %(keep)s
"""


def remove(connections: PostgresPool, worker_id: str) -> None:
    connections.fetch(_STOP if _has_history(connections) else _STOP_3, id=worker_id)


def prune(connections: PostgresPool, *, unseen_for: timedelta, keep: timedelta) -> int:
    if not _has_history(connections):
        return len(connections.fetch(_RETIRE_3, unseen_for=unseen_for))
    retired = connections.fetch(_RETIRE, unseen_for=unseen_for)
    connections.fetch(_FORGET, keep=keep)
    return len(retired)


_RECORD_REFUSALS: Final[LiteralString] = f"""
    -- The row of the attempt is there, or the lease has expired and the row will be written.
    INSERT INTO th_refusals (job_id, token, event, at)
    SELECT asked.job_id, asked.token, asked.event, {NOW}
      FROM (
           SELECT *
             FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(events)s::text[])
            {LIMIT_TO_IDS}
           ) AS asked (job_id, token, event)
     -- LIMIT makes each a lookup: EXISTS might read the whole table once.
     WHERE coalesce(
           (
           SELECT true
             FROM th_attempts AS attempt
            WHERE attempt.job_id = ANY (ARRAY[asked.job_id])
              AND attempt.token = asked.token
            LIMIT 1
           ),
           (
           SELECT true
             FROM th_jobs_processing AS job
            WHERE job.id = ANY (ARRAY[asked.job_id])
              AND job.lease_token = asked.token
            LIMIT 1
           ))
        ON CONFLICT DO NOTHING
"""


def record_refusals(connections: PostgresPool, refusals: Sequence[Refusal]) -> None:
    if refusals and _has_history(connections):
        connections.fetch(
            _RECORD_REFUSALS,
            ids=[each.job_id for each in refusals],
            tokens=[each.token for each in refusals],
            events=[each.event.value for each in refusals],
        )


_REFUSALS: Final[LiteralString] = f"""
    SELECT {REFUSAL}
      FROM th_refusals
     WHERE job_id = ANY (%(ids)s)
     ORDER BY at, token
"""


def read_refusals(connections: PostgresPool, job_ids: Sequence[JobId]) -> list[Refusal]:
    if not _has_history(connections):
        return []
    refused: defaultdict[JobId, list[Refusal]] = defaultdict(list)
    for each in map(refusal, connections.fetch(_REFUSALS, ids=list(job_ids))):
        refused[each.job_id].append(each)
    return [each for job_id in job_ids for each in refused[job_id]]


_LOST: Final[LiteralString] = f"""
    SELECT {ATTEMPT}
      FROM th_attempts
     WHERE worker_id = %(worker)s
       AND outcome = 'LOST'
     ORDER BY ended_at DESC, job_id DESC
     LIMIT %(limit)s
"""


def read_lost(connections: PostgresPool, worker_id: str, *, limit: int) -> list[Attempt]:
    require_operators(connections)  # without its index, the statement would read all attempts
    return [attempt(row) for row in connections.fetch(_LOST, worker=worker_id, limit=limit)]


def _has_history(connections: PostgresPool) -> bool:
    return connections.schema_version >= OPERATORS_VERSION
