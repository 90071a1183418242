"""Removing jobs that have ended, for good: a look at how many, a yes, and then in small bites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from taskharbor.cli.confirming import confirm
from taskharbor.cli.output import say, show
from taskharbor.cli.pages import all_pages
from taskharbor.cli.progress import Progress
from taskharbor.cli.records import record
from taskharbor.cli.times import span
from taskharbor.core.answers import JobFilter
from taskharbor.core.states import Status
from taskharbor.janitor import MINUTES_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from taskharbor.drivers.base import Driver

BITE: Final = 500


def prune_finished(driver: Driver, older_than: timedelta, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove jobs that succeeded or were canceled longer ago than *older_than*."""
    driver.upkeep.roll_up(keep=MINUTES_KEPT)  # the count comes from aggregates, which may be old where nobody works
    found = _ended_before(driver, driver.inspector.now() - older_than)
    removal = Removal(driver, "prune", "finished jobs", older_than)
    removal.run(found, driver.upkeep.prune, yes=yes, dry_run=dry_run, as_json=as_json)


def purge_dead(driver: Driver, older_than: timedelta, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove dead letters that died longer ago than *older_than*."""
    found = _dead_before(driver, driver.inspector.now() - older_than)
    removal = Removal(driver, "dead-letters.purge", "dead letters", older_than)
    removal.run(found, driver.upkeep.purge, yes=yes, dry_run=dry_run, as_json=as_json)


class Removal:
    def __init__(self, driver: Driver, action: str, what: str, older_than: timedelta) -> None:
        self._driver, self._action, self._what = driver, action, what
        self._older_than = older_than

    def run(self, found: int, remove: Callable[..., int], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Tell of what was *found*; unless it is a dry run, ask, and *remove* until nothing is left to."""
        what = f"remove about {found:,} {self._what} that ended more than {span(self._older_than)} ago"
        removed = 0
        if dry_run:
            say(f"would {what}")
        elif found:
            confirm(what, yes=yes)
            removed = self._remove(found, remove)
            if removed < found:
                say(f"{found - removed:,} stay for now: their event is not published yet, or their day is not over")
        facts = {"found": found, "removed": removed, "dry_run": dry_run}
        show(facts, as_json=as_json, plain=f"removed {removed}")

    def _remove(self, found: int, remove: Callable[..., int]) -> int:
        try:
            with Progress("removed", found) as progress:
                while (count := remove(older_than=self._older_than, limit=BITE)) > 0:
                    progress.advance(count)
        finally:
            if progress.done:
                record(self._driver, self._action, f"{progress.done} jobs", older_than=span(self._older_than))
        return progress.done


def _ended_before(driver: Driver, moment: datetime) -> int:
    """Return about how many finished jobs ended before *moment*, from the aggregates: nothing is counted one by one."""
    kinds = (Status.SUCCEEDED, Status.CANCELED)
    held = sum(queue.counts[kind] for queue in driver.inspector.queues() for kind in kinds)
    since = sum(each.count for each in driver.inspector.finished(since=moment) if each.status in kinds)
    return max(held - since, 0)


def _dead_before(driver: Driver, moment: datetime) -> int:
    """Return how many dead letters died before *moment*; people look after them, so there are not many."""
    wanted = JobFilter(statuses=frozenset({Status.DEAD}))
    jobs = (job for page in all_pages(driver, wanted) for job in page.jobs)
    return sum(job.dead_at is not None and job.dead_at < moment for job in jobs)
