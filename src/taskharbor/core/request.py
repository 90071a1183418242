"""Job requests and their validation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from taskharbor.core.durations import NOT_A_DURATION, Duration, to_timedelta
from taskharbor.core.errors import InvalidRequest, Problem
from taskharbor.core.model import mutable_twin
from taskharbor.core.text import is_storable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taskharbor.core.flat_calls import FlatShape
    from taskharbor.core.ids import JobId

MAX_DELAY: Final = timedelta(days=3650)
"""The maximum delay. A longer one is likely a mistake, and its time may not be storable."""
TYPE_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
QUEUE_PATTERN: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
PRIORITY_RANGE: Final = range(-32_768, 32_768)
ATTEMPTS_RANGE: Final = range(1, 1_000_001)
MAX_ATTEMPTS: Final = 20
"""How many attempts a job has by default."""
MAX_TIMEOUT: Final = timedelta(days=366)
MAX_KEY_CHARS: Final = 255
MAX_METADATA: Final = 32
MAX_METADATA_KEY_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 1_024
MIN_SCHEDULED_FOR: Final = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SCHEDULED_FOR: Final = datetime(9000, 1, 1, tzinfo=UTC)
_MAX_SHOWN_CHARS: Final = 60


class TypedCall(Protocol):
    """A call of a task. If it has a *flat* shape and no options, its *values* can be written without a request."""

    @property
    def request(self) -> JobRequest:
        """The request for its job."""

    @property
    def task(self) -> object:
        """The task. The requests of its calls without options differ only in their payload."""

    @property
    def flat(self) -> FlatShape | None:
        """How to write its values; None if only the request has them."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The values of a flat call."""


