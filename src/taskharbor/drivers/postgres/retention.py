"""Retention: removes finished jobs by whole days, and dead letters and the default partition row by row."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg.errors import LockNotAvailable, UndefinedTable

from taskharbor.core.errors import StoreUnavailable
from taskharbor.drivers.postgres import partitions
from taskharbor.drivers.postgres.partitions import REMOVE, STATEMENT_TIMEOUT, DayPartitions
from taskharbor.drivers.postgres.rows import NOW

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.postgres.pool import PostgresPool, Row, Steps

DAYS_AHEAD: Final = 7

_OLDEST_FIRST: Final[LiteralString] = "ORDER BY job.completed_at"
_REMOVE_DEAD: Final[LiteralString] = REMOVE.format(leaf="th_jobs_dead", only=_OLDEST_FIRST)
REMOVE_DEAD_BY_ID: Final[LiteralString] = REMOVE.format(leaf="th_jobs_dead", only="AND job.id = ANY (%(ids)s)")
_REMOVE_DEFAULT: Final[LiteralString] = REMOVE.format(leaf="th_jobs_finished_default", only=_OLDEST_FIRST)


class Retention:
    def __init__(self, connections: PostgresPool) -> None:
        self._connections = connections
        self._days = DayPartitions(connections)

    def purge(self, *, older_than: timedelta, limit: int, job_ids: Sequence[JobId] | None = None) -> int:
        if job_ids is None:
            return self._remove(_REMOVE_DEAD, older_than, limit)
        return self._remove(REMOVE_DEAD_BY_ID, older_than, limit, ids=list(job_ids))

    def prune(self, *, older_than: timedelta, limit: int, within: timedelta | None = None) -> int:
        """Remove old days, then old jobs of the default partition."""
        stop_at = math.inf if within is None else time.monotonic() + within.total_seconds()
        done = PruneBudget(limit)
        try:
            self._prune_days(older_than, done, stop_at)
        except StoreUnavailable as error:
            # Another session reads the day or has dropped it; the next call continues. Do not wait for the lock again:
            # sessions that finish a job would wait behind this one.
            if not isinstance(error.__cause__, LockNotAvailable | UndefinedTable):
                raise
        if not done.is_full and (done.removed == 0 or time.monotonic() < stop_at):
            done.rows += self._remove(_REMOVE_DEFAULT, older_than, done.left)
        return done.removed

    def _prune_days(self, older_than: timedelta, done: PruneBudget, stop_at: float) -> None:
        for leaf in self._days.old(older_than):
            is_last = False
            while not is_last:
                if done.is_full:
                    return
                step = self._days.step(leaf, older_than, limit=done.left)
                done.rows += step.rows
                done.of_days += step.of_day
                is_last = step.is_last
                if time.monotonic() >= stop_at:
                    return

    def _remove(self, statement: LiteralString, older_than: timedelta, limit: int, **parameters: Any) -> int:
        if limit <= 0:
            return 0
        [(removed,)] = self._fetch(statement, older_than=older_than, limit=limit, **parameters)
        count: int = removed
        return count

    def _fetch(self, statement: LiteralString, **parameters: Any) -> list[Row]:
        def fetch() -> Steps[list[Row]]:
            return (yield statement, parameters)

        return partitions.transact(self._connections, fetch, timeout=STATEMENT_TIMEOUT)

    _MAKE: LiteralString = f"""
        SELECT th_make_days(({NOW} AT TIME ZONE 'UTC')::date, %(days)s)
    """

    def make_days(self) -> None:
        """Create the missing partitions of today and the coming days."""
        try:
            self._connections.fetch(self._MAKE, days=DAYS_AHEAD + 1)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, LockNotAvailable):  # the table is being read; retry later
                raise


class PruneBudget:
    """Counts the jobs that a call of `prune` removed row by row, up to a limit, and by whole days."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.rows = self.of_days = 0

    @property
    def left(self) -> int:
        return self._limit - self.rows

    @property
    def is_full(self) -> bool:
        return self.left <= 0

    @property
    def removed(self) -> int:
        return self.rows + self.of_days
