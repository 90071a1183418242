from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import (
    ConflictingOptions,
    app_option,
    bulk_options,
    due_fields,
    due_options,
    duration,
    filter_options,
    job_filter,
    json_option,
    page_options,
    tag,
    url_of_app_option,
    url_option,
)
from taskharbor.cli.store import WAIT_TIMEOUT, get_job, open_driver
from taskharbor.job_counts import MAX_COUNT

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.cli.options import FilterValue
    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest
    from taskharbor.drivers.base import Driver
    from taskharbor.harbor import Harbor
    from taskharbor.task_options import CallOptions


@click.group(cls=LazyGroup)
def jobs() -> None:
    """List, show, cancel, reschedule and requeue jobs.

    With --json a job is printed as the API returns it, a list as {"jobs": [...], "next": ID or null,
    "looked_back_to": TIME or null}.
    """


@jobs.command(name="list")
@filter_options
@click.option("--key", help="Only jobs with this idempotency key; not with other filters.")
@click.option("--explain", is_flag=True, help="Show for each job what it is waiting for, or how it ended.")
@page_options
@url_option
@json_option
def list_(
    *, url: str, key: str | None, explain: bool, limit: int, after: str | None, as_json: bool, **filters: FilterValue
) -> None:
    """List jobs, newest first.

    If there are more jobs, the last line on stderr has the option for the next page.
    """
    from taskharbor.cli.job_ids import job_id_of
    from taskharbor.cli.jobs_view import full_page, page_under, show_page

    if key is not None and (after is not None or any(filters.values())):
        raise ConflictingOptions("--key", "other filters")
    with open_driver(url) as driver:
        if key is not None:
            page = page_under(driver, key)
        else:
            below = None if after is None else job_id_of(driver, after)
            page = full_page(driver, job_filter(**filters), limit=limit, after=below)
        show_page(driver, page, as_json=as_json, what="job", queue=filters["queue"], explain=explain)


@jobs.command()
@filter_options
@click.option("--cap", type=click.IntRange(1, MAX_COUNT), default=MAX_COUNT, show_default=True, help="Stop here.")
@url_option
@json_option
def count(*, url: str, cap: int, as_json: bool, **filters: FilterValue) -> None:
    """Count jobs, up to a limit.

    Prints the number; a + behind it means that there may be more.
    With --json: {"count", "is_exact", "looked_back_to"}
    """
    from taskharbor.cli.render import echo_data
    from taskharbor.job_counts import count_jobs

    with open_driver(url) as driver:
        counted = count_jobs(driver.inspector, job_filter(**filters), cap=cap)
        echo_data(counted.view(), as_json=as_json, plain=f"{counted.count}{'' if counted.is_exact else '+'}")


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--payload", "with_payload", is_flag=True, help="Show its payload and result.")
@click.option("--logs", "with_logs", is_flag=True, help="Show the captured log lines of its attempts.")
@url_option
@json_option
def show(*, url: str, job_id: str, with_payload: bool, with_logs: bool, as_json: bool) -> None:
    """Show all fields of a job, and its timeline: attempts, lost leases, refused calls, requeues and other changes.

    With --json the job has its "attempts" (all but successful ones) and its "timeline".
    """
    from taskharbor.cli.job_ids import job_id_of
    from taskharbor.cli.jobs_view import show_job_details

    with open_driver(url) as driver:
        job = get_job(driver, job_id_of(driver, job_id))
        show_job_details(driver, job, with_payload=with_payload, with_logs=with_logs, as_json=as_json)


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option(
    "--timeout",
    type=duration,
    metavar="TIME",
    default=WAIT_TIMEOUT,
    show_default=True,
    help="Exit with 7 after this time.",
)
@url_option
@json_option
def wait(*, url: str, job_id: str, timeout: timedelta, as_json: bool) -> None:
    """Wait until a job has ended; exit with 8 if it did not succeed."""
    from taskharbor.cli.job_ids import job_id_of
    from taskharbor.cli.jobs_view import show_job
    from taskharbor.cli.store import require_success, wait_until_final

    with open_driver(url) as driver:
        job = wait_until_final(driver, job_id_of(driver, job_id), timeout=timeout)
        show_job(driver, job, as_json=as_json, plain=job.status)
    require_success(job)