class RequestTemplate(NamedTuple):
    """What the requests of a task have in common, unless a call says otherwise."""

    type: str
    queue: str
    timeout: Duration | None
    max_attempts: int | None
    priority: int
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, type: str, options: Mapping[str, Any]) -> Self:
        """Return the template of a task with these *options*."""
        return cls(
            type=type,
            queue=options.get("queue", "default"),
            timeout=options.get("timeout"),
            max_attempts=options.get("max_attempts"),
            priority=options.get("priority", 0),
            metadata=options.get("metadata", {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A request to run a job.

    *scheduled_for* or *delay* sets when the job is due; without either it is due at once. *delay* and
    *timeout* are timedeltas or numbers of seconds. Due jobs run in order of *priority*, lowest number
    first. If *max_attempts* is not given, it comes from the client. A second request with the same
    *idempotency_key* in the same queue does not create a second job.

    >>> JobRequest(type="email.send", payload={"to": "a@b.c"}, delay=300).queue
    'default'
    """

    type: str
    payload: object = field(default=None, repr=False)
    queue: str = "default"
    scheduled_for: datetime | None = None
    delay: Duration | None = None
    timeout: Duration | None = None
    max_attempts: int | None = None
    priority: int = 0
    idempotency_key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


_bare: Final = object.__new__
_MutableRequest: Final = mutable_twin(JobRequest)


def new_request(payload: object, template: RequestTemplate) -> JobRequest:
    """Return a request in a third of the time of ``JobRequest(…)``: a bulk enqueue makes thousands."""
    request = _bare(_MutableRequest)
    request.payload = payload
    request.type, request.queue, request.timeout, request.max_attempts, request.priority, metadata = template
    request.metadata = {**metadata}
    request.scheduled_for = request.delay = request.idempotency_key = None
    request.__class__ = JobRequest
    return request  # type: ignore[no-any-return]


def validate(request: JobRequest) -> None:
    """Raise `InvalidRequest` with every invalid field, its value and its rule."""
    if not is_simple(request) and (problems := list(_problems(request))):
        raise InvalidRequest(problems)


def is_simple(request: JobRequest) -> bool:
    """Return whether a request is certainly valid, by a fast check of the common case."""
    return (
        request.scheduled_for is None
        and request.delay is None
        and request.timeout is None
        and request.max_attempts is None
        and (request.idempotency_key is None or _is_valid_key(request.idempotency_key))
        and type(request.priority) is int
        and request.priority == 0
        and type(request.metadata) is dict
        and not request.metadata
        and type(request.type) is type(request.queue) is str
        and _are_names(request.type, request.queue)
    )


def _is_valid_key(key: str) -> bool:
    return type(key) is str and 0 < len(key) <= MAX_KEY_CHARS and is_storable(key)


@lru_cache(maxsize=1_024)
def _are_names(job_type: str, queue: str) -> bool:
    return TYPE_PATTERN.fullmatch(job_type) is not None and QUEUE_PATTERN.fullmatch(queue) is not None


def validate_attempts(attempts: int, *, field: str) -> None:
    """Raise `InvalidRequest` if *attempts* is not a valid number of attempts."""
    if problems := list(_number(attempts, field, ATTEMPTS_RANGE)):
        raise InvalidRequest(problems)


def validate_change(
    *,
    budget: int | None = None,
    scheduled_for: datetime | None = None,
    delay: timedelta | None = None,
    priority: int | None = None,
) -> None:
    """Raise `InvalidRequest` if a stored job cannot have these values. None stands for no change."""
    problems = [*_when(scheduled_for, delay)]
    if budget is not None:
        problems += _number(budget, "budget", ATTEMPTS_RANGE)
    if priority is not None:
        problems += _number(priority, "priority", PRIORITY_RANGE)
    if problems:
        raise InvalidRequest(problems)


def validate_requeue(
    job_ids: Sequence[JobId],
    *,
    budget: int | None,
    scheduled_for: datetime | None,
    delay: timedelta | None,
    payload: bytes | None,
) -> None:
    """Raise `InvalidRequest` if the arguments of a requeue are invalid."""
    validate_change(budget=budget, scheduled_for=scheduled_for, delay=delay)
    if payload is not None and len(job_ids) > 1:
        rule = "a codec may bind a payload to its job: requeue the jobs one by one"
        raise InvalidRequest([Problem(field="payload", value=f"given for {len(job_ids):,} jobs", rule=rule)])


def _problems(request: JobRequest) -> Iterator[Problem]:
    yield from _name(request.type, "type", TYPE_PATTERN)
    yield from _name(request.queue, "queue", QUEUE_PATTERN)
    yield from _when(request.scheduled_for, request.delay)
    if request.timeout is not None:
        yield from _duration(request.timeout, "timeout", least=timedelta.resolution, most=MAX_TIMEOUT)
    if request.max_attempts is not None:
        yield from _number(request.max_attempts, "max_attempts", ATTEMPTS_RANGE)
    yield from _number(request.priority, "priority", PRIORITY_RANGE)
    if request.idempotency_key is not None:
        yield from _text(request.idempotency_key, "idempotency_key", least=1, most=MAX_KEY_CHARS)
    yield from _metadata(request.metadata)


def _when(scheduled_for: object, delay: object) -> Iterator[Problem]:
    if scheduled_for is not None and delay is not None:
        yield _problem("delay", delay, "give scheduled_for or delay, not both")
    if delay is not None:
        yield from _duration(delay, "delay", least=timedelta(0), most=MAX_DELAY)
    if scheduled_for is None:
        return
    if not isinstance(scheduled_for, datetime):
        yield _problem("scheduled_for", scheduled_for, "must be a datetime")
    elif scheduled_for.tzinfo is None or scheduled_for.utcoffset() is None:
        yield _problem("scheduled_for", scheduled_for, "needs a time zone, such as datetime.now(UTC)")
    elif not MIN_SCHEDULED_FOR <= scheduled_for < MAX_SCHEDULED_FOR:
        rule = f"must be from {MIN_SCHEDULED_FOR:%Y} to before {MAX_SCHEDULED_FOR:%Y}"
        yield _problem("scheduled_for", scheduled_for, rule)


def _name(value: object, name: str, pattern: re.Pattern[str]) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield _problem(name, value, "must be a str")
    elif not pattern.fullmatch(value):
        yield _problem(name, value, f"must match {pattern.pattern}")


def _text(value: object, name: str, *, least: int, most: int) -> Iterator[Problem]:
    if not isinstance(value, str):
        yield _problem(name, value, "must be a str")
    elif not least <= len(value) <= most:
        yield _problem(name, value, f"must have {least} to {most:,} characters, not {len(value):,}")
    elif not is_storable(value):
        yield _problem(name, value, "must not contain NUL or a lone surrogate")


def _number(value: object, name: str, allowed: range) -> Iterator[Problem]:
    if not isinstance(value, int) or isinstance(value, bool):
        yield _problem(name, value, "must be an int")
    elif value not in allowed:
        yield _problem(name, value, f"must be from {allowed[0]:,} to {allowed[-1]:,}")


def _duration(value: object, name: str, *, least: timedelta, most: timedelta) -> Iterator[Problem]:
    duration = to_timedelta(value)
    if duration is None:
        yield _problem(name, value, NOT_A_DURATION)
    elif not least <= duration <= most:
        above = "at least 0" if least == timedelta(0) else "above 0"
        yield _problem(name, value, f"must be {above} and at most {most.days:,} days")


def _metadata(metadata: object) -> Iterator[Problem]:
    if not isinstance(metadata, Mapping):
        yield _problem("metadata", metadata, "must be a mapping of str to str")
        return
    items = list(metadata.items())
    if len(items) > MAX_METADATA:
        yield _problem("metadata", f"{len(items):,} entries", f"must have at most {MAX_METADATA}")
    for key, value in items[:MAX_METADATA]:
        yield from _text(key, "metadata key", least=1, most=MAX_METADATA_KEY_CHARS)
        yield from _text(value, f"metadata[{_shown(key)}]", least=0, most=MAX_METADATA_VALUE_CHARS)


def _problem(name: str, value: object, rule: str) -> Problem:
    return Problem(field=name, value=_shown(value), rule=rule)


def _shown(value: object) -> str:
    """Return enough of *value* to recognize it."""
    try:
        text = value if isinstance(value, str) else str(value) if isinstance(value, timedelta) else repr(value)
    except Exception:  # noqa: BLE001  a user's __repr__, or an int of too many digits
        text = f"a {type(value).__name__} that cannot be shown"
    short = text if len(text) <= _MAX_SHOWN_CHARS else f"{text[: _MAX_SHOWN_CHARS - 3]}..."
    return repr(short) if isinstance(value, str) else short
