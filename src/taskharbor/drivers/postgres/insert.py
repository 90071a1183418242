"""Statements that store new jobs, one by one, in batches or by COPY."""

from __future__ import annotations

import json
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.errors import UniqueViolation

from taskharbor.core.errors import IdempotencyConflict
from taskharbor.core.job_batch import JobBatch
from taskharbor.core.results import Enqueued, new_enqueued
from taskharbor.drivers.postgres import pool
from taskharbor.drivers.postgres.copy_rows import COLUMNS, SIMPLE_COLUMNS, copy_rows
from taskharbor.drivers.postgres.pool import run_statements
from taskharbor.drivers.postgres.rows import NOW, byteas, uuids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from psycopg import Connection

    from taskharbor.core.ids import JobId
    from taskharbor.core.model import NewJob
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps
    from taskharbor.drivers.postgres.server import ServerConnection

MIN_COPY_JOBS: Final = 200
"""Batches of at least this many jobs are sent by COPY."""
MAX_STATEMENT_JOBS: Final = 20_000
MAX_STATEMENT_BYTES: Final = 16 * 1_048_576
"""Of payload. The deadline applies to each statement, so larger batches use several in one transaction."""

_COLUMNS: Final[LiteralString] = (
    "id, type, queue, priority, payload, scheduled_for, timeout, created_at, max_attempts, metadata, idempotency_key"
)

_INSERT: Final[LiteralString] = f"""
    -- A job with a key is stored only if this statement inserted the key.
    -- Keys are inserted in order, so that two batches cannot deadlock.
    WITH asked AS (
        SELECT *
          FROM unnest(
               %(ids)s::uuid[], %(types)s::text[], %(queues)s::text[], %(priorities)s::integer[],
               %(payloads)s::bytea[], %(scheduled_for)s::timestamptz[], %(delays)s::interval[],
               %(timeouts)s::interval[], %(created)s::timestamptz[], %(attempts)s::integer[],
               %(keys)s::text[], %(digests)s::bytea[], %(metadata)s::jsonb[]
               ) WITH ORDINALITY
               AS asked (id, type, queue, priority, payload, scheduled_for, delay, timeout, created_at,
                         max_attempts, key, digest, metadata, place)
    ),
    keyed AS (
        INSERT INTO th_keys (queue, key, job_id, digest)
        SELECT queue, key, id, digest
          FROM asked
         WHERE key IS NOT NULL
         ORDER BY queue COLLATE "C", key COLLATE "C", place
            ON CONFLICT DO NOTHING
        RETURNING job_id
    )
    INSERT INTO th_jobs_waiting ({_COLUMNS})
    SELECT id, type, queue, priority, payload, coalesce(scheduled_for, {NOW} + delay), timeout, created_at,
           max_attempts, metadata, key
      FROM asked
     WHERE (key IS NULL OR id IN (SELECT job_id FROM keyed))
"""
_INSERT_ONE: Final[LiteralString] = f"""
    -- The usual case. It takes two thirds of the time of _INSERT.
    INSERT INTO th_jobs_waiting ({_COLUMNS})
    VALUES (%(id)s, %(type)s, %(queue)s, %(priority)s, %(payload)s, coalesce(%(scheduled_for)s, {NOW} + %(delay)s),
            %(timeout)s, %(created_at)s, %(max_attempts)s, %(metadata)s::jsonb, NULL)
"""
# The root instead of the leaf: the leaf's trigger does not fire, and counting here takes less time.
_COUNT_ONE: Final[LiteralString] = _INSERT_ONE.replace(
    "INSERT INTO th_jobs_waiting",
    """WITH counted AS (
        INSERT INTO th_waiting_tallies (queue, status, count)
        VALUES (%(queue)s, 'PENDING', 1)
    )
    INSERT INTO th_jobs""",
)
_INSERT_BATCH: Final[LiteralString] = f"""
    -- Jobs that differ in id and payload only. A thousand of them take a sixth less time than by COPY, and 20,000 a
    -- twentieth more (ADR 0037). It names the root, and counts, as _COUNT_ONE does.
    WITH counted AS (
        INSERT INTO th_waiting_tallies (queue, status, count)
        VALUES (%(queue)s, 'PENDING', %(count)s)
    )
    INSERT INTO th_jobs ({_COLUMNS})
    SELECT id, %(type)s, %(queue)s, %(priority)s, payload, (SELECT coalesce(%(scheduled_for)s, {NOW} + %(delay)s)),
           %(timeout)s, %(created_at)s, %(max_attempts)s, %(metadata)s::jsonb, NULL
      -- Not by unnest of both in FROM, which takes a little more time.
      FROM (SELECT unnest(%(ids)s::uuid[]) AS id, unnest(%(payloads)s::bytea[]) AS payload) AS asked
"""
_NOTIFY_ONE: Final[LiteralString] = _COUNT_ONE.replace(
    "VALUES (%(queue)s, 'PENDING', 1)",
    """VALUES (%(queue)s, 'PENDING', 1)
        RETURNING pg_notify(%(channel)s, queue)""",
)
_INSERT_NEW: Final[LiteralString] = f"{_INSERT} RETURNING id"
_INSERT_AGAIN: Final[LiteralString] = f"""
    {_INSERT}
       AND NOT EXISTS (SELECT FROM th_jobs AS job WHERE job.id = asked.id OFFSET 0)  -- see _STORED
    RETURNING id
"""

