from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import (
    ConflictingOptions,
    app_option,
    duration,
    filter_options,
    job_filter,
    json_option,
    page_options,
    tag,
    time_with_zone,
    url_option,
    url_or_app_option,
)
from taskharbor.cli.store import WAIT_TIMEOUT, get_job, job_id_of, job_ids_of, open_driver

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.cli.options import FilterValue
    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest
    from taskharbor.drivers.base import Driver


@click.group(cls=LazyGroup)
def jobs() -> None:
    """List, show, cancel and requeue jobs.

    With --json a job is printed as the API returns it, a list as {"jobs": [...], "next": ID or null}.
    """


@jobs.command(name="list")
@filter_options
@click.option("--key", help="Only jobs with this idempotency key; not with other filters.")
@page_options
@url_option
@json_option
def list_(*, url: str, key: str | None, limit: int, after: str | None, as_json: bool, **filters: FilterValue) -> None:
    """List jobs, newest first.

    If there are more jobs, the last line on stderr has the option for the next page.
    """
    from taskharbor.cli.jobs_view import full_page, page_under, show_page

    if key is not None and (after is not None or any(filters.values())):
        raise ConflictingOptions("--key", "other filters")
    with open_driver(url) as driver:
        if key is not None:
            page = page_under(driver, key)
        else:
            below = None if after is None else job_id_of(driver, after)
            page = full_page(driver, job_filter(**filters), limit=limit, after=below)
        show_page(driver, page, as_json=as_json, what="job", queue=filters["queue"])


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--payload", "with_payload", is_flag=True, help="Show its payload and result.")
@url_option
@json_option
def show(*, url: str, job_id: str, with_payload: bool, as_json: bool) -> None:
    """Show all fields of a job, and its recorded attempts (all but successful ones)."""
    from taskharbor.cli.jobs_view import show_job_details

    with open_driver(url) as driver:
        job = get_job(driver, job_id_of(driver, job_id))
        show_job_details(driver, job, with_payload=with_payload, as_json=as_json)


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
    from taskharbor.cli.jobs_view import show_job
    from taskharbor.cli.store import require_success, wait_until_final

    with open_driver(url) as driver:
        job = wait_until_final(driver, job_id_of(driver, job_id), timeout=timeout)
        show_job(driver, job, as_json=as_json, plain=job.status)
    require_success(job)


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@url_option
@json_option
def cancel(*, url: str, job_ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs: waiting jobs immediately; running jobs are asked to stop.

    Prints each id with its new status. If a job cannot be canceled, prints the reason and exits
    with 5, or with 4 if the only given job does not exist.
    """
    from taskharbor.cli.jobs_view import report_transitions
    from taskharbor.cli.store import record_audit

    with open_driver(url) as driver:
        ids = job_ids_of(driver, job_ids)
        results = driver.cancel(ids)
        report_transitions(
            driver, results, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.cancel", job_id)
        )


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: 20]")
@click.option("--delay", type=duration, metavar="TIME", help="How long they wait before they are due.")
@click.option("--at", "scheduled_for", type=time_with_zone, metavar="TIME", help="When they are due.")
@click.option("--payload", metavar="JSON|@FILE|-", help="A new payload, for one job, as with 'enqueue'.")
@click.option("--why", "reason", default="", help="The reason, for the jobs' history.")
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
    scheduled_for: datetime | None,
    payload: str | None,
    reason: str,
    as_json: bool,
) -> None:
    """Requeue dead and canceled jobs.

    Prints each id with its new status. If a job cannot be requeued, prints the reason and exits
    with 5, or with 4 if the only given job does not exist. For many jobs, see 'taskharbor dead requeue'.
    """
    from taskharbor.cli.jobs_view import report_transitions
    from taskharbor.cli.options import read_payload
    from taskharbor.cli.store import current_actor, record_audit
    from taskharbor.core.ids import new_token
    from taskharbor.core.retry import DEFAULT_MAX_ATTEMPTS

    if delay is not None and scheduled_for is not None:
        raise ConflictingOptions("--delay", "--at")
    if payload is not None and len(job_ids) > 1:
        raise ConflictingOptions("--payload", "several IDs")
    value = None if payload is None else read_payload(payload)
    with open_driver(url) as driver:
        ids = job_ids_of(driver, job_ids)
        results = driver.requeue(
            ids,
            token=new_token(),
            budget=budget or DEFAULT_MAX_ATTEMPTS,
            by=current_actor(),
            reason=reason,
            delay=delay,
            scheduled_for=scheduled_for,
            payload=None if payload is None else _encoded(driver, ids[0], value, app),
        )
        detail = {"why": reason} if payload is None else {"why": reason, "payload": "replaced"}
        report_transitions(
            driver, results, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.requeue", job_id, **detail)
        )


def _encoded(driver: Driver, job_id: JobId, payload: Any, app: str | None) -> bytes:
    from taskharbor.cli.app_loader import harbor_for

    return harbor_for(app).make_client(driver).encode(payload, job_id, job_type=get_job(driver, job_id).type)


@jobs.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def why(*, url: str, job_id: str, as_json: bool) -> None:
    """Explain a job's state: what it is waiting for.

    With --json: {"job_id", "status", "cause", "text", "until", "worker", "ahead", "kept"}
    """
    from taskharbor.cli.render import echo_data, printable
    from taskharbor.diagnosis import diagnose

    with open_driver(url) as driver:
        found = diagnose(driver.inspector, job_id_of(driver, job_id))
        echo_data(found.view(), as_json=as_json, plain=f"{found.status}: {printable(found.text)}")


@click.command()
@click.argument("type")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--payload", metavar="JSON|@FILE|-", help="The payload as JSON, from a file, or from stdin.")
@click.option("-q", "--queue", default="default", show_default=True, help="The queue of the job.")
@click.option("--delay", type=duration, metavar="TIME", help="How long it waits before it is due.")
@click.option("--at", "scheduled_for", type=time_with_zone, metavar="TIME", help="When it is due.")
@click.option("--max-attempts", type=int, help="The maximum number of attempts.  [default: 20]")
@click.option("--priority", type=int, default=0, show_default=True, help="Lower runs first.")
@click.option("--timeout", type=duration, metavar="TIME", help="How long one attempt may take.")
@click.option("--idempotency-key", metavar="KEY", help="A second job with the same key is not created.")
@click.option("--tag", "tags", type=tag, multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated.")
@click.option("--wait", is_flag=True, help="Wait until the job has ended; exit with 8 if it failed.")
@click.option(
    "--wait-for",
    type=duration,
    metavar="TIME",
    default=WAIT_TIMEOUT,
    show_default=True,
    help="With --wait: exit with 7 after this time.",
)
@app_option
@url_or_app_option
@json_option
def enqueue(*, app: str | None, url: str | None, wait: bool, wait_for: timedelta, as_json: bool, **fields: Any) -> None:
    """Enqueue a job and print its id.

    The payload is an object of the pairs KEY=VALUE, or the value of --payload. Each VALUE is JSON
    if it is valid JSON, otherwise text. The codec of the app encodes the payload: the app that
    --app names, or that 'taskharbor worker' would find. Without an app the payload is JSON. A store
    whose payloads have another codec rejects the job. With --json the job is printed as the API
    returns it.

    \b
    taskharbor enqueue email.send to=ada@example.org copies=2 --delay 5m
    taskharbor enqueue report.render --payload @report.json --wait
    """  # noqa: D301  click needs the character \b
    from taskharbor.cli.app_loader import open_harbor
    from taskharbor.cli.jobs_view import show_job
    from taskharbor.cli.render import echo_status
    from taskharbor.cli.store import get_job, record_audit, require_success, wait_until_final

    request = _request(**fields)
    with open_harbor(app, url) as harbor:
        driver = harbor.driver
        enqueued = harbor.client.enqueue(request)
        record_audit(driver, "jobs.enqueue", str(enqueued.id), type=request.type, queue=request.queue)
        if enqueued.existed:
            echo_status(f"job {enqueued.id} already has this idempotency key; nothing new was stored")
        job = wait_until_final(driver, enqueued.id, timeout=wait_for) if wait else get_job(driver, enqueued.id)
        show_job(driver, job, as_json=as_json, plain=str(job.id))
    if wait:
        require_success(job)


def _request(
    *, pairs: tuple[str, ...], payload: str | None, tags: tuple[tuple[str, str], ...], **fields: Any
) -> JobRequest:
    from taskharbor.cli.options import payload_of, read_payload
    from taskharbor.core.request import JobRequest

    if pairs and payload is not None:
        raise ConflictingOptions("KEY=VALUE", "--payload")
    value = read_payload(payload) if payload is not None else payload_of(pairs)
    return JobRequest(payload=value, metadata=dict(tags), **fields)
