"""What the examples of the OpenAPI document show. They are made by the views, so that they cannot be wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from taskharbor import views
from taskharbor.core.answers import DeadLetterGroup, FinishedCount, QueueStats
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, Token
from taskharbor.core.model import Attempt, AttemptOutcome, Job, Schedule, WorkerRecord
from taskharbor.core.states import Event, Status
from taskharbor.why import Cause, Diagnosis

_NOON: Final = datetime(2030, 1, 1, 12, tzinfo=UTC)
_ID: Final = JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
_FAILURE: Final = Failure(type="ValueError", message="no such user", fingerprint="5f2c0a9d1e7b4c38")
_JOB: Final = Job(
    id=_ID,
    type="email.send",
    queue="default",
    priority=0,
    payload=b'{"to":"ada@example.com"}',
    status=Status.PENDING,
    scheduled_for=_NOON,
    timeout=timedelta(seconds=30),
    created_at=_NOON,
    attempt_count=0,
    max_attempts=20,
    idempotency_key="welcome-7",
    metadata={"tenant": "acme"},
)
_COUNTS: Final = {Status.PENDING: 3, Status.PROCESSING: 1, Status.SUCCEEDED: 120, Status.DEAD: 2}

ID: Final = str(_ID)
NEW_JOB: Final[dict[str, Any]] = {
    "type": "email.send",
    "payload": {"to": "ada@example.com"},
    "timeout": 30,
    "idempotency_key": "welcome-7",
    "metadata": {"tenant": "acme"},
}
JOB: Final = views.job_view(_JOB, now=_NOON)
ATTEMPT: Final = views.attempt_view(
    Attempt(
        job_id=_ID,
        token=Token(UUID(int=7)),
        life=1,
        attempt=1,
        worker_id="web-1:4711:0a1b2c3d",
        started_at=_NOON,
        ended_at=_NOON + timedelta(seconds=2),
        event=Event.RETRY,
        status=Status.FAILED,
        outcome=AttemptOutcome.FAILED,
        failure=_FAILURE,
    )
)
WHY: Final = Diagnosis(
    job_id=_ID, status=Status.PENDING, cause=Cause.AHEAD, text="2 jobs of its queue come first", ahead=2
).view()
GROUP: Final = views.group_view(
    DeadLetterGroup(
        queue="default",
        type="email.send",
        fingerprint=_FAILURE.fingerprint,
        count=2,
        error=str(_FAILURE),
        first_at=_NOON,
        last_at=_NOON + timedelta(hours=1),
        sample=_ID,
    )
)
QUEUE: Final = views.queue_view(
    QueueStats(name="default", counts=_COUNTS, oldest_due=_NOON, paused_at=None, paused_by=None),
    now=_NOON + timedelta(seconds=5),
)
SCALING: Final = {
    "queue": "default",
    "backlog": 3,
    "running": 1,
    "oldest_age_seconds": 5.0,
    "is_paused": False,
    "workers": 1,
    "hint": 1,
}
NEW_SCHEDULE: Final = {"cron": "0 2 * * *", "timezone": "Europe/Paris", "type": "reports.nightly"}
SCHEDULE: Final = views.schedule_view(
    Schedule(
        name="nightly",
        cron="0 2 * * *",
        timezone="Europe/Paris",
        type="reports.nightly",
        queue="default",
        payload=b"null",
        options={"missed": "once", "overlap": "allow"},
        next_at=_NOON + timedelta(hours=13),
    )
)
WORKER: Final = views.worker_view(
    WorkerRecord(
        id="web-1:4711:0a1b2c3d",
        host="web-1",
        pid=4711,
        queues=("default",),
        types=("email.send",),
        concurrency=16,
        started_at=_NOON,
        seen_at=_NOON,
    )
) | {"is_alive": True}
MINUTE: Final = views.finished_view(FinishedCount(minute=_NOON, queue="default", status=Status.SUCCEEDED, count=120))
STATS: Final = {
    "now": views.iso_time(_NOON),
    "counts": QUEUE["counts"],
    "queues": 1,
    "paused_queues": [],
    "workers_alive": 1,
    "oldest_age_seconds": 5.0,
    "finished_last_hour": {"SUCCEEDED": 120, "DEAD": 2, "CANCELED": 0},
}