_STORED: Final[LiteralString] = """
    SELECT asked.place, job.id IS NOT NULL, holder.job_id, holder.digest
      FROM unnest(%(ids)s::uuid[], %(queues)s::text[], %(keys)s::text[])
           WITH ORDINALITY AS asked (id, queue, key, place)
      -- OFFSET 0 forces an index lookup for each row; in a join, the planner may scan the whole index for a few rows.
      LEFT JOIN LATERAL (SELECT id FROM th_jobs WHERE id = asked.id OFFSET 0) AS job ON true
      LEFT JOIN LATERAL (
           SELECT job_id, digest
             FROM th_keys
            WHERE queue = asked.queue
              AND key = asked.key
           OFFSET 0
           ) AS holder ON true
"""


def insert(
    jobs: Sequence[NewJob], *, repeat: bool, counts: bool = False
) -> Steps[list[Enqueued | IdempotencyConflict]]:
    """Store *jobs* in the transaction of the caller. If it *counts*, the schema must have th_waiting_tallies."""
    if not jobs:
        return []
    if len(jobs) == 1 and jobs[0].idempotency_key is None and not repeat:
        yield _COUNT_ONE if counts else _INSERT_ONE, _values(jobs[0])
        return [new_enqueued(jobs[0].id)]
    if not is_one_statement(jobs):
        return (yield from _insert_batches(jobs, repeat=repeat))
    rows = yield _INSERT_AGAIN if repeat else _INSERT_NEW, _arrays(jobs)
    return (yield from _answers(jobs, {row[0] for row in rows}, repeat=repeat))


def insert_batch(batch: JobBatch) -> Steps[list[Enqueued | IdempotencyConflict]]:
    """Store the jobs of *batch* by one statement. The schema must have th_waiting_tallies."""
    ids, payloads = uuids(batch.ids), byteas(batch.payloads)
    yield _INSERT_BATCH, {**_values(batch.model), "ids": ids, "payloads": payloads, "count": len(batch)}
    return [new_enqueued(job_id) for job_id in batch.ids]


def insert_and_notify(job: NewJob, channel: str) -> Steps[list[Enqueued | IdempotencyConflict]]:
    """Store *job*, which has no key and is due, and notify *channel*. The schema must have th_waiting_tallies."""
    yield _NOTIFY_ONE, _values(job) | {"channel": channel}
    return [new_enqueued(job.id)]


def _insert_batches(jobs: Sequence[NewJob], *, repeat: bool) -> Steps[list[Enqueued | IdempotencyConflict]]:
    answers: dict[JobId, Enqueued | IdempotencyConflict] = {}
    for batch in _batches(_in_order_of_keys(jobs)):
        answered = yield from insert(batch, repeat=repeat)
        answers |= {job.id: answer for job, answer in zip(batch, answered, strict=True)}
    return [answers[job.id] for job in jobs]


