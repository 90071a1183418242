from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.options import app_option, json_option, url_or_app_option
from taskharbor.cli.values import ConflictingOptions, duration, moment, tag
from taskharbor.cli.waiting import WAIT_TIMEOUT

if TYPE_CHECKING:
    from datetime import timedelta

    from taskharbor.core.request import JobRequest


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
    from taskharbor.cli.operating import get_job
    from taskharbor.cli.output import echo_status
    from taskharbor.cli.records import record_audit
    from taskharbor.cli.shown import show_job
    from taskharbor.cli.waiting import require_success, wait_until_final
    from taskharbor.cli.writing import open_harbor

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
    from taskharbor.cli.payloads import payload_of, read_payload
    from taskharbor.core.request import JobRequest

    if pairs and payload is not None:
        raise ConflictingOptions("KEY=VALUE", "--payload")
    value = read_payload(payload) if payload is not None else payload_of(pairs)
    return JobRequest(payload=value, metadata=dict(tags), **asked)
