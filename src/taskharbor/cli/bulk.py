"""Requeue or purge dead letters that were given by their ids, and prune finished jobs."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.cli.errors import PartlyRefused
from taskharbor.cli.options import confirm
from taskharbor.cli.render import ProgressLine, echo_data, echo_status, first_line, printable, span
from taskharbor.cli.store import current_actor, record_audit
from taskharbor.core.errors import JobNotFound
from taskharbor.core.ids import new_token
from taskharbor.core.results import Kept, Transitioned
from taskharbor.core.states import Status
from taskharbor.core.text import plural
from taskharbor.dead_letters import paced_batches
from taskharbor.janitor import STATS_RETENTION
from taskharbor.outbox import close_unpublished, give_up_events, purge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.ids import JobId
    from taskharbor.drivers.base import Driver

MAX_PREVIEW: Final = 5
PRUNE_BATCH: Final = 500
MAX_COUNTED: Final = 10_000
"""The maximum number of jobs kept by an event that are counted."""
KEPT_REASONS: Final = {
    Kept.NOT_FOUND: "not found",
    Kept.NOT_DEAD: "no longer dead",
    Kept.TOO_YOUNG: "ended too recently (finished jobs may be kept for up to a day longer)",
    Kept.UNPUBLISHED: "dead-letter event not published yet",
    Kept.IN_USE: "locked by another transaction; run the command again",
}


def preview(driver: Driver, found: Sequence[JobId]) -> None:
    """Print the first few of the found jobs and the number of the others."""
    for job in driver.inspector.summaries(found[:MAX_PREVIEW]).values():
        echo_status(f"  {job.id}  {job.queue}  {job.type}  {printable(first_line(job.last_error or ''))}")
    if len(found) > MAX_PREVIEW:
        echo_status(f"  and {len(found) - MAX_PREVIEW:,} more")


class BulkRequeue:
    """Requeues dead letters; with *rate*, that many of them become due per second."""

    def __init__(self, driver: Driver, *, budget: int | None, reason: str, rate: float | None) -> None:
        self._driver = driver
        self._budget = budget
        self._reason = reason
        self._rate = rate
        self._by = current_actor()

    def run(self, found: Sequence[JobId], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Print a preview; unless it is a dry run, ask for confirmation, requeue, and print the result."""
        preview(self._driver, found)
        refused: list[TaskHarborError] = []
        if found and not dry_run:
            confirm(f"requeue {plural(len(found), 'dead letter')}", yes=yes or len(found) == 1)
            refused = self._requeue(found)
        done = 0 if dry_run else len(found) - len(refused)
        result = {
            "matched": len(found),
            "requeued": done,
            "dry_run": dry_run,
            "refused": list(map(_refusal, refused)),
            "operation": None,
        }
        echo_data(result, as_json=as_json, plain=f"requeued {done} of {len(found)}")
        if refused:
            raise PartlyRefused(len(refused), len(found))

    def _requeue(self, found: Sequence[JobId]) -> list[TaskHarborError]:
        """Requeue all of them, and return the errors of those that could not be."""
        refused: list[TaskHarborError] = []
        with ProgressLine("requeued", len(found)) as progress:
            try:
                for batch, delay in paced_batches(found, self._rate):
                    refused += self._requeue_batch(batch, delay)
                    progress.advance(len(batch))
            finally:
                # Record the finished part even if a later batch failed.
                if done := progress.done - len(refused):
                    record_audit(self._driver, "dead-letters.requeue", f"{done} jobs", why=self._reason)
        return refused

    def _requeue_batch(self, batch: Sequence[JobId], delay: timedelta) -> list[TaskHarborError]:
        results = self._driver.requeue(
            batch, token=new_token(), budget=self._budget, by=self._by, reason=self._reason, delay=delay
        )
        errors = [result for result in results if not isinstance(result, Transitioned)]
        for error in errors:
            echo_status(str(error))
        return list(errors)


def _refusal(error: TaskHarborError) -> dict[str, str]:
    code = "job-not-found" if isinstance(error, JobNotFound) else "illegal-transition"
    return {"code": code, "message": str(error)}


