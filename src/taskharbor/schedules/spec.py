"""A schedule as its author defines it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, get_args

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
    """A job that is to be made again and again. Raises `InvalidRequest` where a field breaks its rule.

    *cron* has five fields and names times of the clocks in *timezone*. *missed* says what becomes of fire times
    that passed while nobody ran or the schedule was paused: "skip" drops those that are a minute late, "once"
    makes one job for all of them, with the last one's time, and "all" makes one for each of the last *window*,
    1,000 at most. *overlap* says what to do while the job of the fire time before has not ended: "allow" two,
    "skip" this one, "queue" it until that has ended, or "cancel" the old one. A job is due up to *jitter* later
    than its fire time; how much differs from time to time, and is the same in all processes.

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
    jitter: timedelta = timedelta(0)
    window: timedelta = DAY
    timeout: timedelta | None = None
    max_attempts: int | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        if problems := list(_problems(self)):
            raise InvalidRequest(problems)
        validate(self.request())

    def request(self, **fields: Any) -> JobRequest:
        """Return what the client is asked for where such a job is to be made now."""
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
        """Return when it fires."""
        return Cron(self.cron, self.timezone)

    def options(self) -> dict[str, str]:
        """Return, as text, what a stored schedule has no column for."""
        values = {name: getattr(self, name) for name in _READ}
        return {name: _text(value) for name, value in values.items() if value is not None}


def spec_of(schedule: Schedule, payload: object = None) -> ScheduleSpec:
    """Return what a stored schedule was made from. Options that this release does not know are left out."""
    try:
        read = {name: _READ[name](text) for name, text in schedule.options.items() if name in _READ}
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
        **read,
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
        if not isinstance(value, timedelta) or not least <= value <= most:
            yield Problem(field=option, value=repr(value), rule=f"must be a timedelta from {least} to {most}")


def _text(value: object) -> str:
    return str(value.total_seconds()) if isinstance(value, timedelta) else str(value)


def _duration(text: str) -> timedelta:
    return timedelta(seconds=float(text))


_READ: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
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
