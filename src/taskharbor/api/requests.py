"""Request bodies and parameter types. The limits come from `taskharbor.core.request`; this module adds schemas."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from taskharbor.api_keys import MAX_NAME_CHARS, SCOPES
from taskharbor.core.ids import JobId
from taskharbor.core.request import (
    ATTEMPTS_RANGE,
    MAX_DELAY,
    MAX_KEY_CHARS,
    MAX_METADATA,
    MAX_METADATA_KEY_CHARS,
    MAX_METADATA_VALUE_CHARS,
    MAX_SCHEDULED_FOR,
    MAX_TIMEOUT,
    MIN_SCHEDULED_FOR,
    PRIORITY_RANGE,
    QUEUE_PATTERN,
    TYPE_PATTERN,
)
from taskharbor.core.states import Status
from taskharbor.core.text import is_storable
from taskharbor.task_options import CallOptions

_RFC_3339: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_UUID: Final = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_STORABLE: Final = r"^[^\x00]*$"
_YEARS: Final = r"^(19[7-9][0-9]|[2-8][0-9]{3})-"
TAG_PATTERN: Final = r"^[^=\x00]{1,64}=[^\x00]{0,1024}$"
MAX_BATCH: Final = 1_000
MAX_REASON_CHARS: Final = 500
MAX_OPERATION_IDS: Final = 10_000
MAX_START_SECONDS: Final = 86_400
START_SECONDS: Final = 5.0
MAX_PAUSE_SECONDS: Final = 31_622_400
MAX_EXPIRY_SECONDS: Final = 315_360_000


def _timestamp(value: object) -> datetime:
    rule = "must be an RFC 3339 time with an offset, such as 2030-01-01T12:00:00Z"
    if isinstance(value, str) and _RFC_3339.fullmatch(value):
        try:
            time = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value).upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            raise PydanticCustomError("timestamp", rule) from None
        if MIN_SCHEDULED_FOR <= time < MAX_SCHEDULED_FOR:
            return time
        rule = f"must be in or after {MIN_SCHEDULED_FOR:%Y} and before {MAX_SCHEDULED_FOR:%Y}"
    raise PydanticCustomError("timestamp", rule)


def _storable(value: str) -> str:
    if not is_storable(value):
        raise PydanticCustomError("storable", "must not contain NUL or a lone surrogate")
    return value


def _whole(value: object) -> object:
    """Accept 7.0 as 7: JSON Schema does, and some languages have only one number type."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _status(value: object) -> Status:
    if isinstance(value, str) and value in [*Status]:
        return Status(value)
    raise PydanticCustomError("status", f"must be one of {', '.join(Status)}")


def _job_id(value: object) -> JobId:
    if isinstance(value, str) and re.fullmatch(_UUID, value):
        return JobId(UUID(value))
    raise PydanticCustomError("job_id", "must be the id of a job, such as 01890a5d-ac96-774b-bcce-b302099a8057")


def anchored(pattern: re.Pattern[str]) -> str:
    return f"^{pattern.pattern}$"


TypeName = Annotated[str, Field(pattern=anchored(TYPE_PATTERN))]
QueueName = Annotated[str, Field(pattern=anchored(QUEUE_PATTERN))]
ScheduleName = Annotated[str, Field(pattern=anchored(TYPE_PATTERN))]
GivenId = Annotated[JobId, BeforeValidator(_job_id), WithJsonSchema({"type": "string", "pattern": _UUID})]
Timestamp = Annotated[
    datetime,
    BeforeValidator(_timestamp),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _YEARS}),
]
Delay = Annotated[float, Field(ge=0, le=MAX_DELAY.total_seconds(), allow_inf_nan=False)]
Timeout = Annotated[float, Field(ge=0.001, le=MAX_TIMEOUT.total_seconds(), allow_inf_nan=False)]
# The bounds must precede the validator; otherwise the schema would lack them.
Attempts = Annotated[int, Field(ge=ATTEMPTS_RANGE[0], le=ATTEMPTS_RANGE[-1]), BeforeValidator(_whole)]
Priority = Annotated[int, Field(ge=PRIORITY_RANGE[0], le=PRIORITY_RANGE[-1]), BeforeValidator(_whole)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY_CHARS, pattern=_STORABLE), AfterValidator(_storable)]
Reason = Annotated[str, Field(max_length=MAX_REASON_CHARS, pattern=_STORABLE), AfterValidator(_storable)]
StatusText = Annotated[Status, BeforeValidator(_status), WithJsonSchema({"enum": [*Status]})]
TagText = Annotated[str, Field(pattern=TAG_PATTERN), AfterValidator(_storable)]
_MetadataKey = Annotated[
    str, Field(min_length=1, max_length=MAX_METADATA_KEY_CHARS, pattern=_STORABLE), AfterValidator(_storable)
]
_MetadataValue = Annotated[
    str, Field(max_length=MAX_METADATA_VALUE_CHARS, pattern=_STORABLE), AfterValidator(_storable)
]
Metadata = Annotated[
    dict[_MetadataKey, _MetadataValue],
    Field(max_length=MAX_METADATA),
    # pydantic's own schema would allow any value for a key that does not match
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_METADATA,
            "propertyNames": {"minLength": 1, "maxLength": MAX_METADATA_KEY_CHARS, "pattern": _STORABLE},
            "additionalProperties": {"type": "string", "maxLength": MAX_METADATA_VALUE_CHARS, "pattern": _STORABLE},
        }
    ),
]

