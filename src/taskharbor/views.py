"""The JSON forms of jobs, queues, workers and schedules, as the HTTP API and ``--json`` return them."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.model import Job
from taskharbor.core.operations import filter_to_json, sort_refusals
from taskharbor.core.states import FINAL, Event, Status, next_statuses

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from datetime import datetime

    from taskharbor.core.failure import Failure
    from taskharbor.core.log_lines import AttemptLines
    from taskharbor.core.model import ApiKey, Attempt, JobSummary, Schedule, WorkerRecord
    from taskharbor.core.operations import Operation
    from taskharbor.core.results import DeadLetterGroup, FinishedCount, JobFilter, QueueStats

View = dict[str, Any]


def job_view(
    job: JobSummary, *, now: datetime, failure: Failure | None = None, with_payload: bool = False, root: str = ""
) -> View:
    """Return the JSON form of a job at the store's time *now*.

    *failure* is the result of `last_failure`; without it, the error is parsed from the job's
    ``last_error``. Payload and result may be secret and are included only *with_payload*. *root* is the
    path prefix of the API.
    """
    job_id = str(job.id)
    view = {
        "id": job_id,
        "type": job.type,
        "queue": job.queue,
        "status": job.status.value,
        "attempt_count": job.attempt_count,
        "max_attempts": job.max_attempts,
        "life": job.life,
        "priority": job.priority,
        "timeout": seconds(job.timeout),
        "created_at": iso_time(job.created_at),
        "scheduled_for": iso_time(job.scheduled_for),
        "started_at": iso_time(job.processing_started_at),
        "completed_at": iso_time(job.completed_at),
        "cancel_requested_at": iso_time(job.cancel_requested_at),
        "wait_seconds": wait_time(job, now).total_seconds(),
        "run_seconds": seconds(run_time(job, now)),
        "progress": progress_view(job),
        "lease": _lease(job),
        "error": error_view(job.last_error, failure),
        "dead": None if job.dead_at is None else {"reason": job.dead_reason, "at": iso_time(job.dead_at)},
        "idempotency_key": job.idempotency_key,
        "metadata": dict(job.metadata),
        "links": _links(job_id, root),
        "actions": actions(job),
    }
    if with_payload:
        assert isinstance(job, Job)  # noqa: S101  a summary has neither
        view |= payload_view(job)
    return view


def payload_view(job: Job) -> View:
    """Return the JSON form of a job's payload and result, which may be secret."""
    result = None if job.result is None else stored_value(job.result)
    return {"payload": stored_value(job.payload), "result": result}


def actions(job: JobSummary) -> list[str]:
    """Return the actions that an operator may take on the job now.

    A requested cancel cannot be requested again.
    """
    allowed = allowed_actions(job.status)
    return allowed if job.cancel_requested_at is None else [each for each in allowed if each != Event.CANCEL]


def allowed_actions(status: Status) -> list[str]:
    """Return the actions that an operator may take on a job in *status*."""
    return [*_ALLOWED[status]]


def last_failure(attempts: Iterable[Attempt]) -> Failure | None:
    """Return the failure of the newest failed attempt. *attempts* are oldest first."""
    failures = [each.failure for each in attempts if each.failure is not None and each.event is not Event.REQUEUE]
    return failures[-1] if failures else None


def stored_value(data: bytes) -> Any:
    r"""Return the JSON form of a stored payload or result.

    Types that JSON lacks keep the tag of `taskharbor.core.codec`. Bytes that are not JSON, such as those
    of another codec, are returned with the ``$bytes`` tag.

    >>> stored_value(b'{"on":{"$date":"2024-02-29"},"$$mine":1}')
    {'on': {'$date': '2024-02-29'}, '$mine': 1}
    >>> stored_value(b"\xff")
    {'$bytes': '/w=='}
    """
    try:
        text = data.decode()
        value = _PARSER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate has no UTF-8 form
        return _unescaped(value) if "$$" in text else value
    except (RecursionError, ValueError):
        return {"$bytes": b64encode(data).decode()}


def attempt_view(attempt: Attempt) -> View:
    failure = attempt.failure
    return {
        "life": attempt.life,
        "attempt": attempt.attempt,
        "outcome": attempt.outcome.value,
        "status": attempt.status.value,
        "worker": attempt.worker_id,
        "started_at": iso_time(attempt.started_at),
        "ended_at": iso_time(attempt.ended_at),
        "run_seconds": seconds(attempt_duration(attempt)),
        "error": None if failure is None else failure_view(failure) | {"traceback": failure.traceback or None},
    }


