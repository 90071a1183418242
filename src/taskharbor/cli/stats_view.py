"""Printing of queues, workers and statistics, once or, for `top`, repeatedly."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from datetime import timedelta
from itertools import count as counting
from typing import TYPE_CHECKING, Any, Final

import click

from taskharbor.cli.render import (
    aligned,
    echo_data,
    echo_status,
    fit_columns,
    has_rich,
    print_facts,
    print_table,
    rich_table,
    span,
)
from taskharbor.cli.store import wait
from taskharbor.core.states import WAITING, Status
from taskharbor.diagnosis import is_alive
from taskharbor.queues import MAX_COUNT_AGE, counted_at, describe_queues
from taskharbor.settings import Settings
from taskharbor.views import iso_time, stats_view
from taskharbor.workers import describe_worker, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from taskharbor.cli.render import Cell
    from taskharbor.core.model import WorkerRecord
    from taskharbor.core.results import QueueStats
    from taskharbor.drivers.base import Driver, Inspector

QUEUE_TITLES: Final = ("queue", "waiting", "running", "succeeded", "dead", "canceled", "oldest due", "paused")
_HOUR: Final = timedelta(hours=1)
WORKER_TITLES: Final = (
    "id",
    "host",
    "pid",
    "queues",
    "types",
    "version",
    "jobs at once",
    "busy slots",
    "lost slots",
    "started",
    "seen",
    "state",
)
_CLEAR: Final = "\x1b[H\x1b[2J"
_QUIT_KEYS: Final = {"q", "Q", "\x1b", ""}  # with escape and the end of the input
_QUIT_HINT: Final = "press q to quit"


def show_queues(driver: Driver, queues: Sequence[QueueStats], *, as_json: bool) -> None:
    now = driver.inspector.now()
    if as_json:
        echo_data({"queues": describe_queues(driver.inspector, queues)}, as_json=True, plain="")
    else:
        print_table(QUEUE_TITLES, queue_rows(queues), now=now, empty="no queues; no job has been enqueued yet")
        if queues:
            report_age_of_counts(driver.inspector, now)


def report_age_of_counts(inspector: Inspector, now: datetime) -> None:
    """Say if the counts are out of date. Their numbers do not show it."""
    at = counted_at(inspector.duties())
    if at is None:
        echo_status("no worker or janitor has run yet: jobs may not be counted")
    elif now - at > MAX_COUNT_AGE:
        echo_status(f"the counts are {span(now - at)} old: workers and janitors update them, and none is live")


def show_workers(driver: Driver, workers: Sequence[WorkerRecord], *, as_json: bool) -> None:
    now = driver.inspector.now()
    if as_json:
        echo_data({"workers": [describe_worker(worker, now) for worker in workers]}, as_json=True, plain="")
    else:
        empty = "no live workers; 'taskharbor worker APP' starts one"
        print_table(WORKER_TITLES, worker_rows(workers, now), now=now, empty=empty)


def queue_rows(queues: Sequence[QueueStats]) -> list[list[Cell]]:
    return [
        [
            queue.name,
            sum(queue.counts[status] for status in WAITING),
            queue.counts[Status.PROCESSING],
            queue.counts[Status.SUCCEEDED],
            queue.counts[Status.DEAD],
            queue.counts[Status.CANCELED],
            queue.oldest_due,
            paused_text(queue),
        ]
        for queue in queues
    ]


def paused_text(queue: QueueStats) -> str | None:
    """Return by whom a queue was paused, why, and until when; None if it is not paused."""
    if queue.paused_at is None:
        return None
    reason = f": {queue.paused_reason}" if queue.paused_reason else ""
    until = f" until {iso_time(queue.paused_until)}" if queue.paused_until is not None else ""
    return f"by {queue.paused_by}{until}{reason}"


def worker_rows(workers: Sequence[WorkerRecord], now: datetime) -> list[list[Cell]]:
    return [
        [
            worker.id,
            worker.host,
            str(worker.pid),
            " ".join(worker.queues),
            " ".join(worker.types),
            worker.version,
            worker.concurrency,
            worker.busy_slots,
            worker.lost_slots,
            worker.started_at,
            worker.seen_at,
            state_of(worker, now) if worker.stopped_at is None else "stopped",
        ]
        for worker in workers
    ]


def show_stats(driver: Driver, *, as_json: bool) -> None:
    """Print all counts, and how many jobs ended in the last hour."""
    found = stats_of(driver)
    if as_json:
        echo_data(found, as_json=True, plain="")
        return
    age = found["oldest_age_seconds"]
    facts: list[tuple[str, Cell]] = [
        *((status.lower(), count) for status, count in found["counts"].items()),
        ("queues", found["queues"]),
        ("paused", " ".join(found["paused_queues"]) or None),
        ("workers alive", found["workers_alive"]),
        ("oldest due for", None if age is None else timedelta(seconds=age)),
        *((f"{status.lower()} in the last hour", count) for status, count in found["finished_last_hour"].items()),
    ]
    print_facts(facts, now=driver.inspector.now())


def headline(driver: Driver) -> str:
    """Return a one-line summary of the statistics."""
    found = stats_of(driver)
    counts, age = found["counts"], found["oldest_age_seconds"]
    return " · ".join(
        [
            f"{sum(counts[status] for status in WAITING):,} waiting",
            f"{counts[Status.PROCESSING]:,} running",
            f"{counts[Status.DEAD]:,} dead",
            f"{sum(found['finished_last_hour'].values()):,} ended in the last hour",
            f"{found['workers_alive']} workers",
            "no job is due" if age is None else f"oldest due for {span(timedelta(seconds=age))}",
        ]
    )


def stats_of(driver: Driver) -> dict[str, Any]:
    """Return the statistics of all queues and workers, as the API returns them."""
    inspector, now = driver.inspector, driver.inspector.now()
    alive = sum(is_alive(worker, now) for worker in inspector.workers())
    return stats_view(inspector.queues(), inspector.finished_counts(since=now - _HOUR), workers_alive=alive, now=now)


def watch(driver: Driver, *, every: timedelta, count: int | None, as_json: bool) -> None:
    """Print statistics repeatedly, *count* times or until the user quits."""
    is_live = sys.stdout.isatty() and not as_json
    with _screen() if is_live else _lines(as_json=as_json) as draw, _keys() as wait_for_quit:
        for number in counting(1):
            draw(driver)
            if number == count or wait_for_quit(every):
                return


@contextmanager
def _lines(*, as_json: bool) -> Iterator[Callable[[Driver], None]]:
    yield lambda driver: show_stats(driver, as_json=as_json)


@contextmanager
def _screen() -> Iterator[Callable[[Driver], None]]:
    """Yield a function that redraws the whole screen."""
    if not has_rich():
        yield lambda driver: click.echo(_CLEAR + _screen_text(driver))
        return
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(no_color=Settings.from_env().no_color or None), screen=True, auto_refresh=False) as live:

        def draw(driver: Driver) -> None:
            now = driver.inspector.now()
            queues, workers = queue_rows(driver.inspector.queues()), worker_rows(driver.inspector.workers(), now)
            tables = [
                rich_table(*fit_columns(titles, rows, now=now), now=now)
                for titles, rows in ((QUEUE_TITLES, queues), (WORKER_TITLES, workers))
                if rows
            ]
            live.update(Group(Text(headline(driver)), *tables, Text(_QUIT_HINT, style="dim")), refresh=True)

        yield draw


def _screen_text(driver: Driver) -> str:
    now = driver.inspector.now()
    queues, workers = queue_rows(driver.inspector.queues()), worker_rows(driver.inspector.workers(), now)
    tables = [
        aligned(*fit_columns(titles, rows, now=now), now=now)
        for titles, rows in ((QUEUE_TITLES, queues), (WORKER_TITLES, workers))
        if rows
    ]
    return "\n\n".join([headline(driver), *tables, _QUIT_HINT])


@contextmanager
def _keys() -> Iterator[Callable[[timedelta], bool]]:
    """Yield a function that waits for a duration and returns whether the user pressed a key to quit."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield _wait
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def wait_for_key(length: timedelta) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], length.total_seconds())
        return bool(ready) and sys.stdin.read(1) in _QUIT_KEYS

    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait(length: timedelta) -> bool:
    wait(length)
    return False
