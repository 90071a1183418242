from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.filters import filter_options, job_filter, page_options
from taskharbor.cli.lazy import LazyGroup
from taskharbor.cli.operating import get_job, job_id_of, job_ids_of, open_driver
from taskharbor.cli.options import app_option, json_option, url_option
from taskharbor.cli.values import ConflictingOptions, duration, moment
from taskharbor.cli.waiting import WAIT_TIMEOUT

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from taskharbor.cli.filters import Asked
    from taskharbor.core.ids import JobId
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
    from taskharbor.cli.pages import full_page, page_under
    from taskharbor.cli.shown import show_page

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
    from taskharbor.cli.shown import show_job_details

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
    from taskharbor.cli.shown import show_job
    from taskharbor.cli.waiting import require_success, wait_until_final

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
    from taskharbor.cli.moving import report_transitions
    from taskharbor.cli.records import record_audit

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
    from taskharbor.cli.moving import report_transitions
    from taskharbor.cli.operating import current_actor
    from taskharbor.cli.payloads import read_payload
    from taskharbor.cli.records import record_audit
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
    from taskharbor.cli.writing import harbor_for

    return harbor_for(app).make_client(driver).encode(payload, job_id, job_type=get_job(driver, job_id).type)


@jobs.command()
@click.argument("job_id", metavar="ID")
@url_option
@json_option
def why(*, url: str, job_id: str, as_json: bool) -> None:
    """Say what a job waits for.

    With --json: {"job_id", "status", "cause", "text", "until", "worker", "ahead", "kept"}
    """
    from taskharbor.cli.output import echo_data as show_data
    from taskharbor.cli.tables import printable
    from taskharbor.why import diagnose as ask

    with open_driver(url) as driver:
        answer = ask(driver.inspector, job_id_of(driver, job_id))
        show_data(answer.view(), as_json=as_json, plain=f"{answer.status}: {printable(answer.text)}")