def is_one_statement(jobs: Sequence[NewJob]) -> bool:
    """Return whether one statement can store all *jobs* before its deadline."""
    if len(jobs) == 1:
        return True
    payloads = jobs.payloads if isinstance(jobs, JobBatch) else [job.payload for job in jobs]
    return len(jobs) <= MAX_STATEMENT_JOBS and sum(map(len, payloads)) <= MAX_STATEMENT_BYTES


def _batches(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Split *jobs* into batches that one statement can store, in order."""
    if is_one_statement(jobs):
        yield jobs
        return
    start = size = 0
    for place, job in enumerate(jobs):
        size += len(job.payload)
        if place > start and (place - start == MAX_STATEMENT_JOBS or size > MAX_STATEMENT_BYTES):
            yield jobs[start:place]
            start, size = place, len(job.payload)
    yield jobs[start:]


def _in_order_of_keys(jobs: Sequence[NewJob]) -> list[NewJob]:
    """Sort *jobs* as `_INSERT` sorts their keys, so that two batches cannot deadlock."""
    return sorted(jobs, key=lambda job: (job.queue, job.idempotency_key) if job.idempotency_key else ("", ""))


def _answers(jobs: Sequence[NewJob], new: set[JobId], *, repeat: bool) -> Steps[list[Enqueued | IdempotencyConflict]]:
    """Return the result of each job. Insert a job again if its key was removed between the two statements."""
    if len(new) == len(jobs):
        return [new_enqueued(job.id) for job in jobs]
    others = [job for job in jobs if job.id not in new]
    found: list[Row] = []
    for batch in _batches(others):
        keys = {
            "ids": [job.id for job in batch],
            "queues": [job.queue for job in batch],
            "keys": [job.idempotency_key for job in batch],
        }
        found += sorted((yield _STORED, keys))
    answers: dict[JobId, Enqueued | IdempotencyConflict] = {}
    freed = []
    for job, (_, is_stored, holder, digest) in zip(others, found, strict=True):
        if is_stored:
            answers[job.id] = Enqueued(job.id, existed=True)
        elif holder is None:
            freed.append(job)
        elif digest != job.digest:
            answers[job.id] = IdempotencyConflict(job.queue, job.idempotency_key or "", holder)
        else:
            answers[job.id] = Enqueued(holder, existed=True)
    stored = yield from insert(freed, repeat=repeat)
    answers |= {job.id: answer for job, answer in zip(freed, stored, strict=True)}
    return [answers.get(job.id) or new_enqueued(job.id) for job in jobs]


def _values(job: NewJob) -> dict[str, Any]:
    return {
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
        "priority": job.priority,
        "payload": job.payload,
        "scheduled_for": job.scheduled_for,
        "delay": job.delay,
        "timeout": job.timeout,
        "created_at": job.created_at,
        "max_attempts": job.max_attempts,
        "metadata": _json(job),
    }


def _arrays(jobs: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "ids": uuids(job.id for job in jobs),
        "types": pool.texts(job.type for job in jobs),
        "queues": pool.texts(job.queue for job in jobs),
        "priorities": pool.integers(job.priority for job in jobs),
        "payloads": pool.blobs([job.payload for job in jobs]),
        "scheduled_for": pool.timestamps(job.scheduled_for for job in jobs),
        "delays": pool.intervals(job.delay for job in jobs),
        "timeouts": pool.intervals(job.timeout for job in jobs),
        "created": pool.timestamps(job.created_at for job in jobs),
        "attempts": pool.integers(job.max_attempts for job in jobs),
        "keys": pool.texts(job.idempotency_key for job in jobs),
        "digests": pool.blobs([job.digest for job in jobs]),
        "metadata": pool.texts(_json(job) for job in jobs),
    }


def _json(job: NewJob) -> str:
    return json.dumps(dict(job.metadata)) if job.metadata else "{}"


_COPY_SIMPLE: Final[LiteralString] = f"COPY th_jobs_waiting ({SIMPLE_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_COPY: Final[LiteralString] = f"COPY th_jobs_waiting ({COLUMNS}) FROM STDIN (FORMAT BINARY)"
_TIME: Final[LiteralString] = f"SELECT {NOW}"
_COPY_KEYS: Final[LiteralString] = "COPY th_keys (queue, key, job_id, digest) FROM STDIN (FORMAT BINARY)"
_INSERT_KEYS: Final[LiteralString] = """
    INSERT INTO th_keys (queue, key, job_id, digest)
    SELECT queue, key, id, digest
      FROM unnest(%(queues)s::text[], %(keys)s::text[], %(ids)s::uuid[], %(digests)s::bytea[])
           WITH ORDINALITY AS asked (queue, key, id, digest, place)
     ORDER BY queue COLLATE "C", key COLLATE "C", place
        ON CONFLICT DO NOTHING
    RETURNING job_id
"""


def copy(connections: PostgresPool, jobs: Sequence[NewJob]) -> list[Enqueued | IdempotencyConflict]:
    """Store many jobs by COPY, which takes a fraction of the time of `insert`."""
    is_one_copy = is_one_statement(jobs) and all(job.idempotency_key is None for job in jobs)

    def work(db: ServerConnection) -> list[Enqueued]:
        # One statement is a transaction of its own: without BEGIN and COMMIT, there are two round trips less.
        # Behind a pooler the settings need a transaction.
        with nullcontext() if is_one_copy and not connections.address.is_pooled else db.transaction():
            [(now,)] = connections.execute(db, connections.qualified(_TIME), {})
            own = jobs if is_one_copy else _with_own_keys(connections, db, jobs)
            return [answer for batch in _batches(own) for answer in _copy(connections, db, batch, now)]

    answers = connections.run(work)
    if len(answers) == len(jobs):
        return [*answers]
    return run_statements(_answers(jobs, {answer.id for answer in answers}, repeat=False), connections.fetch)


def _with_own_keys(connections: PostgresPool, db: ServerConnection, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Insert the keys of *jobs*, and return the jobs that have no key or whose key is new."""
    keyed = [job for job in jobs if job.idempotency_key is not None]
    if not keyed:
        return jobs
    # In the same order as `_INSERT_KEYS`, so that two batches cannot deadlock.
    keyed = sorted(sorted(keyed, key=attrgetter("idempotency_key")), key=attrgetter("queue"))
    try:
        with db.transaction():
            for batch in _batches(keyed):
                _copy_keys(db, connections.qualified(_COPY_KEYS), batch)
    except UniqueViolation:  # a key exists; COPY stops at the first one, and does not report the others
        own = {job_id for batch in _batches(keyed) for job_id in _insert_keys(connections, db, batch)}
        return [job for job in jobs if job.idempotency_key is None or job.id in own]
    return jobs


def _insert_keys(connections: PostgresPool, db: ServerConnection, jobs: Sequence[NewJob]) -> list[JobId]:
    keys = {
        "queues": pool.texts(job.queue for job in jobs),
        "keys": pool.texts(job.idempotency_key for job in jobs),
        "ids": uuids(job.id for job in jobs),
        "digests": pool.blobs([job.digest for job in jobs]),
    }
    return [row[0] for row in connections.execute(db, connections.qualified(_INSERT_KEYS), keys)]


def _copy_keys(db: Connection, query: bytes, jobs: Sequence[NewJob]) -> None:
    with db.cursor() as cursor, cursor.copy(query) as sink:
        sink.set_types(("text", "text", "uuid", "bytea"))
        for job in jobs:
            sink.write_row((job.queue, job.idempotency_key, job.id, job.digest))


def _copy(connections: PostgresPool, db: Connection, jobs: Sequence[NewJob], now: datetime) -> list[Enqueued]:
    is_simple = not any(map(attrgetter("timeout"), jobs)) and not any(map(attrgetter("metadata"), jobs))
    # Without the two columns, COPY takes 10 % less time.
    query = _COPY_SIMPLE if is_simple else _COPY
    with db.cursor() as cursor, cursor.copy(connections.qualified(query)) as sink:
        for piece in copy_rows(jobs, now, is_simple=is_simple):
            sink.write(piece)
        return [new_enqueued(job.id) for job in jobs]  # inside the block, while the server processes the last rows
