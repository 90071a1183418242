"""Checks of any store by what it stores about its jobs, queues, workers and schedules."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from taskharbor.core.results import JobFilter
from taskharbor.core.states import WAITING, Status
from taskharbor.core.text import duration_text, plural
from taskharbor.diagnosis import is_alive
from taskharbor.doctor.delivery import check_delivery
from taskharbor.doctor.findings import Finding, Level, run_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from taskharbor.core.model import JobSummary, WorkerRecord
    from taskharbor.core.results import QueueStats
    from taskharbor.doctor.findings import Problem
    from taskharbor.drivers.base import Inspector

MAX_CLOCK_SKEW: Final = timedelta(seconds=1)
OVERDUE_AFTER: Final = timedelta(minutes=1)
"""How long jobs and schedules may be overdue, and leases expired, before that is a problem."""
PUBLISHER_LATE_AFTER: Final = timedelta(minutes=10)
SAMPLE: Final = 200
"""The number of jobs of a queue that are examined, and of jobs in one read."""
MAX_RUNNING: Final = 10_000
"""The number of running jobs whose leases are examined."""
MAX_NAMED: Final = 5
_SEE_LOCKS: Final = "remove the cause, which may be among the findings above ('locks', 'indexes'); then run this again"


def check_jobs(inspector: Inspector, *, keep: timedelta, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Check queues, types, leases, workers, schedules, delivery, dead letters, their events, and retention."""
    read: list[tuple[datetime, Sequence[QueueStats], Sequence[WorkerRecord]]] = []

    def read_all() -> Iterator[Problem]:
        read.append((inspector.now(), inspector.queues(), inspector.workers()))
        return iter(())

    for finding in run_check("jobs", "they can be read", read_all, if_unavailable=_SEE_LOCKS):
        if finding.level is not Level.OK:  # what follows needs them, and would fail in the same way
            yield finding
            return
    [(now, queues, workers)] = read
    alive = [each for each in workers if is_alive(each, now)]
    yield from run_check("clock", "the clocks of this machine and the store agree", lambda: _clock(inspector, clock))
    yield from run_check(
        "queues", "every queue with jobs due for a minute has a live worker", lambda: _queues(queues, alive, now)
    )
    yield from run_check(
        "types", "live workers handle the types of all due jobs seen", lambda: _types(inspector, queues, alive, now)
    )
    yield from run_check("leases", "expired leases are ended in time", lambda: _leases(inspector, now))
    yield from run_check("workers", f"live workers: {len(alive)}; no slot lost", lambda: _workers(alive))
    yield from run_check("schedules", "schedules fire in time", lambda: _schedules(inspector, alive, now))
    yield from run_check(
        "delivery",
        "no problem with messages is known",
        lambda: check_delivery(inspector, queues, now=now, overdue_after=OVERDUE_AFTER),
    )
    yield from run_check("dead letters", "no dead letters", lambda: _dead(queues))
    yield from run_check("events", "dead-letter events are published", lambda: _events(inspector, now))
    yield from run_check("retention", "no job is kept past its retention by an event", lambda: _kept(inspector, keep))


def _clock(inspector: Inspector, clock: Callable[[], float]) -> Iterator[Problem]:
    before = clock()
    store = inspector.now()
    after = clock()
    local = datetime.fromtimestamp((before + after) / 2, UTC)
    skew, doubt = store - local, timedelta(seconds=(after - before) / 2)
    if abs(skew) - doubt > MAX_CLOCK_SKEW:
        where = "ahead of" if skew > timedelta(0) else "behind"
        yield (
            Level.WARN,
            f"the store's clock is {duration_text(abs(skew).total_seconds())} {where} the clock of this machine",
            "synchronize both with NTP; leases and due times follow the store's clock, log lines this one",
        )


def _queues(queues: Sequence[QueueStats], alive: Sequence[WorkerRecord], now: datetime) -> Iterator[Problem]:
    served = {name for worker in alive for name in worker.queues}
    for queue in queues:
        if queue.oldest_due is None or queue.oldest_due > now - OVERDUE_AFTER:
            continue
        # Janitors keep the counts current. Without any, new jobs are not counted; their due time is always read.
        count = sum(queue.counts.get(status, 0) for status in WAITING)
        waiting = plural(count, "waiting job") if count else "waiting jobs"
        for_ = f"the oldest has been due for {duration_text((now - queue.oldest_due).total_seconds())}"
        if queue.paused_at is not None:
            yield (
                Level.WARN,
                f"queue {queue.name!r} was paused by {queue.paused_by}; it has {waiting}, {for_}",
                f"taskharbor queues resume {queue.name}",
            )
        elif queue.name not in served:
            yield (
                Level.FAIL,
                f"queue {queue.name!r} has {waiting} and no live worker; {for_}",
                f"start one: taskharbor worker -q {queue.name}",
            )


