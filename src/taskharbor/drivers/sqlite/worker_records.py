"""Workers, live and past, what was lost with them, and their calls that were refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from taskharbor.drivers.sqlite.rows import ATTEMPT, REFUSAL, WORKER, attempt, micros, refusal, span, worker
from taskharbor.drivers.sqlite.search import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt, WorkerRecord
    from taskharbor.core.results import Refusal
    from taskharbor.drivers.sqlite.pool import SqlitePool

_RECORD: Final = """
    REPLACE INTO th_workers
           (id, host, pid, queues, types, concurrency, started_at, seen_at, lost_slots, schedules, busy_slots, version,
            library)
    VALUES (:id, :host, :pid, :queues, :types, :concurrency, :started_at, :now, :lost_slots, :schedules, :busy_slots,
            :version, :library)
"""


def record(connections: SqlitePool, record: WorkerRecord) -> None:
    params = {
        "id": record.id,
        "host": record.host,
        "pid": record.pid,
        "queues": json.dumps(record.queues),
        "types": json.dumps(record.types),
        "concurrency": record.concurrency,
        "started_at": micros(record.started_at),
        "lost_slots": record.lost_slots,
        "schedules": json.dumps(record.schedules),
        "busy_slots": record.busy_slots,
        "version": record.version,
        "library": record.library,
    }
    with connections as (db, now):
        db.execute(_RECORD, params | {"now": now})


_READ: Final = f"""
    SELECT {WORKER.replace("stopped_at", "NULL")}
      FROM th_workers
     ORDER BY id
"""
_READ_PAST: Final = f"""
    SELECT {WORKER}
      FROM th_past_workers
     WHERE id NOT IN (SELECT id FROM th_workers)  -- it came back
     ORDER BY id
"""


def read(connections: SqlitePool) -> list[WorkerRecord]:
    with connections.read() as db:
        return [worker(row) for row in db.execute(_READ)]


def read_past(connections: SqlitePool) -> list[WorkerRecord]:
    with connections.read() as db:
        return [worker(row) for row in db.execute(_READ_PAST)]


_KEEP: Final = f"""
    REPLACE INTO th_past_workers ({WORKER})
    SELECT {WORKER.replace("stopped_at", ":stopped_at")}
      FROM th_workers
     WHERE {{only}}
"""
_REMOVE: Final = """
    DELETE FROM th_workers
     WHERE {only}
"""
_BY_ID: Final = "id = :id"
_UNSEEN: Final = "seen_at <= :until"
_STOP: Final = (_KEEP.format(only=_BY_ID), _REMOVE.format(only=_BY_ID))
_RETIRE: Final = (_KEEP.format(only=_UNSEEN), _REMOVE.format(only=_UNSEEN))
_FORGET: Final = """
    DELETE FROM th_past_workers
     WHERE seen_at <= :until
"""


def remove(connections: SqlitePool, worker_id: str) -> None:
    with connections as (db, now):
        for statement in _STOP:
            db.execute(statement, {"id": worker_id, "stopped_at": now})


def prune(connections: SqlitePool, *, unseen_for: timedelta, keep: timedelta) -> int:
    with connections as (db, now):
        params = {"until": now - span(unseen_for), "stopped_at": None}
        [retired, _] = [db.execute(statement, params).rowcount for statement in _RETIRE]
        db.execute(_FORGET, {"until": now - span(keep)})
    return retired


_RECORD_REFUSAL: Final = """
    -- The row of the attempt is there, or the lease has expired and the row will be written.
    INSERT INTO th_refusals (job_id, token, event, at)
    SELECT :job_id, :token, :event, :now
     WHERE EXISTS (SELECT 1 FROM th_attempts WHERE job_id = :job_id AND token = :token)
        OR EXISTS (SELECT 1 FROM th_jobs WHERE id = :job_id AND lease_token = :token)
        ON CONFLICT DO NOTHING
"""


def record_refusals(connections: SqlitePool, refusals: Sequence[Refusal]) -> None:
    with connections as (db, now):
        db.executemany(
            _RECORD_REFUSAL,
            [
                {"job_id": each.job_id.bytes, "token": each.token.bytes, "event": each.event.value, "now": now}
                for each in refusals
            ],
        )


_REFUSALS: Final = f"""
    SELECT {REFUSAL}
      FROM th_refusals
     WHERE job_id IN (%s)
     ORDER BY at, token
"""


def read_refusals(connections: SqlitePool, job_ids: Sequence[JobId]) -> list[Refusal]:
    with connections.read() as db:
        found = [refusal(row) for row in rows_of(db, _REFUSALS, [job_id.bytes for job_id in dict.fromkeys(job_ids)])]
    return [each for job_id in job_ids for each in found if each.job_id == job_id]


_LOST: Final = f"""
    SELECT {ATTEMPT}
      FROM th_attempts INDEXED BY th_attempts_by_worker
     WHERE worker_id = :worker
       AND outcome = 'LOST'
     ORDER BY ended_at DESC, job_id DESC
     LIMIT :limit
"""


def read_lost(connections: SqlitePool, worker_id: str, *, limit: int) -> list[Attempt]:
    with connections.read() as db:
        return [attempt(row) for row in db.execute(_LOST, {"worker": worker_id, "limit": limit})]
