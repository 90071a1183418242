from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.main import LazyGroup
from taskharbor.cli.options import duration_from, json_option, url_option
from taskharbor.cli.render import echo_data, echo_status
from taskharbor.cli.store import current_actor, known_queues, open_driver, require_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from taskharbor.drivers.base import Driver


@click.group(cls=LazyGroup)
def queues() -> None:
    """List queues; pause and resume them.

    With --json every command prints {"queues": [...]}, each as the API returns it.
    """


@queues.command(name="list")
@url_option
@json_option
def list_queues(*, url: str, as_json: bool) -> None:
    """List every queue that has jobs or is paused.

    Counts are a few seconds old, or older while no worker or janitor runs: then it says so.
    """
    from taskharbor.cli.stats_view import show_queues

    with open_driver(url) as driver:
        show_queues(driver, driver.inspector.queues(), as_json=as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--new", is_flag=True, help="Also if the queue has never had a job.")
@click.option("--reason", default="", help="Why; shown with the queue, and in the audit log.")
@click.option(
    "--for", "lasts", type=duration_from("1s"), metavar="TIME", help="Resume by itself after this time, such as 30m."
)
@url_option
@json_option
def pause(*, url: str, names: tuple[str, ...], new: bool, reason: str, lasts: timedelta | None, as_json: bool) -> None:
    """Stop starting jobs of these queues. Running jobs continue.

    With --for, a worker or janitor resumes them after that time.
    """
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=new)
        changed = driver.control.pause(unique, by=current_actor(), reason=reason, lasts=lasts)
        detail = {"why": reason, "for": "" if lasts is None else f"{lasts.total_seconds():g} s"}
        _report(driver, "pause", unique, changed, as_json=as_json, **detail)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@url_option
@json_option
def resume(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Start jobs of these queues again."""
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=False)
        _report(driver, "resume", unique, driver.control.resume(unique), as_json=as_json)


@queues.command(name="next")
@click.argument("name", metavar="QUEUE")
@click.option("-n", "--limit", type=click.IntRange(1, 50), default=10, show_default=True, help="How many to show.")
@url_option
@json_option
def next_up(*, url: str, name: str, limit: int, as_json: bool) -> None:
    """List the jobs of a queue that run next, in their order: those that are due, then the others.

    With --json: {"jobs": [...]}, each as the API returns it.
    """
    from taskharbor.cli.jobs_view import show_next

    with open_driver(url) as driver:
        show_next(driver, driver.inspector.next_up(name, limit=limit), queue=name, as_json=as_json)


def _known(driver: Driver, names: Sequence[str], *, may_be_new: bool) -> list[str]:
    """Return the names without duplicates, or raise `NoSuchName`."""
    from taskharbor.core.request import QUEUE_PATTERN
    from taskharbor.core.results import JobFilter

    known = known_queues(driver)
    for name in names:
        is_accepted = may_be_new and QUEUE_PATTERN.fullmatch(name) is not None
        # The counts are a few seconds old; a queue's first jobs may be newer.
        if not is_accepted and not driver.inspector.find(JobFilter(queue=name), limit=1).jobs:
            require_name("queue", name, known)
    return list(dict.fromkeys(names))


def _report(
    driver: Driver, verb: str, names: Sequence[str], changed: Sequence[bool], *, as_json: bool, **detail: str
) -> None:
    from taskharbor.cli.store import record_audit
    from taskharbor.queues import describe_queues, empty_queue

    detail = {key: value for key, value in detail.items() if value}
    for name, is_new in zip(names, changed, strict=True):
        if is_new:
            record_audit(driver, f"queues.{verb}", name, **detail)
        else:
            echo_status(f"queue {name} was already {verb}d")
    known = {queue.name: queue for queue in driver.inspector.queues()}
    views = describe_queues(driver.inspector, [known.get(name) or empty_queue(name) for name in names])
    echo_data({"queues": views}, as_json=as_json, plain="\n".join(names))


@click.command()
@click.option(
    "--every",
    type=duration_from("100ms"),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How often to refresh.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Exit after this many refreshes.")
@url_option
@json_option
def top(*, url: str, every: timedelta, count: int | None, as_json: bool) -> None:
    """Watch queues and workers live.

    On a terminal, press q or Ctrl-C to quit. Elsewhere, and with --json, it prints the output of
    'taskharbor stats' repeatedly.
    """
    from taskharbor.cli.stats_view import watch
    from taskharbor.cli.store import open_driver

    with open_driver(url) as driver:
        watch(driver, every=every, count=count, as_json=as_json)
