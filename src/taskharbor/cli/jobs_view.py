"""Printing of jobs: tables, details, JSON views, and the results of cancel and requeue."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.errors import PartlyRefused
from taskharbor.cli.render import echo_data, echo_status, print_facts, print_table, printable, printable_lines
from taskharbor.cli.store import no_matches
from taskharbor.core.codec import JsonCodec
from taskharbor.core.model import result_context
from taskharbor.core.results import Page, Transitioned
from taskharbor.core.states import Status
from taskharbor.core.text import plural
from taskharbor.diagnosis import diagnose_all
from taskharbor.timeline import Kind, read_timeline
from taskharbor.views import (
    attempt_view,
    dead_reason,
    iso_time,
    job_view,
    last_failure,
    log_view,
    payload_view,
    run_time,
    stored_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from taskharbor.cli.render import Cell
    from taskharbor.core.codec import Codec
    from taskharbor.core.errors import IllegalTransition, JobNotFound
    from taskharbor.core.ids import JobId
    from taskharbor.core.log_lines import LogLine
    from taskharbor.core.model import Attempt, Job, JobSummary
    from taskharbor.core.results import JobFilter
    from taskharbor.drivers.base import Driver
    from taskharbor.timeline import TimelineEntry

_HEADER: Final = "Traceback (most recent call last):"
"""Not in the traceback of an error that was not raised, such as a timeout: it would only repeat the error."""
JOB_TITLES: Final = ("id", "type", "queue", "status", "attempts", "due", "ended", "error")
NEXT_TITLES: Final = ("id", "type", "status", "attempts", "priority", "due")
TIMELINE_TITLES: Final = ("at", "life", "event", "attempt", "outcome", "worker", "by", "waited", "duration", "error")


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


def show_job(driver: Driver, job: JobSummary, *, as_json: bool, plain: str) -> None:
    """Print one job as JSON, as the API returns it, or else *plain*."""
    echo_data(views_of(driver, [job])[0] if as_json else None, as_json=as_json, plain=plain)


def show_result(driver: Driver, job: Job, *, codec: Codec, as_json: bool) -> None:
    """Print the result of a finished job: its value as JSON, or as JSON the job with payload and result.

    A job that did not succeed has no value to print.
    """
    if as_json:
        [view] = views_of(driver, [job])
        echo_data(view | payload_view(job), as_json=True, plain="")
    elif job.status is Status.SUCCEEDED:
        click.echo(json.dumps(_result(job, codec), ensure_ascii=False))


def _result(job: Job, codec: Codec) -> Any:
    """Return the JSON form of a result. The bytes of a codec that encrypts, for example, are not JSON."""
    if job.result is None or isinstance(codec, JsonCodec):
        return None if job.result is None else stored_value(job.result)
    decoded = codec.decode(job.result, context=result_context(job.id))
    return stored_value(JsonCodec().encode(decoded, context=b""))


def show_page(
    driver: Driver, page: Page, *, as_json: bool, what: str, queue: str | None, explain: bool = False
) -> None:
    """Print a page of jobs and how to get the next one; if it is empty, print that no *what* matched."""
    whys = diagnose_all(driver.inspector, page.jobs) if explain else {}
    if as_json:
        following, now = None if page.after is None else str(page.after), driver.inspector.now()
        views = [job_view(job, now=now) | ({"why": whys[job.id].view()} if explain else {}) for job in page.jobs]
        looked_back_to = iso_time(page.looked_back_to)
        echo_data({"jobs": views, "next": following, "looked_back_to": looked_back_to}, as_json=True, plain="")
        return
    empty = "" if page.jobs else no_matches(driver, what, queue)
    titles = (*JOB_TITLES[:-1], "why") if explain else JOB_TITLES
    rows = [[*_row(job)[:-1], whys[job.id].text] if explain else _row(job) for job in page.jobs]
    print_table(titles, rows, now=driver.inspector.now(), empty=empty)
    if page.after is not None:
        echo_status(f"more jobs: --after {page.after}")


def show_next(driver: Driver, jobs: Sequence[JobSummary], *, queue: str, as_json: bool) -> None:
    """Print the jobs that run next; if there are none, print that."""
    now = driver.inspector.now()
    if as_json:
        echo_data({"jobs": [job_view(job, now=now) for job in jobs]}, as_json=True, plain="")
        return
    rows: list[list[Cell]] = [
        [str(job.id), job.type, job.status, f"{job.attempt_count}/{job.max_attempts}", job.priority, job.scheduled_for]
        for job in jobs
    ]
    print_table(NEXT_TITLES, rows, now=now, empty="" if jobs else no_matches(driver, "job", queue))


def show_job_details(driver: Driver, job: Job, *, with_payload: bool, with_logs: bool, as_json: bool) -> None:
    """Print all fields of one job and its timeline."""
    attempts, now = driver.inspector.attempts([job.id]), driver.inspector.now()
    entries = read_timeline(driver.inspector, job.id)
    logs = driver.attempt_logs.read([job.id]) if with_logs else []
    if as_json:
        view = job_view(job, now=now, failure=last_failure(attempts), with_payload=with_payload)
        view |= {"attempts": list(map(attempt_view, attempts)), "timeline": [each.view() for each in entries]}
        echo_data(view | ({"logs": list(map(log_view, logs))} if with_logs else {}), as_json=True, plain="")
        return
    print_facts([*_facts(job, now), *(_payload_facts(job) if with_payload else ())], now=now)
    click.echo()
    print_table(TIMELINE_TITLES, [_timeline_row(each) for each in entries], now=now, empty="")
    for attempt in _newest_of_each_error(attempts):
        click.echo(f"\ntraceback of attempt {attempt.attempt}:\n{_traceback(attempt)}")
    for log in logs:
        click.echo(f"\nlog of attempt {log.attempt} by {printable(log.worker_id or '?')}:")
        if log.dropped:
            click.echo(f"  ({log.dropped:,} earlier lines not kept)")
        for line in log.lines:
            click.echo("\n".join(f"  {each}" for each in _log_lines(line)))
    if with_logs and not logs:
        echo_status("no captured log lines; see 'taskharbor worker --capture-logs'")


def _log_lines(line: LogLine) -> list[str]:
    """Return a captured line for a terminal; the lines of its text after the first are indented."""
    first, *rest = map(printable, line.text.splitlines() or [""])
    head = f"{line.at:%Y-%m-%d %H:%M:%S},{line.at.microsecond // 1_000:03} {line.level:<7} {line.logger}: "
    return [printable(head) + first, *(f"  {each}" for each in rest)]


def views_of(driver: Driver, jobs: Sequence[JobSummary]) -> list[dict[str, Any]]:
    """Return jobs as the API returns them; read their attempts in one query."""
    failed = [job.id for job in jobs if job.last_error is not None]
    history: defaultdict[JobId, list[Attempt]] = defaultdict(list)
    for attempt in driver.inspector.attempts(failed) if failed else ():
        history[attempt.job_id].append(attempt)
    now = driver.inspector.now()
    return [job_view(job, now=now, failure=last_failure(history[job.id])) for job in jobs]


def _row(job: JobSummary) -> list[Cell]:
    attempts = f"{job.attempt_count}/{job.max_attempts}"
    return [str(job.id), job.type, job.queue, job.status, attempts, job.scheduled_for, job.completed_at, job.last_error]


def _facts(job: JobSummary, now: datetime) -> list[tuple[str, Cell]]:
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
        ("duration", run_time(job, now)),
        ("cancel requested", job.cancel_requested_at),
        ("worker", job.worker_id),
        ("lease until", job.lease_expires_at),
        ("progress", _progress(job)),
        ("key", job.idempotency_key),
        ("tags", " ".join(f"{key}={value}" for key, value in sorted(job.metadata.items())) or None),
        ("dead reason", dead_reason(job)),
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


def _timeline_row(entry: TimelineEntry) -> list[Cell]:
    error = None if entry.error is None else ": ".join(filter(None, [entry.error["type"], entry.error["message"]]))
    changes = " ".join(f"{name}={value}" for name, value in entry.detail.items())
    return [
        entry.at,
        entry.life,
        entry.action if entry.kind is Kind.CHANGED else entry.kind.value,
        entry.attempt,
        entry.action if entry.kind is Kind.REFUSED else entry.outcome,
        entry.worker,
        entry.by,
        entry.wait,
        entry.run,
        error or " ".join(filter(None, [entry.reason, changes])) or None,
    ]


def _newest_of_each_error(attempts: Sequence[Attempt]) -> Sequence[Attempt]:
    """Return the attempts whose tracebacks to show: of those that failed at the same place, the newest."""
    newest = {each.failure.fingerprint: each for each in attempts if each.failure and _HEADER in each.failure.traceback}
    return sorted(newest.values(), key=attempts.index)


def _traceback(attempt: Attempt) -> str:
    return "" if attempt.failure is None else printable_lines(attempt.failure.traceback)


def report_running(results: Sequence[Transitioned | IllegalTransition | JobNotFound]) -> None:
    """Print that canceled jobs which run are still PROCESSING, because their workers must stop them."""
    running = sum(isinstance(result, Transitioned) and result.status is Status.PROCESSING for result in results)
    if running:
        text = "is running and was asked to stop" if running == 1 else "are running and were asked to stop"
        echo_status(f"{plural(running, 'job')} {text}; 'taskharbor jobs wait ID' waits for the end")


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