class BulkPurge:
    """Removes dead letters that died longer ago than *older_than*; with *unpublished*, also unpublished events."""

    def __init__(self, driver: Driver, *, older_than: timedelta | None, unpublished: bool) -> None:
        self._driver = driver
        self._older_than = older_than or timedelta(0)
        self._gives_up = unpublished

    def run(self, found: Sequence[JobId], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Print a preview; unless it is a dry run, ask for confirmation, remove, and print the result."""
        preview(self._driver, found)
        removed, kept = 0, Counter[Kept]()
        if found and not dry_run:
            confirm(f"permanently remove {plural(len(found), 'dead letter')}", yes=yes)
            removed, kept = self._purge(found)
        result = {"matched": len(found), "removed": removed, "dry_run": dry_run, "kept": kept, "operation": None}
        echo_data(result, as_json=as_json, plain=f"removed {removed} of {len(found)}")
        if kept:
            echo_status(_why_kept(self._driver, kept))
            raise PartlyRefused(kept.total(), len(found))

    def _purge(self, found: Sequence[JobId]) -> tuple[int, Counter[Kept]]:
        removed, kept = 0, Counter[Kept]()
        give_up = f"purged by {current_actor()}" if self._gives_up else None
        with ProgressLine("removed", len(found)) as progress:
            try:
                for batch, _ in paced_batches(found, None):
                    result = purge(self._driver, batch, older_than=self._older_than, give_up=give_up)
                    removed += result.count
                    kept.update(result.kept)
                    progress.advance(len(batch))
            finally:
                if removed:
                    record_audit(
                        self._driver, "dead-letters.purge", f"{removed} jobs", older_than=span(self._older_than)
                    )
        return removed, kept


def _why_kept(driver: Driver, kept: Mapping[Kept, int]) -> str:
    """Return how many jobs were kept, for which reasons, and how to remove them anyway."""
    parts = [f"{kept[reason]:,} kept: {text}" for reason, text in KEPT_REASONS.items() if kept.get(reason)]
    if not kept.get(Kept.UNPUBLISHED):
        return "; ".join(parts)
    seen_at = driver.inspector.publisher_seen_at()
    seen = "" if seen_at is None else f"a publisher was last seen at {seen_at:%Y-%m-%d %H:%M} UTC; "
    return f"{'; '.join(parts)} ({seen}wait for it, or pass --unpublished to give the events up)"


def prune_finished(
    driver: Driver, older_than: timedelta, *, unpublished: bool, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove jobs that succeeded or were canceled longer ago than *older_than*; with *unpublished*, give up events."""
    # The count comes from aggregates, which are out of date if no worker or janitor runs.
    driver.maintenance.roll_up(keep=STATS_RETENTION)
    found = _ended_before(driver, driver.inspector.now() - older_than)
    what = f"remove about {found:,} finished jobs that ended more than {span(older_than)} ago"
    removed, kept = 0, Counter[Kept]()
    if dry_run:
        echo_status(f"would {what}")
    elif found:
        confirm(what, yes=yes)
        _close_events(driver, older_than, give_up=f"pruned by {current_actor()}" if unpublished else None)
        removed = _prune(driver, older_than, found)
        kept[Kept.UNPUBLISHED] = len(driver.inspector.kept_by_events(older_than=older_than, limit=MAX_COUNTED))
        kept[Kept.TOO_YOUNG] = max(0, found - removed - kept[Kept.UNPUBLISHED])
    kept = +kept
    plain = "; ".join([f"removed {removed}", *([_why_kept(driver, kept)] if kept else [])])
    echo_data({"found": found, "removed": removed, "dry_run": dry_run, "kept": kept}, as_json=as_json, plain=plain)


def _close_events(driver: Driver, older_than: timedelta, *, give_up: str | None) -> None:
    """Close the events that keep finished jobs if no process publishes them; with *give_up*, close all of them."""
    while held := driver.inspector.kept_by_events(older_than=older_than, limit=PRUNE_BATCH):
        closed = close_unpublished(driver, older_than=timedelta(0), limit=MAX_COUNTED, job_ids=held)
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


def _ended_before(driver: Driver, until: datetime) -> int:
    """Return an estimate, from aggregates, of how many finished jobs ended before *until*."""
    statuses = (Status.SUCCEEDED, Status.CANCELED)
    held = sum(queue.counts[status] for queue in driver.inspector.queues() for status in statuses)
    since = sum(each.count for each in driver.inspector.finished_counts(since=until) if each.status in statuses)
    return max(held - since, 0)