# An invalid job gets its own problem in the response, so the schema of a batch accepts any item.
_ANY_JOB: Final[dict[str, Any]] = {"anyOf": [{"$ref": "#/components/schemas/NewJobBody"}, {}]}
# Not both; null counts as absent.
_ONE_TIME: Final[dict[str, Any]] = {
    "not": {
        "properties": {"scheduled_for": {"type": "string"}, "delay": {"type": "number"}},
        "required": ["scheduled_for", "delay"],
    }
}


class Body(BaseModel):
    """Base class of request bodies: strict types (a quoted number is an error) and no unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class NewJobBody(Body):
    """A job to enqueue.

    If the server was started with an app, the type must be one of its tasks, and the payload has the arguments of the
    task by name. Options that are missing or null are those of the task. Metadata is merged with that of the task.
    """

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_ONE_TIME)

    type: TypeName
    payload: Any = None
    queue: QueueName | None = None
    scheduled_for: Timestamp | None = None
    delay: Delay | None = None
    timeout: Timeout | None = None
    max_attempts: Attempts | None = None
    priority: Priority | None = None
    idempotency_key: Key | None = None
    metadata: Metadata = {}

    def options(self, key: str | None = None) -> CallOptions:
        """Return the options that the body has; *key* takes precedence over its idempotency key."""
        given = {
            "queue": self.queue,
            "scheduled_for": self.scheduled_for,
            "delay": to_timedelta(self.delay),
            "timeout": to_timedelta(self.timeout),
            "max_attempts": self.max_attempts,
            "priority": self.priority,
            "idempotency_key": key or self.idempotency_key,
            "metadata": self.metadata,
        }
        return _given(given)


class BatchBody(Body):
    """Up to 1,000 jobs. If *atomic* is true, either all of them are stored or none."""

    jobs: Annotated[
        list[Any],
        Field(min_length=1, max_length=MAX_BATCH),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MAX_BATCH, "items": _ANY_JOB}),
    ]
    atomic: bool = False


class RescheduleBody(Body):
    """A new due time or priority for a waiting job, or both."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_ONE_TIME)

    scheduled_for: Timestamp | None = None
    delay: Delay | None = None
    priority: Priority | None = None


class RequeueBody(Body):
    """Options for requeueing a finished job: its due time, its attempts (*budget*) and a reason.

    Without *budget*, the job gets as many attempts as it had. *payload* replaces the job's payload, also if it is
    null. Without the field, the payload is kept.
    """

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_ONE_TIME)

    scheduled_for: Timestamp | None = None
    delay: Delay | None = None
    budget: Attempts | None = None
    reason: Reason = ""
    payload: Any = None


class DeadFilter(Body):
    """A filter for dead letters. Queue, type and fingerprint identify a group of `/dead-letters/groups`."""

    queue: QueueName | None = None
    type: TypeName | None = None
    fingerprint: Annotated[str, Field(max_length=64, pattern=_STORABLE)] | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None


