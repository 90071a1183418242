"""A job, and what is kept about it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.codec import Codec, JsonCodec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.states import Event, Status


def mutable_twin(frozen: type[Any]) -> Any:
    """Return a class whose objects become instances of *frozen* by a change of their class.

    A frozen class sets each of its fields by a call: 5 µs for a job, a tenth of its whole way through
    SQLite. So they are set on a twin of the same slots that is not frozen: 0.5 µs.
    """
    name = f"Thawed{frozen.__name__}"
    if frozen.__bases__ == (object,):
        return make_dataclass(name, [each.name for each in fields(frozen)], slots=True)
    # An object changes its class only to one of the same bases, and a dataclass that is not frozen has no frozen one.
    # Both methods, or Python would call one of them for every field: 10 µs for a job.
    plain = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(name, frozen.__bases__, {"__slots__": frozen.__slots__, **plain})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that was accepted but is not stored yet: what the client hands to a driver.

    ``scheduled_for`` is the given moment; where it is None the store stamps its own
    time plus ``delay``. ``digest`` stands for type and payload, and tells a repeat
    under the same idempotency key from another job that happens to use it.
    """

    id: JobId
    type: str
    queue: str
    payload: bytes = field(repr=False)
    created_at: datetime
    max_attempts: int
    scheduled_for: datetime | None = None
    delay: timedelta = timedelta(0)
    timeout: timedelta | None = None
    priority: int = 0
    idempotency_key: str | None = None
    digest: bytes = field(default=b"", repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler says it is: *done* of *total* (None: nobody knows), and what it is at."""

    done: int
    total: int | None = None
    note: str = ""


_UNDECODED: Final = ...  # no payload decodes to it, and a copy of it is itself


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job without its payload and result: what lists and waits read, since both may be large."""

    id: JobId
    type: str
    queue: str
    priority: int
    status: Status
    scheduled_for: datetime
    timeout: timedelta | None
    created_at: datetime
    attempt_count: int
    max_attempts: int
    last_error: str | None = None
    failed_at: datetime | None = None
    lease_token: Token | None = None
    lease_expires_at: datetime | None = None
    worker_id: str | None = None
    processing_started_at: datetime | None = None
    completed_at: datetime | None = None
    settled_token: Token | None = None
    life: int = 1
    dispatch_at: datetime | None = None
    sent_at: datetime | None = None
    sends: int = 0
    resends: int = 0
    releases: int = 0
    dead_reason: str | None = None
    dead_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    idempotency_key: str | None = None
    progress: Progress | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_exhausted(self) -> bool:
        """No attempt is left."""
        return self.attempt_count >= self.max_attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobSummary):
    """One durable unit of work, as its row was when it was read.

    ``payload`` is what is stored, ``data`` what was enqueued.
    """

    payload: bytes = field(repr=False)
    result: bytes | None = field(default=None, repr=False)
    codec: Codec = field(default=JsonCodec(), repr=False, compare=False)
    _data: Any = field(default=_UNDECODED, init=False, repr=False, compare=False)

    @property
    def data(self) -> Any:
        """The decoded payload. Raises `PayloadNotDecodable` where the codec cannot read it."""
        if self._data is _UNDECODED:
            decoded = self.codec.decode(self.payload, context=payload_context(self.id, self.type))
            object.__setattr__(self, "_data", decoded)
        return self._data

    def summary(self) -> JobSummary:
        """Return the job without its payload and result."""
        return JobSummary(**{name: getattr(self, name) for name in JobSummary.__slots__})


_bare: Final = object.__new__  # a twin's own constructor would pass on and count what is set here at once
_ThawedSummary: Final = mutable_twin(JobSummary)
_ThawedJob: Final = mutable_twin(Job)
_ThawedNewJob: Final = mutable_twin(NewJob)
_CODEC: Final = JsonCodec()


# fmt: off
def job_from_values(values: Sequence[Any]) -> Job:
    """Return the job whose columns, from ``id`` to ``metadata`` in the order of the table, have these *values*."""
    job = _bare(_ThawedJob)
    (
        job.id, job.type, job.queue, job.priority, job.payload, job.status, job.scheduled_for, job.timeout,
        job.created_at, job.attempt_count, job.max_attempts, job.last_error, job.failed_at, job.lease_token,
        job.lease_expires_at, job.worker_id, job.processing_started_at, job.completed_at, job.settled_token, job.life,
        job.dispatch_at, job.sent_at, job.sends, job.resends, job.releases, job.dead_reason, job.dead_at,
        job.cancel_requested_at, job.idempotency_key, job.result, job.progress, job.metadata,
    ) = values
    job.codec, job._data = _CODEC, _UNDECODED  # noqa: SLF001  it is a job's own
    job.__class__ = Job
    return job  # type: ignore[no-any-return]


def stored_summary(values: Sequence[Any]) -> JobSummary:
    """Return the summary whose fields, from ``id`` to ``metadata``, have these *values*."""
    job = _bare(_ThawedSummary)
    (
        job.id, job.type, job.queue, job.priority, job.status, job.scheduled_for, job.timeout,
        job.created_at, job.attempt_count, job.max_attempts, job.last_error, job.failed_at, job.lease_token,
        job.lease_expires_at, job.worker_id, job.processing_started_at, job.completed_at, job.settled_token, job.life,
        job.dispatch_at, job.sent_at, job.sends, job.resends, job.releases, job.dead_reason, job.dead_at,
        job.cancel_requested_at, job.idempotency_key, job.progress, job.metadata,
    ) = values
    job.__class__ = JobSummary
    return job  # type: ignore[no-any-return]


