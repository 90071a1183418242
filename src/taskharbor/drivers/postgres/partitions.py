"""Removal of a day of finished jobs, which is one leaf partition, in short steps that survive a restart.

A day of millions of jobs cannot be scanned by one statement before its deadline. So it is removed in three
phases, and ``th_pruning`` records their progress:

1. The leaf is scanned in the order of ids. Jobs that have a key, attempts or events are removed row by row,
   together with these, so that a key and its job disappear at the same time. Log lines are not read by
   themselves, so those of other jobs are left for the third phase.
2. The leaf is detached, under a lock that lasts for a change of the catalog. After that no job can be added
   to it, and no caller sees its jobs.
3. The detached leaf is scanned again: jobs may have been added behind the position of phase 1, because a
   clock was set back or a long transaction committed. Their keys, attempts and events are removed, as are
   the log lines of all jobs, and all jobs are counted as removed. Then the table is dropped, which locks no
   other table.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from taskharbor.drivers.postgres.pool import run_statements
from taskharbor.drivers.postgres.rows import NOW
from taskharbor.drivers.postgres.schema import OPERATORS_VERSION
from taskharbor.drivers.postgres.server import REPLY_TIMEOUT_FACTOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps
    from taskharbor.drivers.postgres.server import ServerConnection

    T = TypeVar("T")
    from collections.abc import Sequence
    from uuid import UUID

_SET_TIMEOUT: Final[LiteralString] = "SELECT set_config('statement_timeout', %s, true)"
SCAN_BATCH: Final = 10_000
"""Jobs that one step scans: well under a second, even from a cold disk."""
STATEMENT_TIMEOUT: Final = timedelta(minutes=10)
"""The statement timeout of retention and of the roll-up: they read or remove many rows, and no caller waits."""
_PREFIX: Final = "th_jobs_finished_"

_DELETE_LOGS: Final[LiteralString] = """logs AS (
        DELETE FROM th_attempt_logs
         WHERE job_id = ANY (ARRAY(SELECT id FROM {jobs}))
    ),"""
_LOGS_OF_OLD: Final[LiteralString] = _DELETE_LOGS.format(jobs="old")
_LOGS_OF_GONE: Final[LiteralString] = _DELETE_LOGS.format(jobs="gone")
REMOVE: Final[LiteralString] = f"""
    -- Remove a batch of jobs that ended before a time, with their keys, attempts and events. Jobs
    -- that have an unpublished event stay.
    WITH old AS (
        SELECT job.id
          FROM {{leaf}} AS job
         WHERE job.completed_at <= {NOW} - %(older_than)s
           AND NOT EXISTS (
               SELECT
                 FROM th_outbox AS event
                WHERE event.job_id = job.id
                  AND event.published_at IS NULL
                  AND event.given_up_at IS NULL
               )
           {{only}}
         LIMIT %(limit)s
           FOR UPDATE SKIP LOCKED
    ),
    removed AS (
        DELETE FROM {{leaf}} AS job
         WHERE job.id = ANY (ARRAY(SELECT id FROM old))
        RETURNING job.id, job.queue, job.status
    ),
    keys AS (
        DELETE FROM th_keys
         WHERE job_id = ANY (ARRAY(SELECT id FROM old))
    ),
    attempts AS (
        DELETE FROM th_attempts
         WHERE job_id = ANY (ARRAY(SELECT id FROM old))
    ),
    {_LOGS_OF_OLD}
    events AS (
        DELETE FROM th_outbox
         WHERE job_id = ANY (ARRAY(SELECT id FROM old))
    ),
    tallied AS (
        INSERT INTO th_tallies (minute, queue, status, ended, kept)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), queue, status, 0, -count(*)
          FROM removed
         GROUP BY queue, status
    )
    SELECT count(*)
      FROM removed
"""
REFERENCED: Final[LiteralString] = """
               job.idempotency_key IS NOT NULL
               OR EXISTS (SELECT FROM th_attempts AS attempt WHERE attempt.job_id = job.id)
               OR EXISTS (SELECT FROM th_outbox AS event WHERE event.job_id = job.id)
"""
LEAVES: Final[LiteralString] = f"""
    SELECT leaf.relname, {NOW}
      FROM pg_inherits
      JOIN pg_class AS leaf ON leaf.oid = inhrelid
     WHERE inhparent = 'th_jobs_finished'::regclass
