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

    from taskharbor.core.results import QueueStats
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

    Counts are a few seconds old.
    """
    from taskharbor.cli.stats_view import show_queues

    with open_driver(url) as driver:
        show_queues(driver, driver.inspector.queues(), as_json=as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--new", is_flag=True, help="Also if the queue has never had a job.")
@url_option
@json_option
def pause(*, url: str, names: tuple[str, ...], new: bool, as_json: bool) -> None:
    """Stop starting jobs of these queues. Running jobs continue."""
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=new)
        _report(driver, "pause", unique, driver.control.pause(unique, by=current_actor()), as_json=as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@url_option
@json_option
def resume(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Start jobs of these queues again."""
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=False)
        _report(driver, "resume", unique, driver.control.resume(unique), as_json=as_json)


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


def _report(driver: Driver, verb: str, names: Sequence[str], changed: Sequence[bool], *, as_json: bool) -> None:
    from taskharbor.cli.store import record_audit
    from taskharbor.views import queue_view

    for name, is_new in zip(names, changed, strict=True):
        if is_new:
            record_audit(driver, f"queues.{verb}", name)
        else:
            echo_status(f"queue {name} was already {verb}d")
    known, now = {queue.name: queue for queue in driver.inspector.queues()}, driver.inspector.now()
    views = [queue_view(known.get(name) or _empty(name), now=now) for name in names]
    echo_data({"queues": views}, as_json=as_json, plain="\n".join(names))


def _empty(name: str) -> QueueStats:
    """Return the statistics of a queue that has no counts yet."""
    from taskharbor.core.results import QueueStats

    return QueueStats(name=name, counts={}, oldest_due=None, paused_at=None, paused_by=None)


@click.group(cls=LazyGroup)
def workers() -> None:
    """List workers."""


@workers.command(name="list")
@url_option
@json_option
def list_workers(*, url: str, as_json: bool) -> None:
    """List the workers that sent a heartbeat recently, with their queues and types.

    With --json: {"workers": [...]}, each as the API returns it.
    """
    from taskharbor.cli.stats_view import show_workers

    with open_driver(url) as driver:
        show_workers(driver, driver.inspector.workers(), as_json=as_json)


@click.command()
@url_option
@json_option
def stats(*, url: str, as_json: bool) -> None:
    """Show job counts and recent throughput.

    Counts are a few seconds old.
    """
    from taskharbor.cli.stats_view import show_stats
    from taskharbor.cli.store import open_driver

    with open_driver(url) as driver:
        show_stats(driver, as_json=as_json)


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