def new_job(values: Sequence[Any]) -> NewJob:
    """Return the new job whose fields, from ``id`` to ``metadata``, have these *values*."""
    job = _bare(_ThawedNewJob)
    (
        job.id, job.type, job.queue, job.payload, job.created_at, job.max_attempts, job.scheduled_for, job.delay,
        job.timeout, job.priority, job.idempotency_key, job.digest, job.metadata,
    ) = values
    job.__class__ = NewJob
    return job  # type: ignore[no-any-return]
# fmt: on


def payload_context(job_id: JobId, job_type: str) -> bytes:
    """Return what a codec may bind a payload to, so that its bytes are of no use in another job."""
    return b"payload:%b:%b" % (job_id.int.to_bytes(16), job_type.encode())  # quicker than its .bytes


def result_context(job_id: JobId) -> bytes:
    """Return what a codec may bind a result to."""
    return b"result:%b" % job_id.bytes


def schedule_context(name: str, job_type: str) -> bytes:
    """Return what a codec may bind the payload of a schedule to, from which each of its jobs gets its own."""
    return b"schedule:%b:%b" % (name.encode(), job_type.encode())


@dataclass(frozen=True, slots=True)
class Lease:
    """The timed, fenced right to run a job: valid while ``expires_at`` is later than the store's now."""

    job_id: JobId
    token: Token
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """A job and the lease under which it was taken."""

    job: Job
    lease: Lease


_ThawedLease: Final = mutable_twin(Lease)
_ThawedClaim: Final = mutable_twin(Claim)


def claim_from_job(job: Job) -> Claim:
    """Return *job*, which was just taken, with its lease."""
    lease = _bare(_ThawedLease)
    lease.job_id, lease.token, lease.expires_at = job.id, job.lease_token, job.lease_expires_at
    lease.__class__ = Lease
    claim = _bare(_ThawedClaim)
    claim.job, claim.lease = job, lease
    claim.__class__ = Claim
    return claim  # type: ignore[no-any-return]


class AttemptOutcome(StrEnum):
    """How an attempt ended, for people. A plain success leaves no row."""

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    SNOOZED = "SNOOZED"
    RELEASED = "RELEASED"
    CANCELED = "CANCELED"
    LOST = "LOST"
    CLOCK = "CLOCK"
    """Lost to a jump of the store's clock, and given back."""
    REQUEUED = "REQUEUED"
    """No attempt: a person gave the job a new life. ``worker_id`` says who, the failure's message why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One line of a job's history, written once under (job id, token) and never changed.

    ``attempt`` is a label: it repeats after an attempt was given back. ``event`` is
    what ended the attempt and ``status`` where that led.
    """

    job_id: JobId
    token: Token
    life: int
    attempt: int
    worker_id: str | None
    started_at: datetime | None
    ended_at: datetime
    event: Event
    status: Status
    outcome: AttemptOutcome
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTaskEvent:
    """Tells the world that a job died. One for each death: a job requeued may die again."""

    job_id: JobId
    life: int
    type: str
    queue: str
    worker_id: str | None
    attempt_count: int
    max_attempts: int
    error: str
    dead_at: datetime

    @property
    def event_id(self) -> str:
        """Equal for every repeat of one death, so that a consumer can drop duplicates."""
        return f"{self.job_id}:{self.life}"


PUBLISHER_NOTED: Final = timedelta(minutes=1)
"""How often a store notes that a publisher takes events, however many do."""
PUBLISHER_AWAY: Final = timedelta(days=7)
"""For how long events wait for a publisher that is away. A store in which none was ever noted has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A death's event, and how far its publishing got."""

    event: DeadTaskEvent
    next_at: datetime
    attempts: int = 0
    last_error: str | None = None
    published_at: datetime | None = None
    given_up_at: datetime | None = None

    @property
    def is_done(self) -> bool:
        """Nobody needs to publish it any more."""
        return self.published_at is not None or self.given_up_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker process that says it is alive.

    ``lost_slots`` counts the slots that sync handlers keep long after their timeout. It is 0 on schema version 1.
    """

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    types: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime | None = None
    lost_slots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A job that is made again and again. ``next_at`` is the next fire time; None while there is none."""

    name: str
    cron: str
    timezone: str
    type: str
    queue: str
    payload: bytes = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    next_at: datetime | None = None
    fired_at: datetime | None = None
    paused_at: datetime | None = None
    last_job_id: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """Who may use the API. The key itself is not stored: ``digest`` is its SHA-256.

    ``used_at`` is when it was last noted that it was used, to a minute; None before.
    """

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A write that a person or a key asked for: who did what to what, and when by the store's clock."""

    id: Token
    at: datetime | None = None
    actor: str
    action: str
    target: str
    detail: Mapping[str, str] = field(default_factory=dict, hash=False)
