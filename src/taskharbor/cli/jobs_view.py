"""Printing of jobs: tables, details, JSON views, and the results of cancel and requeue."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.errors import PartlyRefused
from taskharbor.cli.render import echo_data, echo_status, print_facts, print_table, printable
from taskharbor.cli.store import no_matches
from taskharbor.core.results import Page, Transitioned
from taskharbor.views import attempt_view, job_view, last_failure, stored_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from taskharbor.cli.render import Cell
    from taskharbor.core.errors import IllegalTransition, JobNotFound
    from taskharbor.core.ids import JobId
    from taskharbor.core.model import Attempt, Job, JobSummary
    from taskharbor.core.results import JobFilter
    from taskharbor.drivers.base import Driver

FIND_BATCH: Final = 500
JOB_TITLES: Final = ("id", "type", "queue", "status", "attempts", "due", "ended", "error")
ATTEMPT_TITLES: Final = ("life", "attempt", "outcome", "worker", "started", "ended", "error")
_MAX_CELL_CHARS: Final = 60


def full_page(driver: Driver, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
    """Return *limit* jobs, newest first, or fewer if there are no more."""
    page = driver.inspector.find(wanted, limit=limit, after=after)
    while page.after is not None and len(page.jobs) < limit:
        more = driver.inspector.find(wanted, limit=limit - len(page.jobs), after=page.after)
        page = Page((*page.jobs, *more.jobs), more.after)
    return page


def page_under(driver: Driver, key: str) -> Page:
    """Return the jobs with an idempotency key, at most one per queue."""
    return Page(tuple(driver.inspector.summaries(driver.inspector.find_by_key(key)).values()), None)


def all_pages(driver: Driver, wanted: JobFilter) -> Iterator[Page]:
    """Yield pages of all jobs that match, newest first; pages may be empty."""
    page = driver.inspector.find(wanted, limit=FIND_BATCH)
    yield page
    while page.after is not None:
        page = driver.inspector.find(wanted, limit=FIND_BATCH, after=page.after)
        yield page


def show_job(driver: Driver, job: JobSummary, *, as_json: bool, plain: str) -> None:
    """Print one job as JSON, as the API returns it, or else *plain*."""
    echo_data(views_of(driver, [job])[0] if as_json else None, as_json=as_json, plain=plain)


def show_page(driver: Driver, page: Page, *, as_json: bool, what: str, queue: str | None) -> None:
    """Print a page of jobs and how to get the next one; if it is empty, print that no *what* matched."""
    if as_json:
        following = None if page.after is None else str(page.after)
        now = driver.inspector.now()
        echo_data({"jobs": [job_view(job, now=now) for job in page.jobs], "next": following}, as_json=True, plain="")
        return
    empty = "" if page.jobs else no_matches(driver, what, queue)
    print_table(JOB_TITLES, [_row(job) for job in page.jobs], now=driver.inspector.now(), empty=empty)
    if page.after is not None:
        echo_status(f"more jobs: --after {page.after}")


def show_job_details(driver: Driver, job: Job, *, with_payload: bool, as_json: bool) -> None:
    """Print all fields of one job and its attempts."""
    attempts, now = driver.inspector.attempts([job.id]), driver.inspector.now()
    if as_json:
        view = job_view(job, now=now, failure=last_failure(attempts), with_payload=with_payload)
        echo_data(view | {"attempts": list(map(attempt_view, attempts))}, as_json=True, plain="")
        return
    print_facts([*_facts(job), *(_payload_facts(job) if with_payload else ())], now=now)
    if attempts:
        click.echo()
        print_table(ATTEMPT_TITLES, [_attempt(each) for each in attempts], now=now, empty="")


def views_of(driver: Driver, jobs: Sequence[JobSummary]) -> list[dict[str, Any]]:
    """Return jobs as the API returns them; read their attempts in one query."""
    failed = [job.id for job in jobs if job.last_error is not None]
    history: defaultdict[JobId, list[Attempt]] = defaultdict(list)
    for attempt in driver.inspector.attempts(failed) if failed else ():
        history[attempt.job_id].append(attempt)
    now = driver.inspector.now()
    return [job_view(job, now=now, failure=last_failure(history[job.id])) for job in jobs]


def first_line(text: str | None) -> str:
    """Return the first line of *text*, shortened for a table cell."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= _MAX_CELL_CHARS else line[: _MAX_CELL_CHARS - 1] + "…"


def _row(job: JobSummary) -> list[Cell]:
    attempts = f"{job.attempt_count}/{job.max_attempts}"
    error = first_line(job.last_error)
    return [str(job.id), job.type, job.queue, job.status, attempts, job.scheduled_for, job.completed_at, error]


def _facts(job: JobSummary) -> list[tuple[str, Cell]]:
    return [
        ("id", str(job.id)),
        ("type", job.type),
        ("queue", job.queue),
        ("status", job.status),
        ("attempts", f"{job.attempt_count} of {job.max_attempts}"),
        ("life", job.life if job.life > 1 else None),
        ("priority", job.priority or None),
        ("timeout", job.timeout),
        ("created", job.created_at),
        ("due", job.scheduled_for),
        ("started", job.processing_started_at),
        ("ended", job.completed_at),
        ("cancel requested", job.cancel_requested_at),
        ("worker", job.worker_id),
        ("lease until", job.lease_expires_at),
        ("progress", _progress(job)),
        ("key", job.idempotency_key),
        ("tags", " ".join(f"{key}={value}" for key, value in sorted(job.metadata.items())) or None),
        ("dead reason", job.dead_reason),
        ("error", job.last_error),
    ]


def _progress(job: JobSummary) -> str | None:
    if job.progress is None:
        return None
    of = "" if job.progress.total is None else f" of {job.progress.total:,}"
    return f"{job.progress.done:,}{of} {job.progress.note}".rstrip()


def _payload_facts(job: Job) -> list[tuple[str, Cell]]:
    result = None if job.result is None else json.dumps(stored_value(job.result), ensure_ascii=False)
    return [("payload", json.dumps(stored_value(job.payload), ensure_ascii=False)), ("result", result)]


def _attempt(attempt: Attempt) -> list[Cell]:
    error = "" if attempt.failure is None else first_line(printable(str(attempt.failure)))
    return [
        attempt.life,
        attempt.attempt,
        attempt.outcome,
        attempt.worker_id,
        attempt.started_at,
        attempt.ended_at,
        error,
    ]


def report_transitions(
    driver: Driver,
    results: Sequence[Transitioned | IllegalTransition | JobNotFound],
    *,
    as_json: bool,
    note: Callable[[str], None],
) -> None:
    """Print the jobs that were changed and the errors of the others; raise if there are any errors.

    *note* is called with the id of each changed job, to write an audit entry.
    """
    changed = [result for result in results if isinstance(result, Transitioned)]
    refused = [result for result in results if not isinstance(result, Transitioned)]
    for result in changed:
        note(str(result.job_id))
    if as_json:
        jobs = driver.inspector.summaries([result.job_id for result in changed])
        echo_data({"jobs": views_of(driver, list(jobs.values()))}, as_json=True, plain="")
    else:
        for result in changed:
            click.echo(f"{result.job_id}\t{result.status}")
    if len(results) == 1 and refused:
        raise refused[0]
    for error in refused:
        echo_status(str(error))
    if refused:
        raise PartlyRefused(len(refused), len(results))
