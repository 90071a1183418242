"""Explain why a job has not run, or how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.claims import UNHANDLED_AFTER
from taskharbor.core.errors import JobNotFound, ResultTimeout, StoreUnavailable
from taskharbor.core.messages import OVERDUE_AFTER, DeliveryRole
from taskharbor.core.model import PUBLISHER_AWAY
from taskharbor.core.results import JobFilter, Kept
from taskharbor.core.states import WAITING, Status
from taskharbor.core.text import duration_text
from taskharbor.views import describe_end, iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.ids import JobId
    from taskharbor.core.messages import DeliveryNote
    from taskharbor.core.model import JobSummary, WorkerRecord
    from taskharbor.core.results import Page, QueueStats
    from taskharbor.drivers.base import Inspector

STUCK_AFTER: Final = timedelta(seconds=30)
"""From when on a due job is remarkable if workers have free slots. They report these about every ten seconds."""
WORKER_ALIVE_WITHIN: Final = timedelta(seconds=30)
"""A worker without a heartbeat for longer counts as dead. Three heartbeat intervals."""
WORKER_GONE_AFTER: Final = timedelta(minutes=5)
"""A worker without a heartbeat for longer is not expected to return."""
MAX_COUNTED: Final = 50
"""The maximum number of waiting jobs that are counted exactly; for more, the store's statistics are used."""


class Cause(StrEnum):
    """What a job waits for, or why it does not wait."""

    FINAL = "final"
    LEASED = "leased"
    LEASE_OVER = "lease-over"
    NOT_DUE = "not-due"
    PAUSED = "paused"
    UNHANDLED = "unhandled"
    NO_ENQUEUER = "no-enqueuer"
    SEND_FAILED = "send-failed"
    RECEIVE_FAILED = "receive-failed"
    MESSAGE = "message"
    AHEAD = "ahead"
    NEXT = "next"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The first cause that keeps a job in its status. ``cause`` is for programs, ``text`` for people.

    ``until`` is when the cause ends, if known. ``ahead`` is the approximate number of jobs that come
    first. ``kept`` is why a finished job cannot be removed yet.
    """

    job_id: JobId
    status: Status
    cause: Cause
    text: str
    until: datetime | None = None
    worker: str | None = None
    ahead: int | None = None
    kept: Kept | None = None

    def view(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "job_id": str(self.job_id),
            "status": self.status.value,
            "cause": self.cause.value,
            "text": self.text,
            "until": iso_time(self.until),
            "worker": self.worker,
            "ahead": self.ahead,
            "kept": self.kept,
        }


def diagnose(inspector: Inspector, job_id: JobId) -> Diagnosis:
    """Return why a job is in its status, or raise `JobNotFound`. Reads few rows, however long the queue."""
    job = inspector.summaries([job_id]).get(job_id)
    if job is None:
        raise JobNotFound(job_id)
    return diagnose_all(inspector, [job])[job_id]


def diagnose_all(inspector: Inspector, jobs: Sequence[JobSummary]) -> dict[JobId, Diagnosis]:
    """Return why each of *jobs* is in its status. What several of them need is read once."""
    facts = _Facts(inspector, jobs)
    return {job.id: _diagnose(facts, job) for job in jobs}


def _diagnose(facts: _Facts, job: JobSummary) -> Diagnosis:
    if job.status.is_final:
        return _final(job, facts.kept(job.id))
    if job.status is Status.PROCESSING:
        return _held(job, facts)
    return _not_due(job, facts.now) if job.scheduled_for > facts.now else _not_started(facts, job, facts.now)


class _Facts:
    """What the diagnoses of some jobs need, each read at most once."""

    def __init__(self, inspector: Inspector, jobs: Sequence[JobSummary]) -> None:
        self._inspector = inspector
        self._final = [job.id for job in jobs if job.status.is_final]
        self.delivery = cache(inspector.delivery)
        self.first_waiting = cache(self._first_waiting)

    @cached_property
    def now(self) -> datetime:
        return self._inspector.now()

    @cached_property
    def queues(self) -> dict[str, QueueStats]:
        return {each.name: each for each in self._inspector.queues()}

    @cached_property
    def workers(self) -> list[WorkerRecord]:
        return self._inspector.workers()

    @cached_property
    def alive(self) -> list[WorkerRecord]:
        return [each for each in self.workers if is_alive(each, self.now)]

    @cached_property
    def _unpublished(self) -> set[JobId]:
        return {row.event.job_id for row in self._inspector.outbox(self._final) if not row.is_done}

    @cached_property
    def _has_publisher(self) -> bool:
        seen_at = self._inspector.publisher_seen_at()
        return seen_at is not None and seen_at > self.now - PUBLISHER_AWAY

    def kept(self, job_id: JobId) -> Kept | None:
        """Return why prune and purge keep a finished job: its event is not published yet."""
        return Kept.UNPUBLISHED if job_id in self._unpublished and self._has_publisher else None

    def _first_waiting(self, queue: str) -> Page:
        return self._inspector.find(JobFilter(queue=queue, statuses=WAITING), limit=MAX_COUNTED)


def timeout_error(inspector: Inspector, job_id: JobId, timeout: timedelta) -> ResultTimeout:
    """Return the error of a wait for a job that has ended after *timeout*. It says what the job waits for."""
    try:
        found = diagnose(inspector, job_id)
    except (JobNotFound, StoreUnavailable):  # the job was removed meanwhile, or the store cannot be asked
        return ResultTimeout(job_id, timeout)
    return ResultTimeout(job_id, timeout, found.status, found.text)


def is_alive(worker: WorkerRecord, now: datetime) -> bool:
    """Return whether the worker's last heartbeat is recent."""
    return _is_recent(worker.seen_at, now)