"""
_DETACHED: Final[LiteralString] = """
    SELECT day.leaf
      FROM th_pruning AS day
     WHERE day.is_detached
       AND EXISTS (
           SELECT
             FROM pg_class AS leaf
            WHERE leaf.relname = day.leaf
              AND leaf.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'th_jobs_finished'::regclass)
           )
"""
_REGISTER: Final[LiteralString] = """
    INSERT INTO th_pruning (leaf)
    SELECT unnest(%(leaves)s::text[])
        ON CONFLICT DO NOTHING
"""
_LOCK: Final[LiteralString] = """
    SELECT cleared_to, is_detached
      FROM th_pruning
     WHERE leaf = %(leaf)s
       FOR UPDATE SKIP LOCKED
"""
_LAST: Final[LiteralString] = """
    SELECT (array_agg(id))[count(*)::integer]
      FROM (
           SELECT job.id
             FROM {leaf} AS job
            WHERE job.id > %(after)s
            ORDER BY job.id
            LIMIT %(rows)s
           ) AS examined
"""
_FIND_REFERENCED: Final[LiteralString] = f"""
    SELECT job.id
      FROM {{leaf}} AS job
     WHERE job.id > %(after)s
       AND job.id <= %(upto)s
       AND ({REFERENCED})
     ORDER BY job.id
     LIMIT %(limit)s
"""
_DETACH: Final[LiteralString] = "SELECT th_detach_day(%(leaf)s)"
_FORGET: Final[LiteralString] = f"""
    WITH gone AS (
        SELECT job.id, job.queue, job.status
          FROM {{leaf}} AS job
         WHERE job.id > %(after)s
           AND job.id <= %(upto)s
    ),
    keys AS (
        DELETE FROM th_keys
         WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
    ),
    attempts AS (
        DELETE FROM th_attempts
         WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
    ),
    {_LOGS_OF_GONE}
    events AS (
        DELETE FROM th_outbox
         WHERE job_id = ANY (ARRAY(SELECT id FROM gone))
    ),
    tallied AS (
        INSERT INTO th_tallies (minute, queue, status, ended, kept)
        SELECT date_bin('1 minute', {NOW}, 'epoch'), queue, status, 0, -count(*)
          FROM gone
         GROUP BY queue, status
    )
    SELECT count(*)
      FROM gone
"""
_SAVE_POSITION: Final[LiteralString] = """
    UPDATE th_pruning
       SET cleared_to = %(upto)s
     WHERE leaf = %(leaf)s
"""
_DROP: Final[LiteralString] = "DROP TABLE {leaf}"
_UNREGISTER: Final[LiteralString] = """
    DELETE FROM th_pruning
     WHERE leaf = %(leaf)s
