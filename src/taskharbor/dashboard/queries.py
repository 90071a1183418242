"""Reads for pages: cached for a second, one at a time for each key, in two threads of their own, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from taskharbor.api.problems import HttpProblem
from taskharbor.api.store import StoreThreads
from taskharbor.core.statistics import MINUTE, GroupBy, Metric, SeriesQuery
from taskharbor.dashboard.attention import Facts, read_facts
from taskharbor.doctor.examination import count_pending_migrations
from taskharbor.queues import counted_at
from taskharbor.statistics import MAX_VERSIONS, read_groups

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable, Hashable, Mapping
    from datetime import datetime, timedelta

    from taskharbor.api.store import StoreGateway
    from taskharbor.core.model import Schedule, WorkerRecord
    from taskharbor.core.results import QueueStats
    from taskharbor.core.statistics import AppVersion, SeriesPoint
    from taskharbor.drivers.base import Inspector
    from taskharbor.views import View

R = TypeVar("R")

CACHE_SECONDS: Final = 1.0
THREADS: Final = 2
FACTS_SECONDS: Final = 2.0
"""The facts of *Needs attention* take a dozen statements; they are read half as often."""
SCHEMA_SECONDS: Final = 30.0
DEADLINE_SECONDS: Final = 2.0
MAX_CACHED: Final = 256
_TOO_SLOW: Final = (
    "the store did not answer within 2 s; choose one queue, one type or a shorter time, or try again later"
)


class Reads:
    """Reads the store for pages.

    Aggregates are cached for a second and read once for all callers. `fresh` reads what must be current, such as jobs.
    """

    def __init__(
        self,
        store: StoreGateway,
        *,
        seconds: float = CACHE_SECONDS,
        changed_at: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._store = store
        self._changed_at = changed_at
        self._seconds = seconds
        self._threads = StoreThreads(THREADS)
        self._cached: OrderedDict[Hashable, tuple[float, Task[Any]]] = OrderedDict()

    async def fresh(self, read: Callable[[Inspector], R]) -> R:
        """Return the result of *read* from the store, not cached."""
        return await _before_deadline(asyncio.ensure_future(self._threads(self._call, read)))

    async def cached(
        self,
        key: Hashable,
        read: Callable[[Inspector], R],
        *,
        seconds: float | None = None,
        follows_changes: bool = True,
    ) -> R:
        """Return the result of *read*, which may be *seconds* old. All callers with the same *key* share one read.

        One that *follows_changes* is not used after a change of jobs, queues or workers, however new it is.
        """
        began, task = self._cached.get(key, (0.0, None))
        now = time.monotonic()
        # A page that learned of a change must not get what was read before it: it would not ask again.
        lasts = self._seconds if seconds is None else seconds
        is_old = task is not None and task.done() and (now >= began + lasts or _has_failed(task))
        is_outdated = follows_changes and began <= self._changed_at()
        if task is None or is_old or is_outdated:
            task = asyncio.ensure_future(self._threads(self._call, read))
            task.add_done_callback(_read_exception)
            self._cached[key] = (now, task)
        self._cached.move_to_end(key)
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        result: R = await _before_deadline(task)
        return result

    def forget(self) -> None:
        """Drop all cached results: the user has changed something, and must see it."""
        self._cached.clear()

    def _call(self, read: Callable[[Inspector], R]) -> R:
        return read(self._store.inspector)

    async def now(self) -> datetime:
        """Return the store's time."""
        return await self._threads(self._store.clock.now)

    async def facts(self) -> Facts:
        """Return what the rules of *Needs attention* look at."""
        return await self.cached("facts", read_facts, seconds=FACTS_SECONDS)

    async def queues(self) -> list[QueueStats]:
        """Return all queues, by name."""
        return await self.cached("queues", lambda inspector: inspector.queues())

    async def workers(self) -> list[WorkerRecord]:
        """Return the workers that are not past ones, by id."""
        return await self.cached("workers", lambda inspector: inspector.workers())

    async def schedules(self) -> Mapping[str, Schedule]:
        """Return all schedules, by name."""
        return await self.cached("schedules", lambda inspector: inspector.schedules())

    async def rolled_up_at(self) -> datetime | None:
        """Return when counts and statistics were last updated; None if no process has ever done that."""
        return counted_at(await self.cached("duties", lambda inspector: inspector.duties()))

    async def pending_migrations(self) -> int:
        """Return how many migrations the store lacks. It is checked twice a minute."""
        url = self._store.url
        if url is None:
            return 0
        return await self.cached(
            "migrations", lambda _: count_pending_migrations(url), seconds=SCHEMA_SECONDS, follows_changes=False
        )

    async def versions(self) -> list[AppVersion]:
        """Return the versions of the application, the last one to appear first."""
        return await self.cached("versions", lambda inspector: inspector.versions(limit=MAX_VERSIONS))

    async def groups(self, *, limit: int, queue: str | None = None) -> list[View]:
        """Return groups of dead letters with their deaths by hour, the largest first."""
        return await self.cached(("groups", limit, queue), partial(read_groups, limit=limit, queue=queue))

    async def series(
        self,
        metric: Metric,
        *,
        since: datetime,
        until: datetime,
        step: timedelta = MINUTE,
        by: GroupBy = GroupBy.NONE,
        queue: str | None = None,
    ) -> list[SeriesPoint]:
        """Return a series. *since* and *until* should be whole steps, so that callers share one read."""
        query = SeriesQuery(metric=metric, since=since, until=until, step=step, by=by, queue=queue)
        return await self.cached(query, lambda inspector: inspector.series(query))


async def _before_deadline(task: asyncio.Future[R]) -> R:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await asyncio.shield(task)  # a caller that leaves must not cancel the read of the others
    except TimeoutError:
        raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "read-too-slow", _TOO_SLOW) from None


def _has_failed(task: Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _read_exception(task: Task[Any]) -> None:
    """Mark the exception as read: if all callers have left, it must not be logged as never retrieved."""
    if not task.cancelled():
        task.exception()
