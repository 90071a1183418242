"""Removing jobs that have ended, for good: a look at how many, a yes, and then in small bites."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.cli.bulk import preview
from taskharbor.cli.confirming import confirm
from taskharbor.cli.operating import current_actor
from taskharbor.cli.output import echo_data, echo_status
from taskharbor.cli.progress import ProgressLine
from taskharbor.cli.records import record_audit
from taskharbor.cli.refusals import PartlyRefused
from taskharbor.cli.times import span
from taskharbor.core.answers import Kept
from taskharbor.core.spreading import paced_batches
from taskharbor.core.states import Status
from taskharbor.deadletters import close_unpublished, give_up_events, purge
from taskharbor.janitor import STATS_RETENTION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver

PRUNE_BATCH: Final = 500
COUNTED: Final = 10_000
"""How many jobs that are kept by an event are counted; more are as many to a person."""
WORDS: Final = {
    Kept.NOT_FOUND: "not found",
    Kept.NOT_DEAD: "no longer dead",
    Kept.TOO_YOUNG: "ended too recently (finished jobs may be kept for up to a day longer)",
    Kept.UNPUBLISHED: "dead-letter event not published yet",
    Kept.IN_USE: "locked by another transaction; run the command again",
}


class BulkPurge:
    """Removes dead letters that ended longer ago than *older_than*; with *unpublished*, their events are given up."""

    def __init__(self, driver: Driver, *, older_than: timedelta | None, unpublished: bool) -> None:
        self._driver = driver
        self._older_than = older_than or timedelta(0)
        self._gives_up = unpublished

    def run(self, found: Sequence[JobId], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Show what was found; unless it is a dry run, ask, remove it, and tell what became of it."""
        preview(self._driver, found)
        removed, kept = 0, Counter[Kept]()
        if found and not dry_run:
            confirm(f"remove {len(found):,} dead letters for good", yes=yes)
            removed, kept = self._purge(found)
        facts = {"matched": len(found), "removed": removed, "dry_run": dry_run, "kept": kept}
        echo_data(facts, as_json=as_json, plain=f"removed {removed} of {len(found)}")
        if kept:
            echo_status(_why_kept(self._driver, kept))
            raise PartlyRefused(kept.total(), len(found))

    def _purge(self, found: Sequence[JobId]) -> tuple[int, Counter[Kept]]:
        removed, kept = 0, Counter[Kept]()
        give_up = f"purged by {current_actor()}" if self._gives_up else None
        with ProgressLine("removed", len(found)) as progress:
            try:
                for batch, _ in paced_batches(found, None):
                    answer = purge(self._driver, batch, older_than=self._older_than, give_up=give_up)
                    removed += answer.count
                    kept.update(answer.kept)
                    progress.advance(len(batch))
            finally:
                if removed:
                    record_audit(
                        self._driver, "dead-letters.purge", f"{removed} jobs", older_than=span(self._older_than)
                    )
        return removed, kept


def _why_kept(driver: Driver, kept: Mapping[Kept, int]) -> str:
    """Say how many jobs were kept, why, and how to remove them all the same."""
    parts = [f"{kept[reason]:,} kept: {words}" for reason, words in WORDS.items() if kept.get(reason)]
    if not kept.get(Kept.UNPUBLISHED):
        return "; ".join(parts)
    seen_at = driver.inspector.publisher_seen_at()
    seen = "" if seen_at is None else f"a publisher was last seen at {seen_at:%Y-%m-%d %H:%M} UTC; "
    return f"{'; '.join(parts)} ({seen}wait for it, or pass --unpublished to give the events up)"


def prune_finished(
    driver: Driver, older_than: timedelta, *, unpublished: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove jobs that succeeded or were canceled longer ago than *older_than*; with *unpublished*, give up events."""
    driver.maintenance.roll_up(
        keep=STATS_RETENTION
    )  # the count comes from aggregates, which are old if no worker or janitor runs
    found = _ended_before(driver, driver.inspector.now() - older_than)
    what = f"remove about {found:,} finished jobs that ended more than {span(older_than)} ago"
    removed, kept = 0, Counter[Kept]()
    if dry_run:
        echo_status(f"would {what}")
    elif found:
        confirm(what, yes=yes)
        _close_events(driver, older_than, give_up=f"pruned by {current_actor()}" if unpublished else None)
        removed = _prune(driver, older_than, found)
        kept[Kept.UNPUBLISHED] = len(driver.inspector.kept_by_events(older_than=older_than, limit=COUNTED))
        kept[Kept.TOO_YOUNG] = max(0, found - removed - kept[Kept.UNPUBLISHED])
    kept = +kept
    plain = "; ".join([f"removed {removed}", *([_why_kept(driver, kept)] if kept else [])])
    echo_data({"found": found, "removed": removed, "dry_run": dry_run, "kept": kept}, as_json=as_json, plain=plain)


def _close_events(driver: Driver, older_than: timedelta, *, give_up: str | None) -> None:
    """Close the events that keep finished jobs, if no process will publish them, or if they are to be given up."""
    while held := driver.inspector.kept_by_events(older_than=older_than, limit=PRUNE_BATCH):
        closed = close_unpublished(driver, older_than=timedelta(0), limit=COUNTED, job_ids=held)
        if give_up is not None:
            give_up_events(driver, held, give_up)
        elif not closed:
            return


def _prune(driver: Driver, older_than: timedelta, found: int) -> int:
    with ProgressLine("removed", found) as progress:
        try:
            while (count := driver.maintenance.prune(older_than=older_than, limit=PRUNE_BATCH)) > 0:
                progress.advance(count)
        finally:
            if progress.done:
                record_audit(driver, "jobs.prune", f"{progress.done} jobs", older_than=span(older_than))
    return progress.done


def _ended_before(driver: Driver, moment: datetime) -> int:
    """Return about how many finished jobs ended before *moment*, from the aggregates: nothing is counted one by one."""
    kinds = (Status.SUCCEEDED, Status.CANCELED)
    held = sum(queue.counts[kind] for queue in driver.inspector.queues() for kind in kinds)
    since = sum(each.count for each in driver.inspector.finished_counts(since=moment) if each.status in kinds)
    return max(held - since, 0)