def log_view(log: AttemptLines) -> View:
    """Return the JSON form of the log lines of an attempt, which may contain secrets."""
    return {
        "attempt": log.attempt,
        "worker": log.worker_id,
        "saved_at": iso_time(log.saved_at),
        "dropped": log.dropped,
        "lines": [
            {"at": iso_time(each.at), "level": each.level, "logger": each.logger, "text": each.text}
            for each in log.lines
        ],
    }


def group_view(group: DeadLetterGroup) -> View:
    return {
        "queue": group.queue,
        "type": group.type,
        "fingerprint": group.fingerprint,
        "count": group.count,
        "error": group.error,
        "first_at": iso_time(group.first_at),
        "last_at": iso_time(group.last_at),
        "sample": str(group.sample),
    }


def queue_view(queue: QueueStats, *, now: datetime) -> View:
    age = None if queue.oldest_due is None else _age_seconds(now - queue.oldest_due)
    return {
        "name": queue.name,
        "counts": {status.value: queue.counts.get(status, 0) for status in Status},
        "oldest_due": iso_time(queue.oldest_due),
        "oldest_age_seconds": age,
        "paused_at": iso_time(queue.paused_at),
        "paused_by": queue.paused_by,
        "paused_reason": queue.paused_reason or None,
        "paused_until": iso_time(queue.paused_until),
    }


def worker_view(worker: WorkerRecord) -> View:
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "types": list(worker.types),
        "concurrency": worker.concurrency,
        "busy_slots": worker.busy_slots,
        "free_slots": max(worker.concurrency - worker.busy_slots - worker.lost_slots, 0),
        "lost_slots": worker.lost_slots,
        "version": worker.version,
        "library": worker.library,
        "schedules": list(worker.schedules),
        "started_at": iso_time(worker.started_at),
        "seen_at": iso_time(worker.seen_at),
        "stopped_at": iso_time(worker.stopped_at),
    }


def schedule_view(schedule: Schedule, *, declared: Collection[str], with_payload: bool = False) -> View:
    """Return the JSON form of a schedule. *declared* are the names of those that live workers declare."""
    view = {
        "name": schedule.name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "type": schedule.type,
        "queue": schedule.queue,
        "options": dict(schedule.options),
        "next_at": iso_time(schedule.next_at),
        "fired_at": iso_time(schedule.fired_at),
        "paused_at": iso_time(schedule.paused_at),
        "last_job_id": None if schedule.last_job_id is None else str(schedule.last_job_id),
        "origin": "stored" if schedule.declared_at is None else "code",
        "declared_at": iso_time(schedule.declared_at),
        "state": schedule_state(schedule, declared=declared),
    }
    return view | {"payload": stored_value(schedule.payload)} if with_payload else view


def schedule_state(schedule: Schedule, *, declared: Collection[str]) -> str:
    """Return ``active`` if the schedule fires, else why it does not: ``undeclared`` or ``paused``."""
    if schedule.declared_at is not None and schedule.name not in declared:
        return "undeclared"
    return "active" if schedule.paused_at is None else "paused"


def operation_view(operation: Operation, *, root: str = "") -> View:
    """Return the JSON form of a bulk operation. *root* is the path prefix of the API."""
    own = f"{root}/v1/operations/{operation.id}"
    handled = operation.done + sum(operation.refused.values())
    is_open = operation.state.is_open
    left = None if operation.is_capped or not is_open else max(0, operation.matched - handled)
    rate = operation.options.rate
    return {
        "id": str(operation.id),
        "kind": operation.kind.value,
        "state": operation.state.value,
        "by": operation.by,
        "reason": operation.reason,
        "filter": None if operation.filter is None else _filter_view(operation.filter),
        "options": json.loads(operation.options.to_json()),
        "matched": operation.matched,
        "is_capped": operation.is_capped,
        "done": operation.done,
        "refused": sort_refusals(operation.refused),
        "left": left,
        "seconds_left": None if left is None or rate is None else left / rate,
        "created_at": iso_time(operation.created_at),
        "starts_at": iso_time(operation.next_at) if operation.started_at is None and is_open else None,
        "started_at": iso_time(operation.started_at),
        "ended_at": iso_time(operation.ended_at),
        "stopped_by": operation.stopped_by,
        "links": {"self": own, "stop": f"{own}/stop"},
    }


def _filter_view(wanted: JobFilter) -> View:
    view: View = json.loads(filter_to_json(wanted))
    return view if wanted.tag is None else view | {"tag": "=".join(wanted.tag)}


