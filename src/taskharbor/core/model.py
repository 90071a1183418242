"""Jobs, leases, attempts, events, workers, schedules and keys as the stores keep them."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from taskharbor.core.codec import Codec, JsonCodec
from taskharbor.core.text import make_storable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from taskharbor.core.failure import Failure
    from taskharbor.core.ids import JobId, Token
    from taskharbor.core.states import Event, Status


def mutable_twin(frozen: type[Any]) -> Any:
    """Return a class with the slots of *frozen* whose instances are made frozen by assigning ``__class__``.

    A frozen dataclass sets each field through a method call: 5 µs for a job, a tenth of its cost in
    SQLite. Setting the slots of an unfrozen class and then changing the class takes 0.5 µs.
    """
    name = f"Mutable{frozen.__name__}"
    if frozen.__bases__ == (object,):
        return make_dataclass(name, [each.name for each in fields(frozen)], slots=True)
    # __class__ assignment needs equal bases, and an unfrozen dataclass cannot inherit from a frozen one. Both methods
    # are set: with only one, Python would still call a method for each field (10 µs for a job).
    unfrozen = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(name, frozen.__bases__, {"__slots__": frozen.__slots__, **unfrozen})


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A validated job that is not stored yet: the input of `Driver.insert`.

    If ``scheduled_for`` is None, the store sets it to its own time plus ``delay``. ``digest`` is
    a hash of type and payload. It distinguishes a repeated request from a different job with the
    same idempotency key.
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

    def use_metadata(self, metadata: Mapping[str, str]) -> None:
        """Set the metadata. Only for the client that has just made the job; a copy would take 5 µs."""
        object.__setattr__(self, "metadata", metadata)


@dataclass(frozen=True, slots=True)
class Progress:
    """A handler's progress: *done* of *total* (None if unknown), and a note."""

    done: int
    total: int | None = None
    note: str = ""


UNDECODED: Final = ...  # no payload decodes to it, and copying it returns the same object


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSummary:
    """A job without its payload and result, which may be large. Lists and waits read this."""

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
        """Whether no attempts are left."""
        return self.attempt_count >= self.max_attempts

    @property
    def message_sent_at(self) -> datetime | None:
        """When the message that this waiting job waits for was sent; None if none was since its last attempt."""
        started_at, sent_at = self.processing_started_at, self.sent_at
        if self.dispatch_at is None or sent_at is None or (started_at is not None and sent_at <= started_at):
            return None
        return sent_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(JobSummary):
    """One durable unit of work, as its row was when it was read.

    ``payload`` holds the stored bytes, ``data`` the decoded value.
    """

    payload: bytes = field(repr=False)
    result: bytes | None = field(default=None, repr=False)
    codec: Codec = field(default=JsonCodec(), repr=False, compare=False)
    _data: Any = field(default=UNDECODED, init=False, repr=False, compare=False)

    @property
    def data(self) -> Any:
        """The decoded payload. Raises `PayloadNotDecodable` if the codec cannot read it."""
        if self._data is UNDECODED:
            codec = self.codec
            context = b"" if type(codec) is JsonCodec else payload_context(self.id, self.type)  # JSON ignores it
            decoded = codec.decode(self.payload, context=context)
            object.__setattr__(self, "_data", decoded)
        return self._data

    @property
    def is_decoded(self) -> bool:
        """Whether ``data`` was read before."""
        return self._data is not UNDECODED

    def use_codec(self, codec: Codec) -> None:
        """Set the codec of ``data``. Only for the worker that claimed the job; a copy would take 15 µs."""
        object.__setattr__(self, "codec", codec)

    def summary(self) -> JobSummary:
        """Return the job without its payload and result."""
        return JobSummary(**{name: getattr(self, name) for name in JobSummary.__slots__})


