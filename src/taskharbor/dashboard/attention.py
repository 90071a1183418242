"""The rules of *Needs attention*: what is broken now, where to see it, and what to do about it.

`read_facts` reads the store with a few bounded statements, and `find_attention` decides; it is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, urlencode

from taskharbor.core.model import Schedule, WorkerRecord
from taskharbor.core.results import DeadLetterGroup, QueueStats
from taskharbor.core.states import WAITING, Status
from taskharbor.core.statistics import MINUTE, GroupBy, Metric, SeriesQuery, begin_of, version_at
from taskharbor.core.text import plural
from taskharbor.dashboard.texts import span
from taskharbor.diagnosis import is_alive
from taskharbor.drivers.base import Inspector
from taskharbor.statistics import MAX_VERSIONS
from taskharbor.workers import LostJob, WorkerState, held_by, lost_with, state_of

MAX_WAIT: Final = timedelta(seconds=60)
DEATHS_WITHIN: Final = timedelta(minutes=10)
MAX_DEATHS: Final = 10
MAX_LATE: Final = timedelta(seconds=60)
MAX_PAUSE: Final = timedelta(hours=1)
MIN_ATTEMPTS: Final = 10
"""With fewer attempts, half of them is no measure."""
MAX_FAILED_FRACTION: Final = 0.5
MAX_GROUPS: Final = 50
MAX_QUEUES_READ: Final = 8
"""Of how many queues the next jobs and the attempts are read: those with the longest waits."""
MAX_SILENT_READ: Final = 3
NEXT_JOBS: Final = 10
MAX_EVENTS: Final = 1_000
_FAILURES: Final = frozenset({"FAILED", "TIMED_OUT", "LOST"})


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """A rule: its id, what it is about, and what to do when it is tripped."""

    id: str
    remedy: str


NO_WORKER: Final = AttentionRule("no-worker", "Start a worker that serves the queue: taskharbor worker APP -q QUEUE.")
LONG_WAIT: Final = AttentionRule(
    "long-wait", "Start more workers, or find out what takes them so long on the queue's page."
)
UNHANDLED: Final = AttentionRule("unhandled-type", "Deploy workers whose code has this task.")
DEATHS: Final = AttentionRule("deaths", "Read the traceback of the group, fix the cause, then replay the group.")
SILENT: Final = AttentionRule(
    "silent-worker", "Look at the process; its jobs run again elsewhere when their leases have expired."
)
LOST_SLOTS: Final = AttentionRule("lost-slots", "Restart the worker, and give what its handlers call a timeout.")
LATE: Final = AttentionRule("late-schedule", "Start a worker that declares the schedule; workers fire schedules.")
OUTBOX: Final = AttentionRule("outbox", "Start a worker or a janitor with --sqs, which publishes dead-letter events.")
FAILING: Final = AttentionRule("failing", "Look at the jobs that will be retried: most have the same error.")
LONG_PAUSE: Final = AttentionRule("long-pause", "Resume the queue, or give the pause an end.")
RULES: Final = (NO_WORKER, LONG_WAIT, UNHANDLED, DEATHS, SILENT, LOST_SLOTS, LATE, OUTBOX, FAILING, LONG_PAUSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One thing that needs attention. *path* is the page that shows it, *link* what the link to it is called."""

    rule: AttentionRule
    subject: str
    text: str
    path: str
    link: str
    is_bad: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A silent worker, how many jobs it still holds, and those that were lost with it."""

    worker: WorkerRecord
    held: int
    lost: Sequence[LostJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules look at."""

    now: datetime
    queues: Sequence[QueueStats]
    workers: Sequence[WorkerRecord]
    schedules: Sequence[Schedule] = ()
    groups: Sequence[DeadLetterGroup] = ()
    first_versions: Mapping[str, str | None] = field(default_factory=dict)
    deaths: Mapping[str, int] = field(default_factory=dict)
    """How many jobs of each queue died within `DEATHS_WITHIN`."""
    next_types: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The types of the due jobs at the head of queues."""
    attempts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The recent attempts of queues by outcome."""
    silent: Sequence[Lost] = ()
    events: int = 0
    publisher_seen_at: datetime | None = None

    @property
    def alive(self) -> list[WorkerRecord]:
        """The workers with a recent heartbeat."""
        return [each for each in self.workers if is_alive(each, self.now)]