@jobs.command()
@click.argument("job_ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Every job that can be canceled and that the filters leave.")
@filter_options
@bulk_options
@click.option("--app", metavar="APP", help="Call the hooks of this app with the canceled jobs.  [default: no hooks]")
@url_option
@json_option
def cancel(
    *,
    url: str,
    app: str | None,
    job_ids: tuple[str, ...],
    everything: bool,
    reason: str,
    rate: float | None,
    start_in: timedelta,
    no_wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: FilterValue,
) -> None:
    """Cancel jobs: waiting jobs immediately; running jobs are asked to stop.

    With ids, prints each id with its new status. If a job cannot be canceled, prints the reason and exits
    with 5, or with 4 if the only given job does not exist.
    With a filter, prints a preview, asks for confirmation, creates a bulk operation and waits for its end; see
    'taskharbor operations'. Jobs that are created later are not canceled.
    With a filter and --json: {"matched": N, "canceled": N, "dry_run": BOOL, "refused": [...], "operation": ID or null}
    """
    from taskharbor.cancellation import cancel_jobs
    from taskharbor.cli.app_loader import hooks_of
    from taskharbor.cli.job_ids import job_ids_of
    from taskharbor.cli.jobs_view import report_running, report_transitions
    from taskharbor.cli.operations_view import BulkOperation, BulkSettings, check_selection
    from taskharbor.cli.store import record_audit
    from taskharbor.core.operations import OperationKind, OperationOptions

    settings = BulkSettings(yes=yes, dry_run=dry_run, as_json=as_json, starts_in=start_in, no_wait=no_wait)
    has_filter = everything or any(filters.values())
    check_selection(has_ids=bool(job_ids), has_filter=has_filter, settings=settings, what="job that can be canceled")
    call_hooks = hooks_of(app)
    with open_driver(url) as driver:
        if not job_ids:
            wanted, options = job_filter(**filters), OperationOptions(rate=rate)
            chosen = partial(BulkOperation, driver, OperationKind.CANCEL, wanted, what="job", reason=reason)
            chosen(options=options, call_hooks=call_hooks).run(settings)
            return
        results = cancel_jobs(driver, job_ids_of(driver, job_ids), call_hooks)
        report_running(results)
        detail = {"why": reason} if reason else {}
        report_transitions(
            driver, results, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.cancel", job_id, **detail)
        )