def _is_recent(seen_at: datetime | None, now: datetime) -> bool:
    return seen_at is not None and seen_at > now - WORKER_ALIVE_WITHIN


def declared_schedules(inspector: Inspector) -> frozenset[str]:
    """Return the names of the schedules that live workers declare in their code."""
    now = inspector.now()
    return frozenset(name for each in inspector.workers() if is_alive(each, now) for name in each.schedules)


def _not_started(facts: _Facts, job: JobSummary, now: datetime) -> Diagnosis:
    """Return why no worker runs a job that is due."""
    queue = facts.queues.get(job.queue)
    if queue is not None and queue.paused_at is not None:
        return _paused(job, queue)
    alive = [each for each in facts.alive if job.queue in each.queues]
    if not any(job.type in each.types for each in alive):
        return _unhandled(job, alive, now)
    if now < job.scheduled_for + OVERDUE_AFTER:
        notes = {each.role: each for each in facts.delivery(job.queue) if _is_recent(each.seen_at, now)}
        if job.status is Status.ENQUEUED or DeliveryRole.RECEIVER in notes:
            return _message(job, notes)
    ahead, is_exact = _ahead(facts, job, queue, {name for each in alive for name in each.types})
    if ahead:
        return _behind(job, ahead, is_exact=is_exact)
    has_free_slots = any(
        each.busy_slots + each.lost_slots < each.concurrency for each in alive if job.type in each.types
    )
    return _next(job, now, has_free_slots=has_free_slots)


def _final(job: JobSummary, kept: Kept | None) -> Diagnosis:
    reason = ": " + describe_end(job).partition("\n")[0] if job.status is Status.DEAD else ""
    note = "" if kept is None else "; it cannot be removed yet: dead-letter event not published yet"
    return _diagnosis(job, Cause.FINAL, f"it ended at {iso_time(job.completed_at)}{reason}{note}", kept=kept)


def _held(job: JobSummary, facts: _Facts) -> Diagnosis:
    until, worker = job.lease_expires_at, job.worker_id
    if until is not None and until <= facts.now:
        text = f"the lease of {worker} expired at {iso_time(until)}; reclaim pending"
        return _diagnosis(job, Cause.LEASE_OVER, text, worker=worker)
    text = f"it is leased to {worker} until {iso_time(until)}"
    if job.cancel_requested_at is not None:
        text += f"; cancel requested at {iso_time(job.cancel_requested_at)}"
    silent = [each for each in facts.workers if each.id == worker and not is_alive(each, facts.now)]
    if silent:
        text += (
            f"; that worker was last seen at {iso_time(silent[0].seen_at)}: if it is dead, the job is reclaimed then"
        )
    return _diagnosis(job, Cause.LEASED, text, until=until, worker=worker)


def _not_due(job: JobSummary, now: datetime) -> Diagnosis:
    after = " after its last attempt failed" if job.status is Status.FAILED else ""
    left = timedelta(seconds=round((job.scheduled_for - now).total_seconds()))
    text = f"it is due at {iso_time(job.scheduled_for)}{after}, in {left}"
    return _diagnosis(job, Cause.NOT_DUE, text, until=job.scheduled_for)