"""


def transact(connections: PostgresPool, steps: Callable[[], Steps[T]], *, timeout: timedelta) -> T:
    """Run all statements of *steps* in one transaction, each with *timeout* instead of the driver's deadline.

    Both the server and the client enforce the deadline, and both limits are raised. The server's limit is set
    after the session settings: behind a pooler these are set in each transaction, and include it.
    """
    has_logs = _has_logs(connections)

    def work(db: ServerConnection) -> T:
        def fetch(statement: LiteralString, **parameters: Any) -> list[Row]:
            if not has_logs:
                statement = statement.replace(_LOGS_OF_OLD, "").replace(_LOGS_OF_GONE, "")
            connections.statements += 1
            return db.fetch(connections.qualified(statement), connections.with_now(parameters))

        with _longer_reply_timeout(db, timeout), db.transaction():
            connections.apply_settings(db)
            db.execute(_SET_TIMEOUT, [str(round(timeout.total_seconds() * 1_000))])
            return run_statements(steps(), fetch)

    return connections.run(work)


@contextmanager
def _longer_reply_timeout(db: ServerConnection, timeout: timedelta) -> Iterator[None]:
    """Let the client wait for replies, including that to COMMIT, for longer than *timeout*."""
    before = db.reply_timeout_seconds
    if before is not None:
        db.reply_timeout_seconds = max(before, REPLY_TIMEOUT_FACTOR * timeout.total_seconds())
    try:
        yield
    finally:
        db.reply_timeout_seconds = before


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneStep:
    """The number of jobs that a step removed row by row and as part of a day, and whether it was the last step."""

    rows: int = 0
    of_day: int = 0
    is_last: bool = False


class DayPartitions:
    """Removes leaf partitions of finished jobs that are past their retention."""

    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections

    def old(self, older_than: timedelta) -> Sequence[LiteralString]:
        """Return the leaves to remove, oldest first: those of old days, and those that are detached already."""
        attached = old_days(self._connections, older_than)
        if attached:
            self._connections.fetch(_REGISTER, leaves=attached)
        detached = [leaf for (leaf,) in self._connections.fetch(_DETACHED)]
        return sorted({*attached, *detached})

    def step(self, leaf: LiteralString, older_than: timedelta, *, limit: int) -> PruneStep:
        """Run the next step for *leaf* in one transaction; remove up to *limit* jobs row by row."""
        return transact(self._connections, lambda: _step(leaf, older_than, limit), timeout=STATEMENT_TIMEOUT)


def _has_logs(connections: PostgresPool) -> bool:
    """Return whether the schema has log lines to remove.

    While it has not, it is read again: a process that connected before the migration must remove them, too.
    """
    if connections.schema_version < OPERATORS_VERSION:
        connections.check_schema_again()
    return connections.schema_version >= OPERATORS_VERSION


def _step(leaf: LiteralString, older_than: timedelta, limit: int) -> Steps[PruneStep]:
    rows = yield _LOCK, {"leaf": leaf}
    if not rows:
        return PruneStep(is_last=True)  # another process prunes the leaf, or has dropped it
    [(after, is_detached)] = rows
    [(upto,)] = yield _LAST.format(leaf=leaf), {"after": after, "rows": SCAN_BATCH}
    if is_detached:
        step = _drop(leaf) if upto is None else _forget(leaf, after, upto)
    elif upto is None:
        step = _detach(leaf, older_than, limit)
    else:
        step = _clear(leaf, older_than, after, upto, limit)
    return (yield from step)


def _clear(leaf: LiteralString, older_than: timedelta, after: UUID, upto: UUID, limit: int) -> Steps[PruneStep]:
    found = yield _FIND_REFERENCED.format(leaf=leaf), {"after": after, "upto": upto, "limit": limit}
    ids = [job_id for (job_id,) in found]
    removed = 0
    if ids:
        parameters = {"ids": ids, "older_than": older_than, "limit": limit}
        [(removed,)] = yield REMOVE.format(leaf=leaf, only="AND job.id = ANY (%(ids)s)"), parameters
    yield _SAVE_POSITION, {"leaf": leaf, "upto": upto if len(ids) < limit else ids[-1]}
    return PruneStep(rows=removed)


def _detach(leaf: LiteralString, older_than: timedelta, limit: int) -> Steps[PruneStep]:
    [(is_detached,)] = yield _DETACH, {"leaf": leaf}
    if is_detached:
        return PruneStep()
    # Too many of its jobs must stay; remove the others row by row.
    [(removed,)] = yield REMOVE.format(leaf=leaf, only=""), {"older_than": older_than, "limit": limit}
    return PruneStep(rows=removed, is_last=True)


def _forget(leaf: LiteralString, after: UUID, upto: UUID) -> Steps[PruneStep]:
    [(count,)] = yield _FORGET.format(leaf=leaf), {"after": after, "upto": upto}
    yield _SAVE_POSITION, {"leaf": leaf, "upto": upto}
    return PruneStep(of_day=count)


def _drop(leaf: LiteralString) -> Steps[PruneStep]:
    yield _DROP.format(leaf=leaf), {}
    yield _UNREGISTER, {"leaf": leaf}
    return PruneStep(is_last=True)


def old_days(connections: PostgresPool, older_than: timedelta) -> list[LiteralString]:
    """Return the attached leaves of days that ended *older_than* ago, oldest first."""
    rows = connections.fetch(LEAVES)
    return sorted(name for name, now in rows if _is_day(name) and _end_of(name) <= now - older_than)


def _is_day(name: str) -> bool:
    return name.removeprefix(_PREFIX).isdigit()


def _end_of(name: str) -> datetime:
    return datetime.combine(day_of(name), time(tzinfo=UTC)) + timedelta(days=1)


def day_of(name: str) -> date:
    """Return the day of a leaf."""
    return datetime.strptime(name.removeprefix(_PREFIX), "%Y%m%d").replace(tzinfo=UTC).date()
