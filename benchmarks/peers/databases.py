"""Databases for the measurements: copies of one that is made once, and copies of a job's row by the million."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, LiteralString

import psycopg
from psycopg.sql import SQL, Identifier

from benchmarks.peers.processes import cpu_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psycopg.sql import Composed

    from taskharbor.testing.postgres import PostgresServer

MIN_STRATEGY_VERSION: Final = 15_00_00
CLONE_BATCH: Final = 1_000_000


class Databases:
    """The databases of one run. Those that measurements start from are made on first use."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self._server, self._folder = server, folder
        self._made: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether *name* was made and filled."""
        return name in self._made

    def once(self, name: str, fill: Callable[[str], None], *, template: str = "") -> None:
        """Make and fill the database *name*, if there is none, and keep it."""
        if name not in self._made:
            self.drop(name)
            fill(self.copy(name, template=template))
            self.tidy(name)
            self._made.add(name)

    def copy(self, name: str, *, template: str = "") -> str:
        """Make a database from another one, or an empty one, and return its URL."""
        # Through the log, not by copying files, which forces checkpoints: after a checkpoint the first change of each
        # page writes all of it to the log, and a drain would measure little else.
        strategy = SQL("STRATEGY WAL_LOG") if self._server.version >= MIN_STRATEGY_VERSION else SQL("")
        self._execute(
            "postgres",
            SQL("CREATE DATABASE {} TEMPLATE {} {}").format(
                Identifier(name), Identifier(template or "template1"), strategy
            ),
        )
        return self.url(name)

    def url(self, name: str) -> str:
        return f"{self._server.url.rpartition('/')[0]}/{name}"

    def drop(self, name: str) -> None:
        self._made.discard(name)
        self._server.drop(name)

    @contextmanager
    def counting(self, name: str) -> Iterator[Callable[[str], int]]:
        """Yield a function that returns the number that a query finds."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:

            def count(query: str) -> int:
                row = connection.execute(query.encode()).fetchone()
                return int(row[0]) if row else 0

            yield count

    def tidy(self, name: str) -> None:
        """Do at once what autovacuum does some time after a store was filled."""
        self._execute(name, "VACUUM ANALYZE")

    def cpu(self, _: str) -> float:
        """Return the CPU seconds of the server, including those of ended connections."""
        postmaster = int((self._folder / "data" / "postmaster.pid").read_text().split()[0])
        total = cpu_of(postmaster, with_ended_children=True)
        for pid in Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split():
            try:
                total += cpu_of(int(pid))
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
                continue
        return total

    def _execute(self, name: str, statement: LiteralString | Composed) -> None:
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute(statement)


@dataclass(frozen=True, slots=True)
class Rows:
    """The table of a system's jobs. Copies of a row get a new value in the columns of *unique*, an expression of n."""

    table: str
    unique: Mapping[str, LiteralString] = field(default_factory=dict)
    finished: Mapping[str, LiteralString] | None = None
    """What differs in a finished job; None if the system does not keep finished jobs in this table."""
    history: LiteralString = ""
    """A statement that makes %(count)s finished jobs, if they are kept elsewhere."""


# A UUID of version 7 with the time of an hour ago, in the order of n; the third group differs by kind.
_UUID7: Final[LiteralString] = """
    (lpad(to_hex((1000 * extract(epoch FROM now() - interval '1 hour'))::bigint), 12, '0')
     || '{}' || '8' || lpad(to_hex(n), 15, '0'))::uuid
"""
# Old enough to be due, and in the order of n.
_DUE: Final[LiteralString] = "now() - interval '1 hour' + n * interval '1 microsecond'"

ROWS: Final = {
    "taskharbor": Rows(
        "th_jobs",
        unique={"id": _UUID7.format("7000"), "scheduled_for": _DUE},
        finished={
            "id": _UUID7.format("7001"),
            "status": "'SUCCEEDED'",
            "attempt_count": "1",
            "worker_id": "'earlier'",
            "processing_started_at": "now()",
            "completed_at": "now()",
            "settled_token": "gen_random_uuid()",
        },
    ),
    "raw": Rows("job", finished={"status": "'done'", "token": "0"}),
    "graphile": Rows("graphile_worker._private_jobs"),
    "pgqueuer": Rows(
        "pgqueuer",
        history="""
            INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority, aggregated)
            SELECT -n, 'successful', 'noop', 0, true FROM generate_series(1, %(count)s) AS n
        """,
    ),
    "pgboss": Rows(
        "pgboss.job", unique={"id": "gen_random_uuid()"}, finished={"state": "'completed'", "completed_on": "now()"}
    ),
    "procrastinate": Rows("procrastinate_jobs", finished={"status": "'succeeded'", "attempts": "1"}),
}
"""Of the systems whose tables can be filled by SQL."""


def add_waiting(url: str, rows: Rows, count: int) -> None:
    """Add *count* copies of the one job that is in the store."""
    _clone(url, rows.table, rows.unique, count)


def add_finished(url: str, rows: Rows, count: int) -> None:
    """Add *count* finished jobs, made from the one job that is in the store or by the statement of the system."""
    if rows.history:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(rows.history, {"count": count})
    else:
        _clone(url, rows.table, {**rows.unique, **(rows.finished or {})}, count)


def _clone(url: str, table: str, changed: Mapping[str, LiteralString], count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            """
            SELECT attname
              FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
             WHERE attrelid = %s::regclass
               AND attnum > 0
               AND NOT attisdropped
               AND attidentity = ''
               AND attgenerated = ''
               AND coalesce(pg_get_expr(adbin, adrelid), '') NOT LIKE 'nextval%%'
            """,
            [table],
        ).fetchall()
        columns = [name for (name,) in found]
        values = SQL(", ").join(SQL(changed[name]) if name in changed else Identifier(name) for name in columns)
        named = Identifier(*table.split("."))
        connection.execute(SQL("CREATE TEMP TABLE one AS SELECT * FROM {} LIMIT 1").format(named))
        for first in range(1, count + 1, CLONE_BATCH):
            connection.execute(
                SQL("INSERT INTO {} ({}) SELECT {} FROM one, generate_series(%s::bigint, %s::bigint) AS n").format(
                    named, SQL(", ").join(map(Identifier, columns)), values
                ),
                [first, min(first + CLONE_BATCH - 1, count)],
            )