def read_facts(inspector: Inspector) -> Facts:
    """Read what the rules look at: few statements, none of which reads more when the store grows."""
    now, queues, workers = inspector.now(), inspector.queues(), inspector.workers()
    since = now - DEATHS_WITHIN
    deaths: dict[str, int] = {}
    for each in inspector.finished_counts(since=since, limit=MAX_EVENTS):
        if each.status is Status.DEAD:
            deaths[each.queue] = deaths.get(each.queue, 0) + each.count
    groups = [each for each in inspector.dead_letter_groups(limit=MAX_GROUPS) if each.last_at >= since]
    versions = inspector.versions(limit=MAX_VERSIONS) if groups else []
    busiest = sorted(queues, key=lambda queue: queue.oldest_due or now)[:MAX_QUEUES_READ]
    seen_at = inspector.publisher_seen_at()
    is_away = seen_at is not None and seen_at < now - MAX_LATE
    silent = [each for each in workers if state_of(each, now) is WorkerState.SILENT][:MAX_SILENT_READ]
    return Facts(
        now=now,
        queues=queues,
        workers=workers,
        schedules=list(inspector.schedules().values()),
        groups=groups,
        first_versions={each.fingerprint: version_at(versions, each.first_at) for each in groups},
        deaths=deaths,
        next_types={each.name: _next_types(inspector, each, now) for each in busiest if each.oldest_due is not None},
        attempts={each.name: _attempts(inspector, each.name, now) for each in busiest},
        silent=[_lost(inspector, each) for each in silent],
        events=inspector.outbox_pending(limit=MAX_EVENTS) if is_away else 0,
        publisher_seen_at=seen_at,
    )


def _next_types(inspector: Inspector, queue: QueueStats, now: datetime) -> frozenset[str]:
    jobs = inspector.next_up(queue.name, limit=NEXT_JOBS)
    return frozenset(job.type for job in jobs if job.scheduled_for <= now)


def _attempts(inspector: Inspector, queue: str, now: datetime) -> dict[str, float]:
    until = begin_of(now, MINUTE) + MINUTE
    query = SeriesQuery(
        metric=Metric.ATTEMPTS, by=GroupBy.STATUS, since=until - DEATHS_WITHIN, until=until, queue=queue
    )
    found: dict[str, float] = {}
    for point in inspector.series(query):
        found[point.group] = found.get(point.group, 0) + point.value
    return found


def _lost(inspector: Inspector, worker: WorkerRecord) -> Lost:
    return Lost(worker=worker, held=len(held_by(inspector, worker.id).jobs), lost=lost_with(inspector, worker.id))


def find_attention(facts: Facts) -> list[Attention]:
    """Return what needs attention, the worst first."""
    found = [each for check in _CHECKS for each in check(facts)]
    return sorted(found, key=lambda each: (not each.is_bad, RULES.index(each.rule), each.subject))


def _queue_checks(facts: Facts) -> Iterator[Attention]:
    for queue in facts.queues:
        waiting = sum(queue.counts.get(status, 0) for status in WAITING)
        path = f"/queues/{quote(queue.name, safe='')}"
        served = [each for each in facts.alive if queue.name in each.queues]
        wait = None if queue.oldest_due is None else facts.now - queue.oldest_due
        if queue.paused_at is not None:
            yield from _paused(facts, queue, path, waiting)
        elif wait is None:
            continue
        elif not served:
            # Without a janitor nothing counts new jobs.
            jobs = f"{plural(waiting, 'job')} {_waits(waiting)}" if waiting else "jobs wait"
            text = f"{jobs}, and no live worker serves it; oldest wait {span(wait)}"
            yield Attention(rule=NO_WORKER, subject=queue.name, text=text, path=path, link="Queue")
        else:
            yield from _served(facts, queue, served, wait)


def _served(facts: Facts, queue: QueueStats, served: Sequence[WorkerRecord], wait: timedelta) -> Iterator[Attention]:
    path = f"/queues/{quote(queue.name, safe='')}"
    handled = {name for each in served for name in each.types}
    for name in sorted(facts.next_types.get(queue.name, frozenset()) - handled):
        text = f"no live worker of queue {queue.name} handles this type; its jobs wait"
        query = urlencode({"queue": queue.name, "type": name})
        yield Attention(rule=UNHANDLED, subject=name, text=text, path=f"/jobs?{query}", link="Jobs")
    if wait > MAX_WAIT:
        text = f"the oldest job has waited for {span(wait)}; the limit is {span(MAX_WAIT)}"
        yield Attention(rule=LONG_WAIT, subject=queue.name, text=text, path=path, link="Queue", is_bad=False)


def _paused(facts: Facts, queue: QueueStats, path: str, waiting: int) -> Iterator[Attention]:
    if queue.paused_at is not None and queue.paused_at < facts.now - MAX_PAUSE:
        why = f" ({queue.paused_reason})" if queue.paused_reason else ""
        jobs = f"{plural(waiting, 'job')} {_waits(waiting)}"
        text = f"paused by {queue.paused_by} for {span(facts.now - queue.paused_at)}{why}; {jobs}"
        yield Attention(rule=LONG_PAUSE, subject=queue.name, text=text, path=path, link="Queue", is_bad=False)


