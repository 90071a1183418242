"""The definition of a schedule, its validation, and its stored options."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_args

from taskharbor.core.durations import Duration, as_timedelta, to_timedelta
from taskharbor.core.errors import InvalidRequest, Problem
from taskharbor.core.request import TYPE_PATTERN, JobRequest, validate
from taskharbor.schedules.cron import Cron, cron_problem, zone_problem
from taskharbor.schedules.firing import Missed, Overlap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from taskharbor.core.model import Schedule

DAY: Final = timedelta(days=1)
MAX_JITTER: Final = 7 * DAY
MAX_WINDOW: Final = 366 * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSpec:
    """A recurring job. Raises `InvalidRequest` if a field is invalid.

    *cron* has five fields and is evaluated in *timezone*. *missed* sets what happens to fire times that passed
    while no scheduler ran or the schedule was paused: "skip" drops those a minute late or more, "once" enqueues
    one job with the last fire time, and "all" enqueues one for each in the last *window*, at most 1,000.
    *overlap* sets what happens while the previous job has not ended: "allow" both, "skip" the new one, "queue"
    it until the previous one ends, or "cancel" the previous one. A job is due up to *jitter* after its fire time;
    the delay differs per fire time and is the same in all processes. Durations are timedeltas or seconds.

    >>> ScheduleSpec(name="nightly", cron="0 25 * * *", type="clean")
    Traceback (most recent call last):
        ...
    taskharbor.core.errors.InvalidRequest: cron is '0 25 * * *': its hour '25' is wrong: 0 to 23, a list (1,5), a range (1-5), a step (*/15)
    """  # noqa: E501  the example shows the message as it is

    name: str
    cron: str
    type: str
    payload: object = field(default=None, repr=False)
    queue: str = "default"
    timezone: str = "UTC"
    missed: Missed = "once"
    overlap: Overlap = "allow"
    jitter: Duration = 0
    window: Duration = DAY
    timeout: Duration | None = None
    max_attempts: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if problems := list(_problems(self)):
            raise InvalidRequest(problems)
        validate(self.request())

    def request(self, **fields: Any) -> JobRequest:
        """Return the request for one job of this schedule."""
        return JobRequest(
            type=self.type,
            payload=self.payload,
            queue=self.queue,
            timeout=self.timeout,
            max_attempts=self.max_attempts,
            priority=self.priority,
            **fields,
        )

    def times(self) -> Cron:
        """Return the cron expression, which yields the fire times."""
        return Cron(self.cron, self.timezone)

    def options(self) -> dict[str, str]:
        """Return the fields without a column of their own, as text."""
        values = {name: getattr(self, name) for name in _OPTION_PARSERS}
        return {name: _text(name, value) for name, value in values.items() if value is not None}


def spec_for(request: JobRequest, **options: Any) -> ScheduleSpec:
    """Return the definition of a schedule that enqueues *request*."""
    return ScheduleSpec(
        type=request.type,
        payload=request.payload,
        queue=request.queue,
        timeout=request.timeout,
        max_attempts=request.max_attempts,
        priority=request.priority,
        **options,
    )


def spec_of(schedule: Schedule, payload: object = None) -> ScheduleSpec:
    """Return the definition of a stored schedule. Options unknown to this release are ignored."""
    try:
        options = {
            name: _OPTION_PARSERS[name](text) for name, text in schedule.options.items() if name in _OPTION_PARSERS
        }
    except (ValueError, OverflowError) as error:
        problem = Problem(field="options", value=repr(dict(schedule.options)), rule=str(error))
        raise InvalidRequest([problem]) from error
    return ScheduleSpec(
        name=schedule.name,
        cron=schedule.cron,
        type=schedule.type,
        payload=payload,
        queue=schedule.queue,
        timezone=schedule.timezone,
        **options,
    )


def _problems(spec: ScheduleSpec) -> Iterator[Problem]:
    name: object = spec.name
    if not isinstance(name, str) or not TYPE_PATTERN.fullmatch(name):
        yield Problem(field="name", value=repr(name), rule=f"must match {TYPE_PATTERN.pattern}")
    yield from filter(None, [cron_problem(spec.cron), zone_problem(spec.timezone)])
    for option, allowed in (("missed", get_args(Missed)), ("overlap", get_args(Overlap))):
        if (value := getattr(spec, option)) not in allowed:
            yield Problem(field=option, value=repr(value), rule=f"must be one of {', '.join(map(repr, allowed))}")
    for option, least, most in (("jitter", timedelta(0), MAX_JITTER), ("window", timedelta(minutes=1), MAX_WINDOW)):
        value = getattr(spec, option)
        duration = to_timedelta(value)
        if duration is None or not least <= duration <= most:
            rule = f"must be a timedelta or a number of seconds, from {least} to {most}"
            yield Problem(field=option, value=repr(value), rule=rule)


def _text(name: str, value: Any) -> str:
    return str(as_timedelta(value, name).total_seconds()) if _OPTION_PARSERS[name] is _duration else str(value)


def _duration(text: str) -> timedelta:
    return timedelta(seconds=float(text))


_OPTION_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "missed": str,
        "overlap": str,
        "jitter": _duration,
        "window": _duration,
        "timeout": _duration,
        "max_attempts": int,
        "priority": int,
    }
)
