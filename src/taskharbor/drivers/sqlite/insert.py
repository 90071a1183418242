"""Insert new jobs in the driver's own transaction or a joined one."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.results import Enqueued, new_enqueued
from taskharbor.drivers.base import STORE_BATCH
from taskharbor.drivers.sqlite.rows import EPOCH, MICROSECOND, job_id, marks, micros, span
from taskharbor.drivers.sqlite.statistics import count_arrived

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.drivers.sqlite.pool import SqlExecutor

_INSERT_KEY: Final = """
    INSERT INTO th_keys (queue, key, job_id, digest)
    VALUES (?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""

_COLUMNS: Final = """
    INSERT INTO th_jobs (
        id, type, queue, priority, payload, status, scheduled_for, timeout, created_at,
        attempt_count, max_attempts, idempotency_key, metadata
    )
"""
INSERT_JOB: Final = f"""
    {_COLUMNS}
    VALUES (?, ?, ?, ?, ?, 'PENDING', ?, ?, ?, 0, ?, ?, ?)
"""
# A job with an idempotency key is stored only if it holds the key.
_INSERT_KEYED: Final = f"""
    {_COLUMNS}
    SELECT ?, ?, ?, ?, ?, 'PENDING', ?, ?, ?, 0, ?, ?, ?
     WHERE EXISTS (SELECT 1 FROM th_keys WHERE queue = ? AND key = ? AND job_id = ?)
"""


def insert(db: SqlExecutor, jobs: Sequence[NewJob], *, now: int, repeat: bool) -> list[Enqueued | IdempotencyConflict]:
    """Store *jobs* in the open transaction of *db*."""
    if repeat:
        known = _known(db, jobs)
        answers = iter(_store_and_count(db, [job for job in jobs if job.id.bytes not in known], now))
        return [Enqueued(job.id, existed=True) if job.id.bytes in known else next(answers) for job in jobs]
    if len(jobs) == 1 and jobs[0].idempotency_key is None:
        db.execute(INSERT_JOB, _row(jobs[0], now))
        count_arrived(db, [(jobs[0].queue, 1)])
        return [new_enqueued(jobs[0].id)]
    return _store_and_count(db, jobs, now)


def _store_and_count(db: SqlExecutor, jobs: Sequence[NewJob], now: int) -> list[Enqueued | IdempotencyConflict]:
    answers = _store(db, jobs, now)
    new = (
        job.queue for job, each in zip(jobs, answers, strict=True) if isinstance(each, Enqueued) and not each.existed
    )
    count_arrived(db, Counter(new).items())
    return answers


def _store(db: SqlExecutor, jobs: Sequence[NewJob], now: int) -> list[Enqueued | IdempotencyConflict]:
    keyed = [job for job in jobs if job.idempotency_key is not None]
    if not keyed:
        db.executemany(INSERT_JOB, [_row(job, now) for job in jobs])
        return [new_enqueued(job.id) for job in jobs]
    db.executemany(_INSERT_KEY, [(job.queue, job.idempotency_key, job.id.bytes, job.digest) for job in keyed])
    keys = [(job.queue, job.idempotency_key, job.id.bytes) for job in keyed]
    db.executemany(_INSERT_KEYED, [_row(job, now) + key for job, key in zip(keyed, keys, strict=True)])
    without_key = [job for job in jobs if job.idempotency_key is None]
    db.executemany(INSERT_JOB, [_row(job, now) for job in without_key])
    holders = _holders(db, keyed)
    return [_answer(job, holders) for job in jobs]


def _known(db: SqlExecutor, jobs: Sequence[NewJob]) -> frozenset[bytes]:
    ids = [job.id.bytes for job in jobs]
    found: set[bytes] = set()
    for start in range(0, len(ids), STORE_BATCH):
        batch = ids[start : start + STORE_BATCH]
        query = f"SELECT id FROM th_jobs WHERE id IN ({marks(batch)})"
        found.update(row[0] for row in db.execute(query, batch))
    return frozenset(found)


def _holders(db: SqlExecutor, keyed: list[NewJob]) -> dict[tuple[str, str | None], tuple[JobId, bytes]]:
    query = "SELECT job_id, digest FROM th_keys WHERE queue = ? AND key = ?"
    holders = {}
    for job in keyed:
        holder, digest = db.execute(query, (job.queue, job.idempotency_key)).fetchone()
        holders[job.queue, job.idempotency_key] = job_id(holder), digest
    return holders


def _answer(
    job: NewJob,
    holders: dict[tuple[str, str | None], tuple[JobId, bytes]],
) -> Enqueued | IdempotencyConflict:
    if job.idempotency_key is None:
        return new_enqueued(job.id)
    holder, digest = holders[job.queue, job.idempotency_key]
    if digest != job.digest:
        return IdempotencyConflict(job.queue, job.idempotency_key, holder)
    return Enqueued(holder, existed=holder != job.id)


def _row(job: NewJob, now: int) -> tuple[Any, ...]:
    due = job.scheduled_for
    return (
        job.id.int.to_bytes(16),  # equals job.id.bytes, without a Python frame
        job.type,
        job.queue,
        job.priority,
        job.payload,
        (now + span(job.delay) if job.delay else now) if due is None else micros(due),
        None if job.timeout is None else span(job.timeout),
        (job.created_at - EPOCH) // MICROSECOND,
        job.max_attempts,
        job.idempotency_key,
        json.dumps(dict(job.metadata)) if job.metadata else "{}",
    )
