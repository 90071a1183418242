"""What became of jobs that a person wanted moved, one by one."""

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

SIZE: Final = 500
TITLES: Final = ("id", "type", "queue", "status", "attempts", "due", "ended", "error")
HISTORY: Final = ("life", "attempt", "outcome", "worker", "started", "ended", "error")
_SHORT: Final = 60


def full_page(driver: Driver, wanted: JobFilter, *, limit: int, after: JobId | None = None) -> Page:
    """Return *limit* jobs, newest first, or all that are left."""
    page = driver.inspector.find(wanted, limit=limit, after=after)
    while page.after is not None and len(page.jobs) < limit:
        more = driver.inspector.find(wanted, limit=limit - len(page.jobs), after=page.after)
        page = Page((*page.jobs, *more.jobs), more.after)
    return page


def page_under(driver: Driver, key: str) -> Page:
    """Return the jobs that hold an idempotency key, one for each queue at most."""
    return Page(tuple(driver.inspector.summaries(driver.inspector.find_by_key(key)).values()), None)


def all_pages(driver: Driver, wanted: JobFilter) -> Iterator[Page]:
    """Give every job that matches, newest first; some pages may be empty."""
    page = driver.inspector.find(wanted, limit=SIZE)
    yield page
    while page.after is not None:
        page = driver.inspector.find(wanted, limit=SIZE, after=page.after)
        yield page


def show_job(driver: Driver, job: JobSummary, *, as_json: bool, plain: str) -> None:
    """Print one job as the API shows it, or else *plain*."""
    echo_data(views_of(driver, [job])[0] if as_json else None, as_json=as_json, plain=plain)


def show_page(driver: Driver, page: Page, *, as_json: bool, what: str, queue: str | None) -> None:
    """Print a page of jobs, and how to see the next one; where there are none, that no *what* of *queue* was found."""
    if as_json:
        following = None if page.after is None else str(page.after)
        now = driver.inspector.now()
        echo_data({"jobs": [job_view(job, now=now) for job in page.jobs], "next": following}, as_json=True, plain="")
        return
    empty = "" if page.jobs else no_matches(driver, what, queue)
    print_table(TITLES, [_row(job) for job in page.jobs], now=driver.inspector.now(), empty=empty)
    if page.after is not None:
        echo_status(f"there are more: --after {page.after}")


def show_job_details(driver: Driver, job: Job, *, with_payload: bool, as_json: bool) -> None:
    """Print all that is known of one job."""
    attempts, now = driver.inspector.attempts([job.id]), driver.inspector.now()
    if as_json:
        view = job_view(job, now=now, failure=last_failure(attempts), with_payload=with_payload)
        echo_data(view | {"attempts": list(map(attempt_view, attempts))}, as_json=True, plain="")
        return
    print_facts([*_facts(job), *(_secrets(job) if with_payload else ())], now=now)
    if attempts:
        click.echo()
        print_table(HISTORY, [_attempt(each) for each in attempts], now=now, empty="")


def views_of(driver: Driver, jobs: Sequence[JobSummary]) -> list[dict[str, Any]]:
    """Return jobs as the API shows them, reading once for all."""
    failed = [job.id for job in jobs if job.last_error is not None]
    history: defaultdict[JobId, list[Attempt]] = defaultdict(list)
    for attempt in driver.inspector.attempts(failed) if failed else ():
        history[attempt.job_id].append(attempt)
    now = driver.inspector.now()
    return [job_view(job, now=now, failure=last_failure(history[job.id])) for job in jobs]


def first_line(text: str | None) -> str:
    """Return enough of *text* for a cell."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= _SHORT else line[: _SHORT - 1] + "…"


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
        ("cancel asked", job.cancel_requested_at),
        ("worker", job.worker_id),
        ("lease until", job.lease_expires_at),
        ("progress", _progress(job)),
        ("key", job.idempotency_key),
        ("tags", " ".join(f"{key}={value}" for key, value in sorted(job.metadata.items())) or None),
        ("died of", job.dead_reason),
        ("error", job.last_error),
    ]


def _progress(job: JobSummary) -> str | None:
    if job.progress is None:
        return None
    of = "" if job.progress.total is None else f" of {job.progress.total:,}"
    return f"{job.progress.done:,}{of} {job.progress.note}".rstrip()


def _secrets(job: Job) -> list[tuple[str, Cell]]:
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
    answers: Sequence[Transitioned | IllegalTransition | JobNotFound],
    *,
    as_json: bool,
    note: Callable[[str], None],
) -> None:
    """Print every job that was moved, say why others were not, and raise what ends the command.

    *note* is called for each that was moved, to write it down.
    """
    moved = [answer for answer in answers if isinstance(answer, Transitioned)]
    refused = [answer for answer in answers if not isinstance(answer, Transitioned)]
    for answer in moved:
        note(str(answer.job_id))
    if as_json:
        jobs = driver.inspector.summaries([answer.job_id for answer in moved])
        echo_data({"jobs": views_of(driver, list(jobs.values()))}, as_json=True, plain="")
    else:
        for answer in moved:
            click.echo(f"{answer.job_id}\t{answer.status}")
    if len(answers) == 1 and refused:
        raise refused[0]
    for error in refused:
        echo_status(str(error))
    if refused:
        raise PartlyRefused(len(refused), len(answers))
