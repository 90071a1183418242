"""Response models for the OpenAPI document. They describe the views that `taskharbor.views` returns.

They do not convert anything at run time; the tests validate responses against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from taskharbor.core.statistics import GroupBy, Metric

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
    checks: dict[str, str] = {}


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
    timeline: str
    why: str
    events: str


class WhyShape(Shape):
    job_id: Id
    status: StatusName
    cause: str
    text: str
    until: Time | None
    worker: Text
    ahead: Count | None
    kept: Literal["unpublished"] | None


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
    why: WhyShape | None = Field(default=None, description="With `explain=true`: what `/why` returns.")


class JobPage(Shape):
    jobs: list[JobShape]
    next: Text
    looked_back_to: Time | None = Field(
        description="The creation time of the oldest job that was examined; null if all of them were."
    )


class JobCountShape(Shape):
    count: Count
    is_exact: bool = Field(description="Whether `count` is the number of all matching jobs, not a lower bound.")
    looked_back_to: Time | None


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
    run_seconds: Span | None
    error: AttemptError | None


class Attempts(Shape):
    attempts: list[AttemptShape]


class LineShape(Shape):
    at: Time
    level: str
    logger: str
    text: str


class LogShape(Shape):
    attempt: Count
    worker: Text
    saved_at: Time | None
    dropped: Count = Field(description="how many older lines of this attempt were not kept")
    lines: list[LineShape]


class Logs(Shape):
    logs: list[LogShape]


class TimelineEntryShape(Shape):
    at: Time
    kind: Literal["created", "attempt", "refused", "cancel-requested", "canceled", "died", "requeued", "changed"]
    life: Count
    attempt: Count | None
    worker: Text
    outcome: Text
    wait_seconds: Span | None = Field(description="Since the creation, the requeue, or the end of the last attempt.")
    run_seconds: Span | None
    due_at: Time | None
    ended_at: Time | None
    error: JobError | None
    by: Text
    action: Text
    reason: Text
    detail: dict[str, str]


class Timeline(Shape):
    job_id: Id
    entries: list[TimelineEntryShape]


class DeadHourShape(Shape):
    hour: Time
    count: Count


class GroupShape(Shape):
    queue: str
    type: str
    fingerprint: str
    count: Count
    error: str
    first_at: Time
    last_at: Time
    sample: Id
    hours: list[DeadHourShape]
    first_version: str | None


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


class OperationLinks(Shape):
    self: str
    stop: str


class OperationShape(Shape):
    id: Id
    kind: Literal["requeue", "cancel", "reschedule", "purge"]
    state: Literal["waiting", "running", "done", "stopped"]
    by: str
    reason: str
    filter: dict[str, Any] | None
    options: dict[str, Any]
    matched: Count = Field(description="how many jobs the preview found when the operation was created")
    is_capped: bool = Field(description="whether the preview stopped counting, so that there may be more")
    done: Count
    refused: dict[str, Count] = Field(description="jobs that were left unchanged, by reason")
    left: Count | None = Field(description="null if unknown, or if the operation has ended")
    seconds_left: Span | None = Field(description="null if unknown, or without a rate")
    created_at: Time
    starts_at: Time | None = Field(description="null once it has started or ended")
    started_at: Time | None
    ended_at: Time | None
    stopped_by: Text
    links: OperationLinks


class OperationPage(Shape):
    operations: list[OperationShape]
    next: Text


class OperationPreview(Shape):
    dry_run: Literal[True]
    matched: Count
    is_capped: bool
    sample: list[JobShape]


class OperationOrPreview(RootModel[OperationPreview | OperationShape]):
    """The preview of a dry run, or the operation that was created with the same idempotency key."""


class QueueShape(Shape):
    name: str
    counts: dict[StatusName, Count]
    oldest_due: Time | None
    oldest_age_seconds: Span | None
    paused_at: Time | None
    paused_by: Text
    paused_reason: Text
    paused_until: Time | None
    workers: Count = Field(description="live workers that serve it")
    capacity: Count = Field(description="how many jobs those workers run at once, also of other queues")
    arrived_per_minute: Span | None
    ended_per_minute: Span | None
    drained_in_seconds: Span | None = Field(description="null if it does not get shorter")
    counted_at: Time | None = Field(description="when counts were last updated; null if no worker has run yet")


class Queues(Shape):
    queues: list[QueueShape]


class Scaling(Shape):
    queue: str
    backlog: Count
    running: Count
    oldest_age_seconds: Span
    is_paused: bool
    workers: Count
    suggested_workers: Count


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
    origin: Literal["code", "stored"] = Field(
        description="`code`: workers declare it, and it fires only while one of them lives; `stored`: put explicitly"
    )
    declared_at: Time | None = Field(description="when a live worker was last known to declare it; null if `stored`")
    state: Literal["active", "undeclared", "paused"] = Field(description="why it does not fire, unless `active`")
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
    busy_slots: Count
    free_slots: Count
    lost_slots: Count
    version: Text = Field(description="The version of the application.")
    library: Text = Field(description="The version of TaskHarbor.")
    schedules: list[str]
    started_at: Time
    seen_at: Time | None
    stopped_at: Time | None = Field(description="When it stopped by itself; null if it lives, or was killed.")
    state: Literal["live", "silent", "gone"]
    is_alive: bool


class Workers(Shape):
    workers: list[WorkerShape]


class NextAttempt(Shape):
    worker: Text
    started_at: Time
    wait_seconds: Span
    outcome: str


class LostJobShape(Shape):
    job_id: Id
    type: str
    queue: str
    status: StatusName
    attempt: Count
    started_at: Time | None
    lost_at: Time
    next: NextAttempt | None


class WorkerDetail(WorkerShape):
    held: list[JobShape]
    holds_more: bool
    lost: list[LostJobShape]


class NextJobs(Shape):
    jobs: list[JobShape]


class Stats(Shape):
    now: Time
    counts: dict[StatusName, Count]
    queues: Count
    paused_queues: list[str]
    workers_alive: Count
    oldest_age_seconds: Span | None
    finished_last_hour: dict[StatusName, Count]


class SeriesPointShape(Shape):
    at: Time
    group: str | None
    value: float
    buckets: list[Count] | None = None
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None


class TimeSeries(Shape):
    metric: Metric
    by: GroupBy
    step: Literal[1, 15, 60]
    since: Time
    until: Time
    points: list[SeriesPointShape]


class TypeShape(Shape):
    type: str
    workers: Count
    attempts_last_hour: Count


class Types(Shape):
    types: list[TypeShape]


class VersionShape(Shape):
    version: str
    first_seen: Time
    last_seen: Time


class Versions(Shape):
    versions: list[VersionShape]


class Health(Shape):
    status: Literal["ok"]
    checks: dict[str, str] = {}