_NO_DELAY: Final = timedelta(0)
_NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
_new: Final = object.__new__  # skip __init__: assigning slots directly takes 0.5 µs, not 5
_MutableSummary: Final = mutable_twin(JobSummary)
MutableJob: Final = mutable_twin(Job)
_MutableNewJob: Final = mutable_twin(NewJob)
DEFAULT_CODEC: Final = JsonCodec()


# fmt: off
def job_from_values(values: Sequence[Any]) -> Job:
    """Return the job with these column *values*, from ``id`` to ``metadata`` in table order."""
    job = _new(MutableJob)
    (
        job.id, job.type, job.queue, job.priority, job.payload, job.status, job.scheduled_for, job.timeout,
        job.created_at, job.attempt_count, job.max_attempts, job.last_error, job.failed_at, job.lease_token,
        job.lease_expires_at, job.worker_id, job.processing_started_at, job.completed_at, job.settled_token, job.life,
        job.dispatch_at, job.sent_at, job.sends, job.resends, job.releases, job.dead_reason, job.dead_at,
        job.cancel_requested_at, job.idempotency_key, job.result, job.progress, job.metadata,
    ) = values
    job.codec, job._data = DEFAULT_CODEC, UNDECODED  # noqa: SLF001  a field of Job
    job.__class__ = Job
    return job  # type: ignore[no-any-return]


def stored_summary(values: Sequence[Any]) -> JobSummary:
    """Return the summary with these field *values*, from ``id`` to ``metadata``."""
    job = _new(_MutableSummary)
    (
        job.id, job.type, job.queue, job.priority, job.status, job.scheduled_for, job.timeout,
        job.created_at, job.attempt_count, job.max_attempts, job.last_error, job.failed_at, job.lease_token,
        job.lease_expires_at, job.worker_id, job.processing_started_at, job.completed_at, job.settled_token, job.life,
        job.dispatch_at, job.sent_at, job.sends, job.resends, job.releases, job.dead_reason, job.dead_at,
        job.cancel_requested_at, job.idempotency_key, job.progress, job.metadata,
    ) = values
    job.__class__ = JobSummary
    return job  # type: ignore[no-any-return]


# fmt: on


def new_job(
    *,
    id: JobId,
    type: str,
    queue: str,
    payload: bytes,
    created_at: datetime,
    max_attempts: int,
    scheduled_for: datetime | None = None,
    delay: timedelta = _NO_DELAY,
    timeout: timedelta | None = None,
    priority: int = 0,
    idempotency_key: str | None = None,
    digest: bytes = b"",
    metadata: Mapping[str, str] = _NO_METADATA,
) -> NewJob:
    """Return ``NewJob(…)`` in a third of the time."""
    job = _new(_MutableNewJob)
    job.id, job.type, job.queue, job.payload = id, type, queue, payload
    job.created_at, job.max_attempts, job.scheduled_for, job.delay = created_at, max_attempts, scheduled_for, delay
    job.timeout, job.priority, job.idempotency_key, job.digest = timeout, priority, idempotency_key, digest
    job.metadata = metadata
    job.__class__ = NewJob
    return job  # type: ignore[no-any-return]


def payload_context(job_id: JobId, job_type: str) -> bytes:
    """Return the context that a codec may bind a payload to, so that its bytes cannot be used in another job."""
    return b"payload:%b:%b" % (job_id.int.to_bytes(16), job_type.encode())  # faster than .bytes


def result_context(job_id: JobId) -> bytes:
    """Return the context that a codec may bind a result to."""
    return b"result:%b" % job_id.bytes


def schedule_context(name: str, job_type: str) -> bytes:
    """Return the context that a codec may bind a schedule's payload to. Its jobs use `payload_context`."""
    return b"schedule:%b:%b" % (name.encode(), job_type.encode())


@dataclass(frozen=True, slots=True)
class Lease:
    """The timed, fenced right to run a job. It is valid while ``expires_at`` is later than the store's time."""

    job_id: JobId
    token: Token
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Claim:
    """A job and the lease under which it was claimed. ``is_reclaim``: the claim ended an expired lease."""

    job: Job
    lease: Lease
    is_reclaim: bool = field(default=False, compare=False)