@jobs.command()
@click.option("--all", "everything", is_flag=True, help="Every waiting job that the filters leave.")
@filter_options
@due_options
@click.option("--priority", type=int, help="A new priority; lower runs first.  [default: unchanged]")
@bulk_options
@url_option
@json_option
def reschedule(
    *,
    url: str,
    everything: bool,
    delay: timedelta | None,
    at: datetime | timedelta | None,
    priority: int | None,
    reason: str,
    rate: float | None,
    start_in: timedelta,
    no_wait: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **filters: FilterValue,
) -> None:
    """Change the due time or the priority of all waiting jobs that match the filters.

    Prints a preview, asks for confirmation, creates a bulk operation and waits for its end; see 'taskharbor
    operations'. A --delay begins when the job is changed. Jobs that are created later are not changed.
    With --json: {"matched": N, "rescheduled": N, "dry_run": BOOL, "refused": [...], "operation": ID or null}
    """
    from taskharbor.cli.operations_view import BulkOperation, BulkSettings, check_selection
    from taskharbor.core.operations import OperationKind, OperationOptions

    settings = BulkSettings(yes=yes, dry_run=dry_run, as_json=as_json, starts_in=start_in, no_wait=no_wait)
    check_selection(
        has_ids=False, has_filter=everything or any(filters.values()), settings=settings, what="waiting job"
    )
    options = OperationOptions(rate=rate, priority=priority, **due_fields(delay, at))
    with open_driver(url) as driver:
        wanted = job_filter(**filters)
        BulkOperation(driver, OperationKind.RESCHEDULE, wanted, what="job", reason=reason, options=options).run(
            settings
        )


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: as many as it had]")
@due_options
@click.option("--payload", metavar="JSON|@FILE|-", help="A new payload, for one job, as with 'enqueue'.")
@click.option("--reason", "--why", "reason", default="", help="The reason, for the jobs' history.")
@app_option
@url_option
@json_option
def requeue(
    *,
    url: str,
    app: str | None,
    job_ids: tuple[str, ...],
    budget: int | None,
    delay: timedelta | None,
    at: datetime | timedelta | None,
    payload: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Requeue dead and canceled jobs.

    Prints each id with its new status. If a job cannot be requeued, prints the reason and exits
    with 5, or with 4 if the only given job does not exist. For many jobs, see 'taskharbor dead requeue'.
    """
    from taskharbor.cli.job_ids import job_ids_of
    from taskharbor.cli.jobs_view import report_transitions
    from taskharbor.cli.options import read_payload
    from taskharbor.cli.store import current_actor, record_audit
    from taskharbor.core.ids import new_token

    due = due_fields(delay, at)
    if payload is not None and len(job_ids) > 1:
        raise ConflictingOptions("--payload", "several IDs")
    value = None if payload is None else read_payload(payload)
    with open_driver(url) as driver:
        ids = job_ids_of(driver, job_ids)
        results = driver.requeue(
            ids,
            token=new_token(),
            budget=budget,
            by=current_actor(),
            reason=reason,
            **due,
            payload=None if payload is None else _encoded(driver, ids[0], value, app),
        )
        detail = {"why": reason} if payload is None else {"why": reason, "payload": "replaced"}
        report_transitions(
            driver, results, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.requeue", job_id, **detail)
        )


def _encoded(driver: Driver, job_id: JobId, payload: Any, app: str | None) -> bytes:
    from taskharbor.cli.app_loader import harbor_for
    from taskharbor.task_requests import payload_for

    harbor, type = harbor_for(app), get_job(driver, job_id).type
    return harbor.make_client(driver).encode(payload_for(harbor.tasks, type, payload), job_id, job_type=type)


@jobs.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def why(*, url: str, job_id: str, as_json: bool) -> None:
    """Explain a job's state: what it is waiting for.

    With --json: {"job_id", "status", "cause", "text", "until", "worker", "ahead", "kept"}
    """
    from taskharbor.cli.job_ids import job_id_of
    from taskharbor.cli.render import echo_data, printable
    from taskharbor.diagnosis import diagnose

    with open_driver(url) as driver:
        found = diagnose(driver.inspector, job_id_of(driver, job_id))
        echo_data(found.view(), as_json=as_json, plain=f"{found.status}: {printable(found.text)}")


@click.command()
@click.argument("type")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--payload", metavar="JSON|@FILE|-", help="The payload as JSON, from a file, or from stdin.")
@click.option("-q", "--queue", help="The queue of the job.  [default: the task's, else default]")
@due_options
@click.option("--max-attempts", type=int, help="The maximum number of attempts.  [default: the task's, else 20]")
@click.option("--priority", type=int, help="Lower runs first.  [default: the task's, else 0]")
@click.option("--timeout", type=duration, metavar="TIME", help="How long one attempt may take.  [default: the task's]")
@click.option("--idempotency-key", metavar="KEY", help="A second job with the same key is not created.")
@click.option("--tag", "tags", type=tag, multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated.")
@click.option("--wait", is_flag=True, help="Wait for the job and print its result; exit with 8 if it failed.")
@click.option(
    "--wait-for",
    type=duration,
    metavar="TIME",
    default=WAIT_TIMEOUT,
    show_default=True,
    help="With --wait: exit with 7 after this time.",
)
@app_option
@click.option("--no-app", is_flag=True, help="Use no app: any TYPE and payload are stored as they are.")
@url_of_app_option
@json_option
def enqueue(
    *,
    app: str | None,
    no_app: bool,
    url: str | None,
    wait: bool,
    wait_for: timedelta,
    as_json: bool,
    **fields: Any,
) -> None:
    """Enqueue a job and print its id.

    The payload is an object of the pairs KEY=VALUE, or the value of --payload. Each VALUE is JSON
    if it is valid JSON, otherwise text.

    If there is an app, which --app names or 'taskharbor worker' would find, TYPE must be one of its
    tasks. The job gets the options of the task, unless they are given here, and its payload must match
    the parameters; a VALUE that is JSON is text where a parameter takes only that. The codec of the app
    encodes the payload. Without an app the payload is JSON, and a store with another codec rejects it.
    With --wait the result is printed as JSON instead. With --json the job is printed as the API returns
    it, with --wait including payload and result.

    \b
    taskharbor enqueue email.send to=ada@example.org copies=2 --delay 5m
    taskharbor enqueue report.render --payload @report.json --wait
    """  # noqa: D301  click needs the character \b
    from taskharbor.cli.app_loader import open_harbor
    from taskharbor.cli.jobs_view import show_job, show_result
    from taskharbor.cli.render import echo_status
    from taskharbor.cli.store import get_job, record_audit, require_success, wait_until_final

    if no_app and app is not None:
        raise ConflictingOptions("--app", "--no-app")
    with open_harbor(app, url, searches=not no_app) as harbor:
        request, driver = _request(harbor, **fields), harbor.driver
        enqueued = harbor.client.enqueue(request)
        record_audit(driver, "jobs.enqueue", str(enqueued.id), type=request.type, queue=request.queue)
        if enqueued.existed:
            echo_status(f"job {enqueued.id} already has this idempotency key; nothing new was stored")
        if not wait:
            show_job(driver, get_job(driver, enqueued.id), as_json=as_json, plain=str(enqueued.id))
            return
        if not as_json:
            echo_status(f"job {enqueued.id} is enqueued; waiting for its result{_obstacle(driver, enqueued.id)}")
        wait_until_final(driver, enqueued.id, timeout=wait_for)
        job = get_job(driver, enqueued.id)
        show_result(driver, job, codec=harbor.codec, as_json=as_json)
    require_success(job)


def _obstacle(driver: Driver, job_id: JobId) -> str:
    """Return why a wait for the job may not end: no live worker handles it, or its queue is paused."""
    from taskharbor.diagnosis import Cause, diagnose

    found = diagnose(driver.inspector, job_id)
    return f"; {found.text}" if found.cause in {Cause.UNHANDLED, Cause.PAUSED} else ""


def _request(
    harbor: Harbor,
    *,
    type: str,
    pairs: tuple[str, ...],
    payload: str | None,
    tags: tuple[tuple[str, str], ...],
    delay: timedelta | None,
    at: datetime | timedelta | None,
    **options: Any,
) -> JobRequest:
    from taskharbor.cli.options import payload_of, read_payload
    from taskharbor.task_requests import request_for, task_of

    if pairs and payload is not None:
        raise ConflictingOptions("KEY=VALUE", "--payload")
    task = task_of(harbor.tasks, type)
    takes = None if task is None else task.arguments.takes
    value = read_payload(payload) if payload is not None else payload_of(pairs, takes)
    options |= {"metadata": dict(tags), **due_fields(delay, at)}
    given = {name: option for name, option in options.items() if option is not None}
    return request_for(harbor.tasks, type, value, cast("CallOptions", given))
