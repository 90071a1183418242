"""Response models for the OpenAPI document. They describe the views that `taskharbor.views` returns.

They do not convert anything at run time; the tests validate responses against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = str | None
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Count = Annotated[int, Field(ge=0)]
Span = Annotated[float, Field(ge=0)]
StatusName = Literal["PENDING", "ENQUEUED", "PROCESSING", "FAILED", "SUCCEEDED", "DEAD", "CANCELED"]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FieldProblem(Shape):
    pointer: str
    detail: str


class Problem(BaseModel):
    """An RFC 9457 problem. ``code`` is stable; use it in programs."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    errors: list[FieldProblem] = []
    current_status: StatusName | None = None
    actions: list[str] = []


class JobError(Shape):
    type: Text
    message: str
    fingerprint: Text


class JobLease(Shape):
    worker: Text
    expires_at: Time


class JobDead(Shape):
    reason: Text
    at: Time


class JobProgress(Shape):
    done: int
    total: int | None
    note: str


class JobLinks(Shape):
    self: str
    attempts: str
    why: str
    events: str


class JobShape(Shape):
    id: Id
    type: str
    queue: str
    status: StatusName
    attempt_count: Count
    max_attempts: Count
    life: Count
    priority: int
    timeout: Span | None
    created_at: Time
    scheduled_for: Time
    started_at: Time | None
    completed_at: Time | None
    cancel_requested_at: Time | None
    wait_seconds: Span
    run_seconds: Span | None
    progress: JobProgress | None
    lease: JobLease | None
    error: JobError | None
    dead: JobDead | None
    idempotency_key: Text
    metadata: dict[str, str]
    links: JobLinks
    actions: list[Literal["cancel", "requeue", "reschedule"]]
    payload: Any = None
    result: Any = None


class JobPage(Shape):
    jobs: list[JobShape]
    next: Text


class BatchItem(Shape):
    status: int
    id: Id | None
    existed: bool
    problem: Problem | None


class BatchResult(Shape):
    stored: Count
    results: list[BatchItem]


class AttemptError(JobError):
    traceback: Text


class AttemptShape(Shape):
    life: Count
    attempt: Count
    outcome: str
    status: StatusName
    worker: Text
    started_at: Time | None
    ended_at: Time
    error: AttemptError | None


class Attempts(Shape):
    attempts: list[AttemptShape]


class WhyShape(Shape):
    job_id: Id
    status: StatusName
    cause: str
    text: str
    until: Time | None
    worker: Text
    ahead: Count | None
    kept: Literal["unpublished"] | None


class GroupShape(Shape):
    queue: str
    type: str
    fingerprint: str
    count: Count
    error: str
    first_at: Time
    last_at: Time
    sample: Id


class Groups(Shape):
    groups: list[GroupShape]


class BulkRefusal(Shape):
    id: Id
    problem: Problem


class BulkResult(Shape):
    matched: Count
    requeued: Count
    dry_run: bool
    more: bool
    ids: list[Id]
    refused: list[BulkRefusal]


class QueueShape(Shape):
    name: str
    counts: dict[StatusName, Count]
    oldest_due: Time | None
    oldest_age_seconds: Span | None
    paused_at: Time | None
    paused_by: Text


class Queues(Shape):
    queues: list[QueueShape]


class Scaling(Shape):
    queue: str
    backlog: Count
    running: Count
    oldest_age_seconds: Span
    is_paused: bool
    workers: Count
    hint: Count


class ScheduleShape(Shape):
    name: str
    cron: str
    timezone: str
    type: str
    queue: str
    options: dict[str, str]
    next_at: Time | None
    fired_at: Time | None
    paused_at: Time | None
    last_job_id: Id | None
    payload: Any = None


class Schedules(Shape):
    schedules: list[ScheduleShape]


class WorkerShape(Shape):
    id: str
    host: str
    pid: int
    queues: list[str]
    types: list[str]
    concurrency: Count
    lost_slots: Count
    started_at: Time
    seen_at: Time | None
    is_alive: bool


class Workers(Shape):
    workers: list[WorkerShape]


class Stats(Shape):
    now: Time
    counts: dict[StatusName, Count]
    queues: Count
    paused_queues: list[str]
    workers_alive: Count
    oldest_age_seconds: Span | None
    finished_last_hour: dict[StatusName, Count]


class Minute(Shape):
    minute: Time
    queue: str
    status: StatusName
    count: Count


class TimeSeries(Shape):
    minutes: list[Minute]


class Health(Shape):
    status: Literal["ok"]