_MutableLease: Final = mutable_twin(Lease)
_MutableClaim: Final = mutable_twin(Claim)


def claim_from_job(job: Job, *, is_reclaim: bool = False) -> Claim:
    """Return the claim of *job*, which was just leased."""
    lease = _new(_MutableLease)
    lease.job_id, lease.token, lease.expires_at = job.id, job.lease_token, job.lease_expires_at
    lease.__class__ = Lease
    claim = _new(_MutableClaim)
    claim.job, claim.lease, claim.is_reclaim = job, lease, is_reclaim
    claim.__class__ = Claim
    return claim  # type: ignore[no-any-return]


class AttemptOutcome(StrEnum):
    """How an attempt ended, as shown to operators. A success stores no attempt."""

    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    SNOOZED = "SNOOZED"
    RELEASED = "RELEASED"
    CANCELED = "CANCELED"
    LOST = "LOST"
    CLOCK = "CLOCK"
    """Lost to a jump of the store's clock. Not counted."""
    REQUEUED = "REQUEUED"
    """Not an attempt: the job was requeued. ``worker_id`` is the actor, the failure's message the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row of a job's history, written once per (job id, token) and never changed.

    ``attempt`` is not unique: it repeats after an attempt that was not counted. ``event`` ended
    the attempt, and ``status`` is the job's status after it.
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
    """The published event of a dead job. A requeued job may die again, so there is one per life."""

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
        """Equal for every delivery of the same event, so that a consumer can drop duplicates."""
        return f"{self.job_id}:{self.life}"


PUBLISHER_NOTED: Final = timedelta(minutes=1)
"""How often a store records that a publisher is active."""
PUBLISHER_AWAY: Final = timedelta(days=7)
"""How long after its last activity a publisher is expected to return. A store that never recorded one has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A dead-letter event and the state of its publication."""

    event: DeadTaskEvent
    next_at: datetime
    attempts: int = 0
    last_error: str | None = None
    published_at: datetime | None = None
    given_up_at: datetime | None = None

    @property
    def is_done(self) -> bool:
        """Whether the event was published or given up."""
        return self.published_at is not None or self.given_up_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker process, as its heartbeat recorded it.

    ``busy_slots`` counts the slots of running handlers, ``lost_slots`` those held by sync handlers long after their
    timeout. ``schedules`` are the names of the schedules that the worker's code declares. ``version`` is that of the
    application, ``library`` that of TaskHarbor. ``stopped_at`` is when it stopped by itself, None if it did not.
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
    schedules: tuple[str, ...] = ()
    busy_slots: int = 0
    version: str | None = None
    library: str | None = None
    stopped_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A recurring job. ``next_at`` is the next fire time, or None if there is none.

    ``declared_at`` is when a live worker was last known to declare the schedule in its code, accurate to about a
    minute. It is None for a schedule that was stored by a person or a program, which fires without a declaration.
    """

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
    declared_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """An API key. The key itself is not stored: ``digest`` is its SHA-256.

    ``used_at`` is the last recorded use, accurate to a minute; None if never used. ``parent`` is the id of the key that
    a session was made from; a session is revoked with its parent.
    """

    id: str
    name: str
    digest: bytes = field(repr=False)
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    used_at: datetime | None = None
    parent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """A write requested by a user or an API key: actor, action, target, and time by the store's clock.

    An entry is made after its action was done, so its texts are made storable: a store must not refuse one of them.
    """

    id: Token
    at: datetime | None = None
    actor: str
    action: str
    target: str
    detail: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("actor", "action", "target"):
            object.__setattr__(self, name, make_storable(getattr(self, name)))
        detail = {make_storable(name): make_storable(text) for name, text in self.detail.items()}
        if detail != self.detail:
            object.__setattr__(self, "detail", detail)
