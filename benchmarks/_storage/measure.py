"""Measure the WAL bytes, buffers and table sizes of a workload in PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

    from benchmarks._storage.designs import Design


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    wal: int
    buffers: int

    def per_job(self, jobs: int) -> dict[str, float]:
        return {"WAL bytes a job": round(self.wal / jobs), "buffers a job": round(self.buffers / jobs, 1)}


class Meter:
    """Measures from its creation on."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("SELECT pg_stat_statements_reset()")
        self._start = _one(connection, "SELECT pg_current_wal_insert_lsn()::text")

    def read(self) -> Cost:
        wal = _one(self._connection, "SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", self._start)
        buffers = _one(
            self._connection,
            """
            SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)
              FROM pg_stat_statements
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
               AND query LIKE '%%th\\_jobs%%'
            """,
        )
        return Cost(wal=int(wal), buffers=int(buffers))


def leftovers(connection: psycopg.Connection, design: Design) -> dict[str, float]:
    """Return the dead rows and the size of the tables for waiting and running jobs."""
    dead = sum(_one(connection, "SELECT dead_tuple_count FROM pgstattuple(%s)", table) for table in design.hot)
    size = sum(_one(connection, "SELECT pg_total_relation_size(%s)", table) for table in design.hot)
    return {"dead rows": dead, "megabytes": round(size / 2**20, 1)}


def _one(connection: psycopg.Connection, query: str, *parameters: object) -> Any:
    row = connection.execute(query, parameters or None).fetchone()
    return row[0] if row else None
