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
    moment,
    page_options,
    tag,
    url_option,
    url_or_app_option,
)
from taskharbor.cli.store import WAIT_TIMEOUT, get_job, job_id_of, job_ids_of, open_driver

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.cli.options import Asked
    from taskharbor.core.ids import JobId
    from taskharbor.core.request import JobRequest
    from taskharbor.drivers.base import Driver


@click.group(cls=LazyGroup)
def jobs() -> None:
    """Look at jobs, and move them.

    With --json a job is printed as the API shows it, a list as {"jobs": [...], "next": ID or null}.
    """


@jobs.command(name="list")
@filter_options
@click.option("--key", help="Only those under this idempotency key; without other filters.")
@page_options
@url_option
@json_option
def list_(*, url: str, key: str | None, limit: int, after: str | None, as_json: bool, **asked: Asked) -> None:
    """List jobs, newest first.

    Where more are left, the last line on stderr says how to see them.
    """
    from taskharbor.cli.jobs_view import full_page, page_under, show_page

    if key is not None and (after is not None or any(asked.values())):
        raise ConflictingOptions("--key", "other filters")
    with open_driver(url) as driver:
        if key is not None:
            page = page_under(driver, key)
        else:
            below = None if after is None else job_id_of(driver, after)
            page = full_page(driver, job_filter(**asked), limit=limit, after=below)
        show_page(driver, page, as_json=as_json, what="job", queue=asked["queue"])


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--payload", "with_payload", is_flag=True, help="Show what it was given, and what it returned.")
@url_option
@json_option
def show(*, url: str, job_id: str, with_payload: bool, as_json: bool) -> None:
    """Show all that is known of a job, and every attempt that did not simply succeed."""
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
    help="Exit with 7 after so long.",
)
@url_option
@json_option
def wait(*, url: str, job_id: str, timeout: timedelta, as_json: bool) -> None:
    """Return when a job has ended; exit with 8 if it did not succeed."""
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
    """Call jobs off: those that wait at once; those that run are asked to stop.

    Prints each id with the status it is in then. Says why any was left alone, and then exits with
    5; with 4 if it was the only one, and is not there.
    """
    from taskharbor.cli.jobs_view import report_transitions
    from taskharbor.cli.store import record_audit

    with open_driver(url) as driver:
        ids = job_ids_of(driver, job_ids)
        answers = driver.cancel(ids)
        report_transitions(
            driver, answers, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.cancel", job_id)
        )


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True, metavar="ID...")
@click.option("--budget", type=click.IntRange(min=1), help="How many attempts each gets.  [default: 20]")
@click.option("--delay", type=duration, metavar="TIME", help="How long they shall wait.")
@click.option("--at", "scheduled_for", type=moment, metavar="TIME", help="When they may start.")
@click.option("--payload", metavar="JSON|@FILE|-", help="What one job is given from now on, as with 'enqueue'.")
@click.option("--why", "reason", default="", help="Goes into the jobs' history.")
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
    """Give dead and canceled jobs a new life.

    Prints each id with the status it is in then. Says why any was left alone, and then exits with
    5; with 4 if it was the only one, and is not there. 'taskharbor dead requeue' does it for many.
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
        answers = driver.requeue(
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
            driver, answers, as_json=as_json, note=lambda job_id: record_audit(driver, "jobs.requeue", job_id, **detail)
        )


def _encoded(driver: Driver, job_id: JobId, payload: Any, app: str | None) -> bytes:
    from taskharbor.cli.app_loader import harbor_for

    return harbor_for(app).make_client(driver).encode(payload, job_id, job_type=get_job(driver, job_id).type)


@jobs.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def why(*, url: str, job_id: str, as_json: bool) -> None:
    """Say what a job waits for.

    With --json: {"job_id", "status", "cause", "text", "until", "worker", "ahead", "kept"}
    """
    from taskharbor.cli.render import echo_data as show_data
    from taskharbor.cli.render import printable
    from taskharbor.diagnosis import diagnose as ask

    with open_driver(url) as driver:
        answer = ask(driver.inspector, job_id_of(driver, job_id))
        show_data(answer.view(), as_json=as_json, plain=f"{answer.status}: {printable(answer.text)}")


@click.command()
@click.argument("type")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--payload", metavar="JSON|@FILE|-", help="The payload as JSON: as it is, from a file, or from stdin.")
@click.option("-q", "--queue", default="default", show_default=True, help="Where to put it.")
@click.option("--delay", type=duration, metavar="TIME", help="How long it shall wait.")
@click.option("--at", "scheduled_for", type=moment, metavar="TIME", help="When it may start.")
@click.option("--max-attempts", type=int, help="How often it may be tried.  [default: 20]")
@click.option("--priority", type=int, default=0, show_default=True, help="Lower runs first.")
@click.option("--timeout", type=duration, metavar="TIME", help="How long one attempt may take.")
@click.option("--idempotency-key", metavar="KEY", help="A second job under the same key is not made.")
@click.option("--tag", "tags", type=tag, multiple=True, metavar="KEY=VALUE", help="Metadata; may be repeated.")
@click.option("--wait", is_flag=True, help="Return when the job has ended; exit with 8 if it failed.")
@click.option(
    "--wait-for",
    type=duration,
    metavar="TIME",
    default=WAIT_TIMEOUT,
    show_default=True,
    help="With --wait: exit with 7 after so long.",
)
@app_option
@url_or_app_option
@json_option
def enqueue(*, app: str | None, url: str | None, wait: bool, wait_for: timedelta, as_json: bool, **asked: Any) -> None:
    """Store a job, and print its id.

    The payload is an object made from the pairs KEY=VALUE, each value JSON if it can be read as
    JSON and else text; or what --payload says. It is written with the codec of the app: the one that
    --app names, or that is found as 'taskharbor worker' finds it. Without an app it is plain JSON. A
    store whose payloads are written with another codec refuses the job. With --json the job is
    printed as the API shows it.

    \b
    taskharbor enqueue email.send to=ada@example.org copies=2 --delay 5m
    taskharbor enqueue report.render --payload @report.json --wait
    """  # noqa: D301  click wants the character itself
    from taskharbor.cli.app_loader import open_harbor
    from taskharbor.cli.jobs_view import show_job
    from taskharbor.cli.render import echo_status
    from taskharbor.cli.store import get_job, record_audit, require_success, wait_until_final

    request = _request(**asked)
    with open_harbor(app, url) as harbor:
        driver = harbor.driver
        enqueued = harbor.client.enqueue(request)
        record_audit(driver, "jobs.enqueue", str(enqueued.id), type=request.type, queue=request.queue)
        if enqueued.existed:
            echo_status(f"the idempotency key belongs to job {enqueued.id}, which is the same: nothing new was stored")
        job = wait_until_final(driver, enqueued.id, timeout=wait_for) if wait else get_job(driver, enqueued.id)
        show_job(driver, job, as_json=as_json, plain=str(job.id))
    if wait:
        require_success(job)


def _request(
    *, pairs: tuple[str, ...], payload: str | None, tags: tuple[tuple[str, str], ...], **asked: Any
) -> JobRequest:
    from taskharbor.cli.options import payload_of, read_payload
    from taskharbor.core.request import JobRequest

    if pairs and payload is not None:
        raise ConflictingOptions("KEY=VALUE", "--payload")
    value = read_payload(payload) if payload is not None else payload_of(pairs)
    return JobRequest(payload=value, metadata=dict(tags), **asked)
