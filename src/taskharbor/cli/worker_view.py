"""Printing of one worker, with the jobs that it holds and those that were lost with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.render import echo_data, print_facts, print_table
from taskharbor.views import job_view, run_time
from taskharbor.workers import describe_worker, held_by, lost_with, state_of

if TYPE_CHECKING:
    from datetime import datetime

    from taskharbor.cli.render import Cell
    from taskharbor.core.model import WorkerRecord
    from taskharbor.drivers.base import Driver
    from taskharbor.workers import LostJob

HELD_TITLES: Final = ("id", "type", "queue", "attempts", "started", "duration", "lease until")
LOST_TITLES: Final = ("id", "type", "attempt", "lost", "worker", "waited", "outcome", "status")


def show_worker(driver: Driver, worker: WorkerRecord, *, as_json: bool) -> None:
    inspector, now = driver.inspector, driver.inspector.now()
    held, lost = held_by(inspector, worker.id), lost_with(inspector, worker.id)
    if as_json:
        view = describe_worker(worker, now) | {
            "held": [job_view(job, now=now) for job in held.jobs],
            "holds_more": held.after is not None,
            "lost": [each.view() for each in lost],
        }
        echo_data(view, as_json=True, plain="")
        return
    print_facts(_facts(worker, now), now=now)
    click.echo("\njobs that it holds:")
    rows = [
        [
            str(job.id),
            job.type,
            job.queue,
            f"{job.attempt_count}/{job.max_attempts}",
            job.processing_started_at,
            run_time(job, now),
            job.lease_expires_at,
        ]
        for job in held.jobs
    ]
    print_table(HELD_TITLES, rows, now=now, empty="none")
    click.echo("\nlost with it, and the next attempt of each:")
    print_table(LOST_TITLES, [_lost_row(each) for each in lost], now=now, empty="none")


def _facts(worker: WorkerRecord, now: datetime) -> list[tuple[str, Cell]]:
    return [
        ("id", worker.id),
        ("state", state_of(worker, now)),
        ("host", worker.host),
        ("pid", str(worker.pid)),
        ("version", worker.version),
        ("library", worker.library),
        ("queues", " ".join(worker.queues)),
        ("types", " ".join(worker.types)),
        ("slots", f"{worker.busy_slots} busy, {worker.lost_slots} lost, of {worker.concurrency}"),
        ("started", worker.started_at),
        ("seen", worker.seen_at),
        ("stopped", worker.stopped_at),
    ]


def _lost_row(lost: LostJob) -> list[Cell]:
    following = lost.following
    return [
        str(lost.job.id),
        lost.job.type,
        lost.attempt.attempt,
        lost.attempt.ended_at,
        None if following is None else following.worker,
        None if following is None else following.wait,
        None if following is None else following.outcome,
        lost.job.status,
    ]
