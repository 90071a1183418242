"""Many dead letters at once: which are meant, a look at them, a yes, and then a new life for all of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.confirming import confirm
from taskharbor.cli.operating import current_actor, job_ids_of
from taskharbor.cli.output import echo_data, echo_status
from taskharbor.cli.pages import all_pages
from taskharbor.cli.progress import ProgressLine
from taskharbor.cli.records import record_audit
from taskharbor.cli.refusals import PartlyRefused
from taskharbor.cli.shown import first_line
from taskharbor.cli.tables import printable
from taskharbor.cli.values import ConflictingOptions
from taskharbor.core.answers import Transitioned
from taskharbor.core.errors import JobNotFound
from taskharbor.core.ids import new_token
from taskharbor.core.retry import DEFAULT_MAX_ATTEMPTS
from taskharbor.core.spreading import paced_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskharbor.core.answers import JobFilter
    from taskharbor.core.errors import TaskHarborError
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import JobSummary
    from taskharbor.drivers.base import Driver

SAMPLE: Final = 5


class NoSelection(click.UsageError):
    """Neither ids nor a filter: that would mean every dead letter there is."""

    def __init__(self) -> None:
        super().__init__("name jobs or give a filter; --all means every dead letter there is")


def select_dead_letters(
    driver: Driver,
    texts: Sequence[str],
    wanted: JobFilter,
    *,
    everything: bool,
    is_meant: Callable[[JobSummary], bool] = lambda _: True,
) -> list[JobId]:
    """Return the ids that a command is about: those named, or those that are like *wanted* now, and meant."""
    is_filtered = any((wanted.queue, wanted.type, wanted.fingerprint))
    if texts and (is_filtered or everything):
        raise ConflictingOptions("ids", "filters")
    if texts:
        return job_ids_of(driver, texts)
    if not is_filtered and not everything:
        raise NoSelection
    with ProgressLine("looking", None) as progress:
        return [*_found(driver, wanted, is_meant, progress)][::-1]  # whoever died first comes first


def died_before(driver: Driver, older_than: timedelta | None) -> Callable[[JobSummary], bool]:
    """Return what tells of a dead letter whether it died longer ago than *older_than*."""
    moment = driver.inspector.now() - (older_than or timedelta(0))
    return lambda job: job.dead_at is not None and job.dead_at <= moment


def preview(driver: Driver, found: Sequence[JobId]) -> None:
    """Say what was found, some of it by name."""
    for job in driver.inspector.summaries(found[:SAMPLE]).values():
        echo_status(f"  {job.id}  {job.queue}  {job.type}  {printable(first_line(job.last_error))}")
    if len(found) > SAMPLE:
        echo_status(f"  and {len(found) - SAMPLE:,} more")


class BulkRequeue:
    """Gives dead letters a new life; with *rate*, so many of them become due in a second."""

    def __init__(self, driver: Driver, *, budget: int | None, reason: str, rate: float | None) -> None:
        self._driver = driver
        self._budget = budget or DEFAULT_MAX_ATTEMPTS
        self._reason = reason
        self._rate = rate
        self._by = current_actor()

    def run(self, found: Sequence[JobId], *, yes: bool, dry_run: bool, as_json: bool) -> None:
        """Show what was found; unless it is a dry run, ask, requeue, and tell what became of it."""
        preview(self._driver, found)
        refused: list[TaskHarborError] = []
        if found and not dry_run:
            confirm(f"requeue {len(found):,} dead letters", yes=yes or len(found) == 1)
            refused = self._requeue(found)
        done = 0 if dry_run else len(found) - len(refused)
        facts = {"matched": len(found), "requeued": done, "dry_run": dry_run, "refused": list(map(_refusal, refused))}
        echo_data(facts, as_json=as_json, plain=f"requeued {done} of {len(found)}")
        if refused:
            raise PartlyRefused(len(refused), len(found))

    def _requeue(self, found: Sequence[JobId]) -> list[TaskHarborError]:
        """Requeue all, and return why some could not be."""
        refused: list[TaskHarborError] = []
        with ProgressLine("requeued", len(found)) as progress:
            try:
                for batch, delay in paced_batches(found, self._rate):
                    refused += self._requeue_batch(batch, delay)
                    progress.advance(len(batch))
            finally:
                # What was done is written down even where the rest of it could not be.
                if done := progress.done - len(refused):
                    record_audit(self._driver, "dead-letters.requeue", f"{done} jobs", why=self._reason)
        return refused

    def _requeue_batch(self, batch: Sequence[JobId], delay: timedelta) -> list[TaskHarborError]:
        answers = self._driver.requeue(
            batch, token=new_token(), budget=self._budget, by=self._by, reason=self._reason, delay=delay
        )
        errors = [answer for answer in answers if not isinstance(answer, Transitioned)]
        for error in errors:
            echo_status(str(error))
        return list(errors)


def _refusal(error: TaskHarborError) -> dict[str, str]:
    code = "job-not-found" if isinstance(error, JobNotFound) else "illegal-transition"
    return {"code": code, "message": str(error)}


def _found(
    driver: Driver, wanted: JobFilter, is_meant: Callable[[JobSummary], bool], progress: ProgressLine
) -> Iterator[JobId]:
    for page in all_pages(driver, wanted):
        yield from (job.id for job in page.jobs if is_meant(job))
        progress.advance(len(page.jobs))
