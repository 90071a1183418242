"""No framework: a hand-written loop that claims 500 jobs and settles them, one statement each. An upper bound."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import protocol
import psycopg
from ticks import tick

BATCH = 500
TABLE = """
    CREATE TABLE job (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        status text NOT NULL DEFAULT 'waiting',
        token bigint,
        payload jsonb NOT NULL,
        created_at timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX job_ready ON job (id) WHERE status = 'waiting';
"""
CLAIM = """
    UPDATE job
       SET status = 'running', token = %(token)s
     WHERE id = ANY (ARRAY(
           SELECT id FROM job WHERE status = 'waiting' ORDER BY id LIMIT %(batch)s FOR UPDATE SKIP LOCKED
           ))
    RETURNING id, payload::text
"""
SETTLE = "UPDATE job SET status = 'done' WHERE id = ANY (%(ids)s) AND token = %(token)s"


def setup() -> None:
    with psycopg.connect(protocol.URL) as connection:
        connection.execute(TABLE)


def bulk(count: float) -> float:
    with psycopg.connect(protocol.URL, autocommit=True) as connection:
        start = time.perf_counter()
        for numbers in protocol.chunks(int(count)):
            with connection.cursor() as cursor, cursor.copy("COPY job (payload) FROM STDIN") as sink:
                for n in numbers:
                    sink.write_row([json.dumps(protocol.payload(n))])
        return time.perf_counter() - start


def singly(action: str, arguments: list[float]) -> float:
    with psycopg.connect(protocol.URL, autocommit=True) as connection:

        async def one(payload: dict[str, Any]) -> None:
            connection.execute("INSERT INTO job (payload) VALUES (%s)", [json.dumps(payload)])

        return asyncio.run(protocol.enqueue_as(action, arguments, one))


def worker() -> None:
    with psycopg.connect(protocol.URL, autocommit=True) as connection:
        token = 0
        while True:
            token += 1
            claimed = connection.execute(CLAIM, {"token": token, "batch": BATCH}).fetchall()
            for _, text in claimed:
                tick(json.loads(text)["ts"])
            if claimed:
                connection.execute(SETTLE, {"ids": [job_id for job_id, _ in claimed], "token": token})
            else:
                time.sleep(0.01)


if __name__ == "__main__":
    protocol.run({"setup": setup, "bulk": bulk, "worker": worker}, singly)
