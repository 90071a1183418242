from __future__ import annotations

from typing import TYPE_CHECKING

import click

from taskharbor.cli.lazy import LazyGroup
from taskharbor.cli.operating import current_actor, known_queues, open_driver, require_name
from taskharbor.cli.options import json_option, url_option
from taskharbor.cli.output import echo_data, echo_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.core.answers import QueueStats
    from taskharbor.drivers.base import Driver


@click.group(cls=LazyGroup)
def queues() -> None:
    """Look at queues, pause them, and let them go on.

    With --json every command prints {"queues": [...]}, each as the API shows it.
    """


@queues.command(name="list")
@url_option
@json_option
def list_queues(*, url: str, as_json: bool) -> None:
    """List every queue that holds jobs or is paused.

    Counts are as of a few seconds ago.
    """
    from taskharbor.cli.overview import show_queues

    with open_driver(url) as driver:
        show_queues(driver, driver.inspector.queues(), as_json=as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--new", is_flag=True, help="Even if no job was ever in it.")
@url_option
@json_option
def pause(*, url: str, names: tuple[str, ...], new: bool, as_json: bool) -> None:
    """Let no more jobs of these queues start. Those that run go on."""
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=new)
        _report(driver, "pause", unique, driver.control.pause(unique, by=current_actor()), as_json=as_json)


@queues.command()
@click.argument("names", nargs=-1, required=True, metavar="QUEUE...")
@url_option
@json_option
def resume(*, url: str, names: tuple[str, ...], as_json: bool) -> None:
    """Let jobs of these queues start again."""
    with open_driver(url) as driver:
        unique = _known(driver, names, may_be_new=False)
        _report(driver, "resume", unique, driver.control.resume(unique), as_json=as_json)


def _known(driver: Driver, names: Sequence[str], *, may_be_new: bool) -> list[str]:
    """Return each name once, or raise `NoSuchName`."""
    from taskharbor.core.answers import JobFilter
    from taskharbor.core.request import QUEUE_PATTERN

    known = known_queues(driver)
    for name in names:
        is_taken = may_be_new and QUEUE_PATTERN.fullmatch(name) is not None
        # The counts are some seconds old: a queue's first jobs may be younger.
        if not is_taken and not driver.inspector.find(JobFilter(queue=name), limit=1).jobs:
            require_name("queue", name, known)
    return list(dict.fromkeys(names))


def _report(driver: Driver, verb: str, names: Sequence[str], changed: Sequence[bool], *, as_json: bool) -> None:
    from taskharbor.cli.records import record_audit
    from taskharbor.views import queue_view

    for name, is_new in zip(names, changed, strict=True):
        if is_new:
            record_audit(driver, f"queues.{verb}", name)
        else:
            echo_status(f"queue {name} was {verb}d before")
    known, now = {queue.name: queue for queue in driver.inspector.queues()}, driver.inspector.now()
    views = [queue_view(known.get(name) or _empty(name), now=now) for name in names]
    echo_data({"queues": views}, as_json=as_json, plain="\n".join(names))


def _empty(name: str) -> QueueStats:
    """Return a queue whose jobs nobody has counted yet."""
    from taskharbor.core.answers import QueueStats

    return QueueStats(name=name, counts={}, oldest_due=None, paused_at=None, paused_by=None)