def _types(
    inspector: Inspector, queues: Sequence[QueueStats], alive: Sequence[WorkerRecord], now: datetime
) -> Iterator[Problem]:
    for queue in queues:
        serving = [each for each in alive if queue.name in each.queues]
        if not serving or queue.oldest_due is None:
            continue
        handled = {job_type for each in serving for job_type in each.types}
        # Unhandled jobs stay at the head of their priority; those of a lower one are found if they are new.
        newest = inspector.find(JobFilter(queue=queue.name, statuses=WAITING), limit=SAMPLE).jobs
        seen = [*inspector.next_up(queue.name, limit=SAMPLE), *newest]
        unhandled = {each.type for each in seen if each.scheduled_for <= now} - handled
        if unhandled:
            yield (
                Level.FAIL,
                f"no live worker of queue {queue.name!r} handles {_named(unhandled)}",
                "deploy workers with these tasks; see --unknown-types for what becomes of their jobs",
            )


def _leases(inspector: Inspector, now: datetime) -> Iterator[Problem]:
    late = [
        each.lease_expires_at
        for each in _running(inspector)
        if each.lease_expires_at is not None and each.lease_expires_at < now - OVERDUE_AFTER
    ]
    if late:
        ago = duration_text((now - min(late)).total_seconds())
        yield (
            Level.FAIL,
            f"{plural(len(late), 'lease')} expired without being ended, the first one {ago} ago",
            "start a worker or 'taskharbor janitor'; a paused queue keeps its expired leases until it is resumed",
        )


def _running(inspector: Inspector) -> Iterator[JobSummary]:
    """Return running jobs, newest first. Forgotten leases are those of the oldest ones."""
    running, after = JobFilter(statuses=frozenset({Status.PROCESSING})), None
    for _ in range(MAX_RUNNING // SAMPLE):
        page = inspector.find(running, limit=SAMPLE, after=after)
        yield from page.jobs
        after = page.after
        if after is None:
            return


def _workers(alive: Sequence[WorkerRecord]) -> Iterator[Problem]:
    for each in alive:
        if each.lost_slots:
            name, slots = f"{each.id} (pid {each.pid} on {each.host})", f"{each.lost_slots} of {each.concurrency} slots"
            yield (
                Level.WARN,
                f"worker {name} has lost {slots} to sync handlers that did not return after their timeout",
                "restart it; give what its handlers call a timeout, or set isolate=True, so that they can be killed",
            )


def _schedules(inspector: Inspector, alive: Sequence[WorkerRecord], now: datetime) -> Iterator[Problem]:
    declared = {name for worker in alive for name in worker.schedules}
    for name, schedule in inspector.schedules().items():
        if schedule.paused_at is not None:
            continue
        if schedule.declared_at is not None and name not in declared:
            yield (
                Level.WARN,
                f"no running code declares schedule {name!r}; it does not fire",
                f"start a worker of its app, or remove it: taskharbor schedules delete {name}",
            )
        elif schedule.next_at is not None and schedule.next_at < now - OVERDUE_AFTER:
            late = duration_text((now - schedule.next_at).total_seconds())
            yield (
                Level.FAIL,
                f"schedule {name!r} should have fired {late} ago",
                "start a worker: workers fire schedules",
            )


def _dead(queues: Sequence[QueueStats]) -> Iterator[Problem]:
    dead: Mapping[str, int] = {
        queue.name: queue.counts[Status.DEAD] for queue in queues if queue.counts.get(Status.DEAD)
    }
    if dead:
        where = ", ".join(f"{name} {count:,}" for name, count in list(dead.items())[:MAX_NAMED])
        yield (
            Level.WARN,
            f"{plural(sum(dead.values()), 'dead letter')}: {where}",
            "taskharbor dead groups shows their errors; requeue or purge them",
        )


def _events(inspector: Inspector, now: datetime) -> Iterator[Problem]:
    seen_at = inspector.publisher_seen_at()
    if seen_at is None or seen_at > now - PUBLISHER_LATE_AFTER:  # without a publisher, events are given up in time
        return
    if pending := inspector.outbox_pending(limit=SAMPLE):
        number = f"{pending:,}" if pending < SAMPLE else f"at least {SAMPLE:,}"
        away = duration_text((now - seen_at).total_seconds())
        yield (
            Level.WARN,
            f"{number} dead-letter events wait, and no process has published events for {away}",
            "start a worker or a janitor with --sqs; without any, they are given up a week after the last one",
        )


def _kept(inspector: Inspector, keep: timedelta) -> Iterator[Problem]:
    kept = inspector.kept_by_events(older_than=keep, limit=SAMPLE)
    if kept:
        number = f"{len(kept):,}" if len(kept) < SAMPLE else f"at least {SAMPLE:,}"
        yield (
            Level.WARN,
            f"{number} finished jobs are past their retention, but kept: their dead-letter events are not published",
            f"run a worker with --sqs, which publishes events; taskharbor jobs why {kept[0]}",
        )


def _named(names: set[str]) -> str:
    shown = ", ".join(repr(name) for name in sorted(names)[:MAX_NAMED])
    return shown + (" and others" if len(names) > MAX_NAMED else "")