def stats_view(
    queues: Sequence[QueueStats], finished: Iterable[FinishedCount], *, workers_alive: int, now: datetime
) -> View:
    """Return the statistics of all *queues*. *finished* holds the counts of the last hour."""
    counts: Counter[Status] = Counter()
    for queue in queues:
        counts.update(queue.counts)
    ended: Counter[Status] = Counter()
    for each in finished:
        ended[each.status] += each.count
    ages = [_age_seconds(now - queue.oldest_due) for queue in queues if queue.oldest_due is not None]
    return {
        "now": iso_time(now),
        "counts": {status.value: counts[status] for status in Status},
        "queues": len(queues),
        "paused_queues": [queue.name for queue in queues if queue.paused_at is not None],
        "workers_alive": workers_alive,
        "oldest_age_seconds": max(ages, default=None),
        "finished_last_hour": {status.value: ended[status] for status in sorted(FINAL)},
    }


def key_view(key: ApiKey) -> View:
    return {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "created_at": iso_time(key.created_at),
        "expires_at": iso_time(key.expires_at),
        "revoked_at": iso_time(key.revoked_at),
        "used_at": iso_time(key.used_at),
        "kind": "key" if key.parent is None else "session",
        "parent": key.parent,
    }


def iso_time(value: datetime | None) -> str | None:
    """Return a time in UTC in RFC 3339 format.

    >>> from datetime import datetime
    >>> iso_time(datetime(2024, 2, 29, 12, tzinfo=UTC))
    '2024-02-29T12:00:00Z'
    """
    return None if value is None else value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def wait_time(job: JobSummary, now: datetime) -> timedelta:
    """Return how long the job was due before it started or ended, or until now while it waits."""
    started = None if job.status.is_waiting else job.processing_started_at
    return max((started or job.completed_at or now) - job.scheduled_for, _ZERO)


def run_time(job: JobSummary, now: datetime) -> timedelta | None:
    """Return how long the last attempt took or has been running; None while the job waits."""
    if job.status.is_waiting or job.processing_started_at is None:
        return None
    return max((job.completed_at or now) - job.processing_started_at, _ZERO)


def attempt_duration(attempt: Attempt) -> timedelta | None:
    """Return how long the attempt took; None for a requeue, which is recorded as an attempt that did not start."""
    return None if attempt.started_at is None else max(attempt.ended_at - attempt.started_at, _ZERO)


def dead_reason(job: JobSummary) -> str | None:
    """Return why the job is a dead letter, unless its error contains the reason."""
    return None if job.dead_reason is None or job.dead_reason in (job.last_error or "") else job.dead_reason


def describe_end(job: JobSummary) -> str:
    """Return the dead reason of a job and its error, or an empty string if it has neither."""
    return ": ".join(filter(None, [dead_reason(job), job.last_error]))


def progress_view(job: JobSummary) -> View | None:
    if job.progress is None:
        return None
    return {"done": job.progress.done, "total": job.progress.total, "note": job.progress.note}


def error_view(last_error: str | None, failure: Failure | None = None) -> View | None:
    """Return the JSON form of a job's *last_error*, from *failure* if both describe the same error."""
    if last_error is None:
        return None
    # A lost lease and a duty of the janitor set last_error without a new failure.
    if failure is not None and str(failure) == last_error:
        return failure_view(failure)
    parts = _ERROR.fullmatch(last_error)
    if parts is None:
        return {"type": None, "message": last_error, "fingerprint": None}
    return {"type": parts["type"], "message": parts["message"], "fingerprint": None}


def _age_seconds(value: timedelta) -> float:
    return max(value, _ZERO).total_seconds()


def _lease(job: JobSummary) -> View | None:
    """Return the holder of the job, but not the token, which allows settling it."""
    if job.lease_expires_at is None:
        return None
    return {"worker": job.worker_id, "expires_at": iso_time(job.lease_expires_at)}


def failure_view(failure: Failure) -> View:
    return {"type": failure.type or None, "message": failure.message, "fingerprint": failure.fingerprint or None}


def _links(job_id: str, root: str) -> View:
    own = f"{root}/v1/jobs/{job_id}"
    return {"self": own, **{name: f"{own}/{name}" for name in ("attempts", "timeline", "why", "events")}}


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _unescaped(value: Any) -> Any:
    """Remove the escaping ``$`` from the user's own keys."""
    match value:
        case dict():
            return {key[1:] if key.startswith("$$") else key: _unescaped(item) for key, item in value.items()}
        case list():
            return [_unescaped(item) for item in value]
        case _:
            return value


_ALLOWED: Final = {
    status: [event.value for event in (Event.CANCEL, Event.REQUEUE, Event.RESCHEDULE) if next_statuses(status, event)]
    for status in Status
}
_ZERO: Final = timedelta(0)
_PARSER: Final = json.JSONDecoder(parse_constant=_no_constant)
_ERROR: Final = re.compile(r"(?P<type>[A-Za-z_][\w.]*): (?P<message>.*)", re.DOTALL)