class BulkRequeueBody(Body):
    """Dead letters to requeue, by their ids or by a filter.

    *budget* is how many attempts each gets. Without it, each gets as many as it had.
    *rate* is how many jobs become due per second. Without it, all of them are due now.
    """

    ids: Annotated[list[GivenId], Field(min_length=1, max_length=MAX_BATCH)] | None = None
    filter: DeadFilter | None = None
    dry_run: bool = False
    rate: Annotated[float, Field(ge=0.01, le=10_000, allow_inf_nan=False)] | None = None
    budget: Attempts | None = None
    reason: Reason = ""
    limit: Annotated[int, Field(ge=1, le=MAX_BATCH), BeforeValidator(_whole)] = MAX_BATCH


class OperationFilter(DeadFilter):
    """A filter for the jobs of an operation. Without *statuses*, those that the operation can change.

    A requeue needs *statuses* to include canceled jobs. *tag* is `KEY=VALUE` of a job's metadata.
    """

    statuses: Annotated[list[StatusText], Field(min_length=1, max_length=len(Status))] | None = None
    tag: TagText | None = None


class OperationBody(Body):
    """A bulk operation on the jobs of a filter, or of a list of ids.

    *rate* is how many jobs are changed per second. *start_in* is the time in seconds in which the operation can be
    undone. *budget* is for a requeue, *delay* and *scheduled_for* for a requeue or a reschedule, *priority* for a
    reschedule. A purge removes dead letters that died more than *older_than* seconds ago; with *unpublished*, also
    those whose event is not published yet.
    """

    kind: Literal["requeue", "cancel", "reschedule", "purge"]
    filter: OperationFilter | None = None
    ids: Annotated[list[GivenId], Field(min_length=1, max_length=MAX_OPERATION_IDS)] | None = None
    rate: Annotated[float, Field(ge=0.01, le=10_000, allow_inf_nan=False)] | None = None
    start_in: Annotated[float, Field(ge=0, le=MAX_START_SECONDS, allow_inf_nan=False)] = START_SECONDS
    budget: Attempts | None = None
    delay: Delay | None = None
    scheduled_for: Timestamp | None = None
    priority: Priority | None = None
    older_than: Delay | None = None
    unpublished: bool = False
    reason: Reason = ""
    dry_run: bool = False


class PauseBody(Body):
    """Why a queue is paused, and after how many seconds it is resumed; without *for*, when it is resumed by hand."""

    model_config = ConfigDict(strict=True, extra="forbid", validate_by_name=False)

    reason: Reason = ""
    lasts: Annotated[float, Field(ge=1, le=MAX_PAUSE_SECONDS, allow_inf_nan=False)] | None = Field(None, alias="for")


class NewKeyBody(Body):
    """A key to create: its name, its scopes, and after how many seconds it expires; without *expires_in*, never."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=_STORABLE), AfterValidator(_storable)]
    scopes: Annotated[list[Literal[SCOPES]], Field(min_length=1, max_length=len(SCOPES))]  # type: ignore[valid-type]
    expires_in: Annotated[float, Field(ge=1, le=MAX_EXPIRY_SECONDS, allow_inf_nan=False)] | None = None


class ScheduleBody(Body):
    """A schedule: the job to create, as `NewJobBody` describes it, and when."""

    cron: Annotated[str, Field(min_length=9, max_length=200)]
    timezone: Annotated[str, Field(min_length=1, max_length=100)] = "UTC"
    type: TypeName
    payload: Any = None
    queue: QueueName | None = None
    missed: Literal["skip", "once", "all"] = "once"
    overlap: Literal["allow", "skip", "queue", "cancel"] = "allow"
    jitter: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)] = 0
    window: Annotated[float, Field(ge=60, le=31_622_400, allow_inf_nan=False)] = 86_400
    timeout: Timeout | None = None
    max_attempts: Attempts | None = None
    priority: Priority | None = None

    def options(self) -> CallOptions:
        """Return the options of its jobs that the body has."""
        given = {
            "queue": self.queue,
            "timeout": to_timedelta(self.timeout),
            "max_attempts": self.max_attempts,
            "priority": self.priority,
        }
        return _given(given)


def _given(options: dict[str, Any]) -> CallOptions:
    """Return those that are not None: null counts as absent."""
    return cast("CallOptions", {name: value for name, value in options.items() if value is not None})


def to_timedelta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
