"""Removing what is old: whole days at once, where nothing else hangs on their jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.errors import LockNotAvailable, UndefinedTable

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres.rows import NOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.address import ServerConnection
    from taskharbor.drivers.postgres.connection import Connections, Row

DAYS_AHEAD: Final = 7
_PREFIX: Final = "th_jobs_finished_"

# Jobs that ended before a moment, and what must go with them, in one bite. A job whose
# event is still to be published stays.
_REMOVE: Final[LiteralString] = f"""
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
_ENTANGLED: Final[LiteralString] = """
           AND (
               job.idempotency_key IS NOT NULL
               OR EXISTS (SELECT FROM th_attempts AS attempt WHERE attempt.job_id = job.id)
               OR EXISTS (SELECT FROM th_outbox AS event WHERE event.job_id = job.id)
           )
"""
_OLDEST_FIRST: Final[LiteralString] = "ORDER BY job.completed_at"  # a day has no index for it, and goes as a whole
_FROM_DEAD: Final[LiteralString] = _REMOVE.format(leaf="th_jobs_dead", only=_OLDEST_FIRST)
_OF_THE_DEAD: Final[LiteralString] = _REMOVE.format(leaf="th_jobs_dead", only="AND job.id = ANY (%(ids)s)")
_FROM_DEFAULT: Final[LiteralString] = _REMOVE.format(leaf="th_jobs_finished_default", only=_OLDEST_FIRST)
_UNHURRIED: Final[LiteralString] = "SET LOCAL statement_timeout = '10min'"


class Retention:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        if job_ids is None:
            return self._remove(_FROM_DEAD, older_than, limit)
        return self._remove(_OF_THE_DEAD, older_than, limit, ids=list(job_ids))

    def prune(self, *, older_than: timedelta, limit: int) -> int:
        """Drop the days that are over; first the jobs go one by one on which something else hangs."""
        removed = 0
        try:
            for leaf in self._old_days(older_than):
                removed += self._remove(_REMOVE.format(leaf=leaf, only=_ENTANGLED), older_than, limit - removed)
                if removed < limit:
                    removed += self._drop(leaf, older_than, limit - removed)
        except StoreUnavailable as error:
            # Somebody reads a day, or has dropped it meanwhile: whoever prunes next finds what is left. It is
            # not waited for a second time, because whoever ends a job waits with us.
            if not isinstance(error.__cause__, LockNotAvailable | UndefinedTable):
                raise
        return removed + self._remove(_FROM_DEFAULT, older_than, limit - removed)

    def _remove(self, statement: LiteralString, older_than: timedelta, limit: int, **more: Any) -> int:
        if limit <= 0:
            return 0
        [(removed,)] = self._fetch(statement, older_than=older_than, limit=limit, **more)
        count: int = removed
        return count

    def _fetch(self, statement: LiteralString, **asked: Any) -> list[Row]:
        """Run a statement that has to look at all jobs of a day: no deadline of a caller who waits for a job is its."""
        query = self._connections.named(statement)

        def work(db: ServerConnection) -> list[Row]:
            with db.transaction():
                db.execute(_UNHURRIED)
                return self._connections.execute(db, query, asked)

        return self._connections.run(work)

    _LEAVES: LiteralString = f"""
        SELECT leaf.relname, {NOW}
          FROM pg_inherits
          JOIN pg_class AS leaf ON leaf.oid = inhrelid
         WHERE inhparent = 'th_jobs_finished'::regclass
    """

    def _old_days(self, older_than: timedelta) -> list[LiteralString]:
        rows = self._connections.fetch(self._LEAVES)
        return sorted(name for name, now in rows if _is_day(name) and _end_of(name) <= now - older_than)

    _DROP: LiteralString = f"""
        SELECT th_drop_day(%(leaf)s, {NOW})
    """

    def _drop(self, leaf: LiteralString, older_than: timedelta, limit: int) -> int:
        """Drop *leaf*. Where a job in it must stay, the others are removed one by one."""
        [(dropped,)] = self._fetch(self._DROP, leaf=leaf)
        return self._remove(_REMOVE.format(leaf=leaf, only=""), older_than, limit) if dropped is None else dropped

    _MAKE: LiteralString = f"""
        SELECT th_make_days(({NOW} AT TIME ZONE 'UTC')::date, %(days)s)
    """

    def make_days(self) -> None:
        """Make the leaves of today and of the days to come, where they are missing."""
        try:
            self._connections.fetch(self._MAKE, days=DAYS_AHEAD + 1)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, LockNotAvailable):  # somebody reads; there are seven days to try again
                raise


def _is_day(name: str) -> bool:
    return name.removeprefix(_PREFIX).isdigit()


def _end_of(name: str) -> datetime:
    day = datetime.strptime(name.removeprefix(_PREFIX), "%Y%m%d").replace(tzinfo=UTC)
    return day + timedelta(days=1)
