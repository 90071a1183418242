"""The filters of the list of jobs: read from a query or a form, and written back into links."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

from taskharbor.core.durations import parse_duration
from taskharbor.core.request import MAX_SCHEDULED_FOR, MIN_SCHEDULED_FOR
from taskharbor.core.results import JobFilter
from taskharbor.core.states import Status
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta

FIELDS: Final = ("queue", "type", "worker", "schedule", "tag", "fingerprint", "since", "until")
MAX_CHARS: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFilter:
    """A filter as the user gave it: *texts* by field, *statuses*, and the problems of what cannot be read."""

    texts: Mapping[str, str]
    statuses: tuple[Status, ...]
    wanted: JobFilter
    problems: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether all jobs match."""
        return not self.texts and not self.statuses

    def pairs(self, **changes: str | Sequence[Status]) -> list[tuple[str, str]]:
        """Return the fields of a link to the same list, with *changes*."""
        statuses = changes.pop("statuses", self.statuses)
        given = {**self.texts, **changes}
        fields = [(name, str(value)) for name, value in given.items() if value]
        return [*(("status", Status(each).value) for each in statuses), *fields]

    def query(self, **changes: str | Sequence[Status]) -> str:
        """Return the query of a link to the same list, with *changes*."""
        return urlencode(self.pairs(**changes))

    def fixed(self) -> list[tuple[str, str]]:
        """Return the fields with times in place of ages, so that they mean the same later."""
        times = {"since": iso_time(self.wanted.since), "until": iso_time(self.wanted.until)}
        return self.pairs(**{name: time for name, time in times.items() if time})


def read_filter(values: Callable[[str], Sequence[str]], now: datetime) -> GivenFilter:
    """Read a filter. *values* returns all values of a field; *now* is the store's time."""
    texts = {name: text for name in FIELDS if (text := (values(name) or [""])[-1].strip())}
    known = {each.value for each in Status}
    statuses = tuple(dict.fromkeys(Status(each.upper()) for each in values("status") if each.upper() in known))
    problems = [f"unknown state {each!r}" for each in values("status") if each and each.upper() not in known]
    problems += [f"{name}: at most {MAX_CHARS} characters" for name, text in texts.items() if len(text) > MAX_CHARS]
    texts = {name: text for name, text in texts.items() if len(text) <= MAX_CHARS and "\0" not in text}
    times: dict[str, datetime] = {}
    for name in ("since", "until"):
        if name in texts:
            try:
                times[name] = _time(texts[name], now)
            except ValueError:
                problems.append(f"{name}: write an age such as 15m, 1h or 8d, or a time such as 2030-01-31T14:00Z")
    key, _, value = texts.get("tag", "").partition("=")
    if "tag" in texts and not (key and value):
        problems.append("tag: write it as key=value")
    wanted = JobFilter(
        queue=texts.get("queue"),
        type=texts.get("type"),
        statuses=frozenset(statuses) or None,
        since=times.get("since"),
        until=times.get("until"),
        tag=(key, value) if key and value else None,
        fingerprint=texts.get("fingerprint"),
        worker=texts.get("worker"),
        schedule=texts.get("schedule"),
    )
    return GivenFilter(texts=texts, statuses=statuses, wanted=wanted, problems=tuple(problems))


def _time(text: str, now: datetime) -> datetime:
    """Return the time that an age or a time means, if jobs can have it."""
    try:
        at = now - age if (age := _age(text)) is not None else datetime.fromisoformat(text)
        at = at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError(text) from error
    if not MIN_SCHEDULED_FOR <= at < MAX_SCHEDULED_FOR:
        raise ValueError(text)
    return at


def _age(text: str) -> timedelta | None:
    with suppress(ValueError):
        return parse_duration(text)
    return None