def _paused(job: JobSummary, queue: QueueStats) -> Diagnosis:
    text = f"queue {job.queue!r} was paused by {queue.paused_by} at {iso_time(queue.paused_at)}: resume it"
    return _diagnosis(job, Cause.PAUSED, text)


def _unhandled(job: JobSummary, alive: list[WorkerRecord], now: datetime) -> Diagnosis:
    if not alive:
        return _diagnosis(job, Cause.UNHANDLED, f"no live worker serves queue {job.queue!r}: start one")
    text = f"no live worker of queue {job.queue!r} handles type {job.type!r}: start one that does"
    until = job.scheduled_for + UNHANDLED_AFTER
    if now < until:
        text += f"; it is left for other workers until {iso_time(until)}, then it becomes a dead letter"
        return _diagnosis(job, Cause.UNHANDLED, f"{text} (by default; see --unknown-types)", until=until)
    text += f"; it was left for other workers until {iso_time(until)}, and becomes a dead letter when a slot is free"
    return _diagnosis(job, Cause.UNHANDLED, f"{text}, unless workers run with --unknown-types leave")


def _message(job: JobSummary, notes: Mapping[DeliveryRole, DeliveryNote]) -> Diagnosis:
    """Return what became of the message of a job. Without one, workers claim the job from the store later."""
    until = job.scheduled_for + OVERDUE_AFTER
    cause, text = _message_cause(job, notes.get(DeliveryRole.SENDER), notes.get(DeliveryRole.RECEIVER))
    text += f"; if no message arrives, workers claim the job from the store at {iso_time(until)}"
    return _diagnosis(job, cause, text, until=until)


def _message_cause(job: JobSummary, sender: DeliveryNote | None, receiver: DeliveryNote | None) -> tuple[Cause, str]:
    queue = repr(job.queue)
    if job.message_sent_at is not None:
        sent = f"its message was sent at {iso_time(job.message_sent_at)}"
        if receiver is not None and receiver.problem:
            problem = f"workers cannot receive messages of queue {queue}: {receiver.problem}"
            return Cause.RECEIVE_FAILED, f"{sent}, but {problem}"
        return Cause.MESSAGE, f"{sent}, and no worker has received it yet"
    if sender is None:
        start = f"start one: taskharbor enqueuer -q {job.queue}"
        return Cause.NO_ENQUEUER, f"its message is not sent, because no enqueuer serves queue {queue}: {start}"
    if sender.problem:
        return Cause.SEND_FAILED, f"its message cannot be sent: {sender.problem}"
    if job.dispatch_at is not None:
        return Cause.MESSAGE, "its message is being sent"
    return Cause.MESSAGE, f"the enqueuer of queue {queue} has not sent its message yet"


def _next(job: JobSummary, now: datetime, *, has_free_slots: bool) -> Diagnosis:
    text, since = "it is next: it runs when a worker has a free slot", now - job.scheduled_for
    if has_free_slots and since > STUCK_AFTER:
        text = (
            f"it is next, and has been due for {duration_text(since.total_seconds())} although workers have free "
            "slots: another transaction may have locked it; see 'taskharbor doctor'"
        )
    return _diagnosis(job, Cause.NEXT, text, ahead=0)


def _behind(job: JobSummary, ahead: int, *, is_exact: bool) -> Diagnosis:
    jobs = "job of its queue comes" if ahead == 1 else "jobs of its queue come"
    text = f"{'' if is_exact else 'about '}{ahead:,} {jobs} first"
    return _diagnosis(job, Cause.AHEAD, text, ahead=ahead)


def _ahead(facts: _Facts, job: JobSummary, queue: QueueStats | None, handled: set[str]) -> tuple[int, bool]:
    """Return how many jobs come first, and whether the number is exact. Workers pass over types not *handled*."""
    page = facts.first_waiting(job.queue)
    if page.after is None:
        due = [each for each in page.jobs if each.scheduled_for <= facts.now and each.type in handled]
        return sum(_position(each) < _position(job) for each in due), True
    waiting = 0 if queue is None else sum(queue.counts.get(status, 0) for status in WAITING)
    return max(waiting - 1, MAX_COUNTED), False


def _position(job: JobSummary) -> tuple[int, datetime, JobId]:
    return job.priority, job.scheduled_for, job.id


def _diagnosis(job: JobSummary, cause: Cause, text: str, **more: Any) -> Diagnosis:
    return Diagnosis(job_id=job.id, status=job.status, cause=cause, text=text, **more)
