"""Removing jobs that have ended, for good: a look at how many, a yes, and then in small bites."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.cli.bulk import preview
from taskharbor.cli.confirming import confirm
from taskharbor.cli.operating import me
from taskharbor.cli.output import say, show
from taskharbor.cli.progress import Progress
from taskharbor.cli.records import record
from taskharbor.cli.refusals import LeftAlone
from taskharbor.cli.times import span
from taskharbor.core.answers import Unpublished
from taskharbor.core.spreading import spread
from taskharbor.core.states import Status
from taskharbor.janitor import MINUTES_KEPT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver

BITE: Final = 500
STAYED: Final = (
    "were left alone: they are dead no more, or their event is not published yet (--unpublished gives it up)"
)


class Purge:
    """Removes dead letters that ended longer ago than *older_than*; with *unpublished*, their events are given up."""

    def __init__(self, driver: Driver, *, older_than: timedelta | None, unpublished: bool) -> None:
        self._driver = driver
        self._older_than = older_than or timedelta(0)
        self._gives_up = unpublished

    def run(self, found: Sequence[JobId], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Show what was found; unless it is a dry run, ask, remove it, and tell what became of it."""
        preview(self._driver, found)
        removed = 0
        if found and not dry_run:
            confirm(f"remove {len(found):,} dead letters for good", yes=yes)
            removed = self._purge(found)
        facts = {"matched": len(found), "removed": removed, "dry_run": dry_run}
        show(facts, as_json=as_json, plain=f"removed {removed} of {len(found)}")
        if not dry_run and (left := len(found) - removed):
            say(f"{left:,} {STAYED}")
            raise LeftAlone(left, len(found))

    def _purge(self, found: Sequence[JobId]) -> int:
        removed = 0
        with Progress("removed", len(found)) as progress:
            try:
                for batch, _ in spread(found, None):
                    if self._gives_up:
                        self._give_up_events(batch)
                    removed += self._driver.upkeep.purge(older_than=self._older_than, limit=len(batch), job_ids=batch)
                    progress.advance(len(batch))
            finally:
                if removed:
                    record(self._driver, "dead-letters.purge", f"{removed} jobs", older_than=span(self._older_than))
        return removed

    def _give_up_events(self, batch: Sequence[JobId]) -> None:
        waiting = [row.event.event_id for row in self._driver.inspector.outbox(batch) if not row.is_done]
        why = f"purged by {me()}"
        self._driver.upkeep.outbox_done([Unpublished(event_id, why, again_in=None) for event_id in waiting])


def prune_finished(driver: Driver, older_than: timedelta, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove jobs that succeeded or were canceled longer ago than *older_than*."""
    driver.upkeep.roll_up(keep=MINUTES_KEPT)  # the count comes from aggregates, which may be old where nobody works
    found = _ended_before(driver, driver.inspector.now() - older_than)
    what = f"remove about {found:,} finished jobs that ended more than {span(older_than)} ago"
    removed = 0
    if dry_run:
        say(f"would {what}")
    elif found:
        confirm(what, yes=yes)
        removed = _prune(driver, older_than, found)
    show({"found": found, "removed": removed, "dry_run": dry_run}, as_json=as_json, plain=f"removed {removed}")


def _prune(driver: Driver, older_than: timedelta, found: int) -> int:
    with Progress("removed", found) as progress:
        try:
            while (count := driver.upkeep.prune(older_than=older_than, limit=BITE)) > 0:
                progress.advance(count)
        finally:
            if progress.done:
                record(driver, "jobs.prune", f"{progress.done} jobs", older_than=span(older_than))
    return progress.done


def _ended_before(driver: Driver, moment: datetime) -> int:
    """Return about how many finished jobs ended before *moment*, from the aggregates: nothing is counted one by one."""
    kinds = (Status.SUCCEEDED, Status.CANCELED)
    held = sum(queue.counts[kind] for queue in driver.inspector.queues() for kind in kinds)
    since = sum(each.count for each in driver.inspector.finished(since=moment) if each.status in kinds)
    return max(held - since, 0)
