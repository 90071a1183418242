"""The baseline: the driver's work written directly with psycopg, without TaskHarbor.

The tables are those of ``taskharbor migrate up``. Claims and acks make the driver's checks,
are fenced by the token, count finished jobs, and fetch every column of a job.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

PINS = (
    "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off"
    " -c enable_mergejoin=off -c enable_sort=off -c jit=off -c TimeZone=UTC"
)
LEASE = timedelta(seconds=30)

CLAIM = """
    UPDATE th_jobs AS job
       SET status = 'PROCESSING', lease_token = %(token)s, lease_expires_at = statement_timestamp() + %(lease)s,
           worker_id = 'w', processing_started_at = statement_timestamp(), dispatch_at = NULL, resends = 0,
           attempt_count = attempt_count + 1
     WHERE job.status IN ('PENDING', 'ENQUEUED', 'FAILED')
       AND job.id = ANY (ARRAY(
           SELECT id
             FROM th_jobs_waiting
            WHERE queue = 'default'
              AND scheduled_for <= statement_timestamp()
              AND (status <> 'ENQUEUED' OR scheduled_for < statement_timestamp() - interval '60 s')
              AND attempt_count < max_attempts
              AND NOT EXISTS (SELECT FROM th_queues WHERE name = 'default')
            ORDER BY priority, scheduled_for, id
            LIMIT %(limit)s
              FOR UPDATE SKIP LOCKED
           ))
    RETURNING job.id, type, queue, priority, payload, status, scheduled_for, timeout, created_at, attempt_count,
              max_attempts, last_error, failed_at, lease_token, lease_expires_at, worker_id, processing_started_at,
              completed_at, settled_token, life, dispatch_at, sent_at, sends, resends, releases, dead_reason, dead_at,
              cancel_requested_at, idempotency_key, result, metadata::text
"""
ACK = """
    WITH settled AS (
        UPDATE th_jobs
           SET status = 'SUCCEEDED', settled_token = lease_token, lease_token = NULL, lease_expires_at = NULL,
               completed_at = statement_timestamp(), result = NULL
         WHERE status = 'PROCESSING'
           AND id = ANY (%(ids)s)
           AND lease_token = %(token)s
           AND lease_expires_at > statement_timestamp()
        RETURNING id, queue
    ),
    tallied AS (
        INSERT INTO th_tallies
        SELECT date_trunc('minute', statement_timestamp()), queue, 'SUCCEEDED', count(*), count(*)
          FROM settled
         GROUP BY queue
    )
    SELECT id FROM settled
"""
DIGEST = b"0" * 32
COPY = """
    COPY th_jobs_waiting (id, type, queue, priority, payload, scheduled_for, created_at, max_attempts, idempotency_key)
    FROM STDIN (FORMAT BINARY)
"""


def connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=0, options=PINS)


def drain(db: psycopg.Connection[Any], batch: int) -> int:
    """Claim and ack until no job is left. Return the number of jobs."""
    done = 0
    while True:
        token = uuid4()
        rows = db.execute(CLAIM, {"token": token, "lease": LEASE, "limit": batch}, binary=True).fetchall()
        if not rows:
            return done
        acked = db.execute(ACK, {"ids": [row[0] for row in rows], "token": token}, binary=True).fetchall()
        done += len(acked)


def copy(db: psycopg.Connection[Any], ids: Sequence[UUID], payload: bytes, keys: list[str] | None = None) -> None:
    """Store prepared rows, with their keys if they have any."""
    [now] = db.execute("SELECT statement_timestamp()").fetchone() or []
    names: Sequence[str | None] = keys or [None] * len(ids)
    with db.transaction(), db.cursor() as cursor:
        if keys:
            with cursor.copy("COPY th_keys (queue, key, job_id, digest) FROM STDIN (FORMAT BINARY)") as sink:
                sink.set_types(("text", "text", "uuid", "bytea"))
                for each, own in zip(ids, keys, strict=True):
                    sink.write_row(("default", own, each, DIGEST))
        with cursor.copy(COPY) as sink:
            sink.set_types(("uuid", "text", "text", "int4", "bytea", "timestamptz", "timestamptz", "int4", "text"))
            for each, key in zip(ids, names, strict=True):
                sink.write_row((each, "greet", "default", 0, payload, now, now, 3, key))


def copy_made(db: psycopg.Connection[Any], payloads: Sequence[object]) -> None:
    """Generate ids and JSON for *payloads*, and store them."""
    [now] = db.execute("SELECT statement_timestamp()").fetchone() or []
    with db.cursor() as cursor, cursor.copy(COPY) as sink:
        sink.set_types(("uuid", "text", "text", "int4", "bytea", "timestamptz", "timestamptz", "int4", "text"))
        for payload in payloads:
            sink.write_row((uuid4(), "greet", "default", 0, json.dumps(payload).encode(), now, now, 3, None))


INSERT = """
    INSERT INTO th_jobs_waiting (id, type, queue, priority, payload, scheduled_for, created_at, max_attempts)
    VALUES (%s, 'greet', 'default', 0, '{}', statement_timestamp(), statement_timestamp(), 3)
"""


def latencies(url: str, count: int) -> list[float]:
    """Return the seconds from an INSERT followed by a NOTIFY until a listener has claimed the job."""
    inserted, claimed, is_claimed = list[float](), list[float](), threading.Event()

    def listen() -> None:
        with connect(url) as connection, connect(url) as db:
            connection.execute("LISTEN bare")
            is_claimed.set()
            for _ in connection.notifies(timeout=30, stop_after=count):
                db.execute(CLAIM, {"token": uuid4(), "lease": LEASE, "limit": 1}, binary=True).fetchall()
                claimed.append(time.perf_counter())
                is_claimed.set()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    is_claimed.wait(10)
    with connect(url) as db:
        for _ in range(count):
            is_claimed.clear()
            inserted.append(time.perf_counter())
            db.execute(INSERT, [uuid4()])
            db.execute("NOTIFY bare")
            is_claimed.wait(10)
    listener.join(10)
    return [end - start for start, end in zip(inserted, claimed, strict=True)]
