"""What is going on as a whole: queues, workers, and how fast jobs end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.cli.output import echo_data
from taskharbor.cli.tables import print_facts, print_table
from taskharbor.cli.times import span
from taskharbor.core.states import WAITING, Status
from taskharbor.views import queue_view, stats_view, worker_view
from taskharbor.why import is_alive

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from taskharbor.cli.tables import Cell
    from taskharbor.core.answers import QueueStats
    from taskharbor.core.model import WorkerRecord
    from taskharbor.drivers.base import Driver

QUEUES: Final = ("queue", "waiting", "running", "succeeded", "dead", "canceled", "oldest due", "paused")
_HOUR: Final = timedelta(hours=1)
WORKERS: Final = ("id", "host", "pid", "queues", "types", "jobs at once", "lost slots", "started", "seen", "alive")


def show_queues(driver: Driver, queues: Sequence[QueueStats], *, as_json: bool) -> None:
    now = driver.inspector.now()
    if as_json:
        echo_data({"queues": [queue_view(queue, now=now) for queue in queues]}, as_json=True, plain="")
    else:
        print_table(QUEUES, queue_rows(queues), now=now, empty="there are no queues: no job was stored yet")


def show_workers(driver: Driver, workers: Sequence[WorkerRecord], *, as_json: bool) -> None:
    now = driver.inspector.now()
    if as_json:
        views = [worker_view(worker) | {"is_alive": is_alive(worker, now)} for worker in workers]
        echo_data({"workers": views}, as_json=True, plain="")
    else:
        empty = "no worker was heard of lately; 'taskharbor worker APP' starts one"
        print_table(WORKERS, worker_rows(workers, now), now=now, empty=empty)


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
            None if queue.paused_at is None else f"by {queue.paused_by}",
        ]
        for queue in queues
    ]


def worker_rows(workers: Sequence[WorkerRecord], now: datetime) -> list[list[Cell]]:
    return [
        [
            worker.id,
            worker.host,
            str(worker.pid),
            " ".join(worker.queues),
            " ".join(worker.types),
            worker.concurrency,
            worker.lost_slots,
            worker.started_at,
            worker.seen_at,
            "yes" if is_alive(worker, now) else "no",
        ]
        for worker in workers
    ]


def show_stats(driver: Driver, *, as_json: bool) -> None:
    """Print all counts, and how many jobs ended lately."""
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
    """Return the one line that says how things are."""
    found = stats_of(driver)
    counts, age = found["counts"], found["oldest_age_seconds"]
    return " · ".join(
        [
            f"{sum(counts[status] for status in WAITING):,} waiting",
            f"{counts[Status.PROCESSING]:,} running",
            f"{counts[Status.DEAD]:,} dead",
            f"{sum(found['finished_last_hour'].values()):,} ended in the last hour",
            f"{found['workers_alive']} workers",
            "nothing is due" if age is None else f"the oldest is due for {span(timedelta(seconds=age))}",
        ]
    )


def stats_of(driver: Driver) -> dict[str, Any]:
    """Return counts over all queues, who works, and how many jobs ended lately, as the API shows them."""
    inspector, now = driver.inspector, driver.inspector.now()
    alive = sum(is_alive(worker, now) for worker in inspector.workers())
    return stats_view(inspector.queues(), inspector.finished_counts(since=now - _HOUR), workers_alive=alive, now=now)