def _waits(count: int) -> str:
    return "waits" if count == 1 else "wait"


def _deaths(facts: Facts) -> Iterator[Attention]:
    since = facts.now - DEATHS_WITHIN
    for group in facts.groups:
        is_new = group.first_at >= since
        died = group.count if is_new else min(group.count, facts.deaths.get(group.queue, 0))
        if not is_new and died < MAX_DEATHS:
            continue
        version = facts.first_versions.get(group.fingerprint)
        first = f" (first seen with {version})" if version else ""
        new = "a new error: " if is_new else ""
        about = "" if is_new else "up to "
        text = f"{new}{about}{died:,} died in {span(DEATHS_WITHIN)}: {_one_line(group.error)}{first}"
        query = urlencode({"queue": group.queue, "type": group.type})
        path = f"/dead/{quote(group.fingerprint, safe='')}?{query}" if group.fingerprint else "/dead"
        yield Attention(rule=DEATHS, subject=group.type, text=text, path=path, link="Group", is_bad=died >= MAX_DEATHS)


def _workers(facts: Facts) -> Iterator[Attention]:
    for each in facts.silent:
        seen = each.worker.seen_at
        if seen is None or not (each.held or each.lost or each.worker.busy_slots):
            continue
        parts = [f"silent for {span(facts.now - seen)}"]
        if each.held:
            parts.append(f"it holds {plural(each.held, 'job')}")
        if each.lost:
            again = sum(lost.following is not None for lost in each.lost)
            parts.append(f"{plural(len(each.lost), 'job')} of it {_are(len(each.lost))} back, {again} started again")
        yield Attention(
            rule=SILENT, subject=each.worker.id, text="; ".join(parts), path=_worker_path(each.worker), link="Worker"
        )
    for worker in facts.alive:
        if worker.lost_slots:
            text = f"{worker.lost_slots} of {plural(worker.concurrency, 'slot')} lost to handlers that do not return"
            yield Attention(
                rule=LOST_SLOTS, subject=worker.id, text=text, path=_worker_path(worker), link="Worker", is_bad=False
            )


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _worker_path(worker: WorkerRecord) -> str:
    return f"/workers/{quote(worker.id, safe='')}"


def _schedules(facts: Facts) -> Iterator[Attention]:
    declared = {name for worker in facts.alive for name in worker.schedules}
    for each in facts.schedules:
        if each.paused_at is not None or each.next_at is None or each.next_at > facts.now - MAX_LATE:
            continue
        is_undeclared = each.declared_at is not None and each.name not in declared
        why = "no live worker declares it" if is_undeclared else "no process fires it"
        text = f"late by {span(facts.now - each.next_at)}: {why}"
        path = f"/schedules/{quote(each.name, safe='')}"
        yield Attention(rule=LATE, subject=each.name, text=text, path=path, link="Schedule")


def _events(facts: Facts) -> Iterator[Attention]:
    if facts.events and facts.publisher_seen_at is not None:
        number = f"{facts.events:,}{'+' if facts.events == MAX_EVENTS else ''}"
        away = span(facts.now - facts.publisher_seen_at)
        text = f"{number} dead-letter events wait; no process has published any for {away}"
        yield Attention(rule=OUTBOX, subject="Outbox", text=text, path="/health", link="Health", is_bad=False)


def _failing(facts: Facts) -> Iterator[Attention]:
    for queue, outcomes in facts.attempts.items():
        total = sum(outcomes.values())
        failed = sum(value for outcome, value in outcomes.items() if outcome in _FAILURES)
        if total >= MIN_ATTEMPTS and failed >= total * MAX_FAILED_FRACTION:
            text = f"{failed:,.0f} of {total:,.0f} attempts failed in {span(DEATHS_WITHIN)}"
            query = urlencode({"queue": queue, "status": "FAILED"})
            yield Attention(rule=FAILING, subject=queue, text=text, path=f"/jobs?{query}", link="Jobs")


def _one_line(text: str) -> str:
    return text.partition("\n")[0][:160]


_CHECKS: Final = (_queue_checks, _deaths, _workers, _schedules, _events, _failing)


def calm_sentence(facts: Facts) -> str:
    """Return the sentence for a store where nothing needs attention."""
    waits: Iterable[timedelta] = (facts.now - each.oldest_due for each in facts.queues if each.oldest_due is not None)
    oldest = max(waits, default=None)
    wait = "nothing waits" if oldest is None else f"oldest wait {span(max(oldest, timedelta(0)))}"
    return f"Nothing needs you. {plural(len(facts.queues), 'queue')}, {plural(len(facts.alive), 'worker')}, {wait}."
