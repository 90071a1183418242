from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from types import MappingProxyType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.core.errors import InvalidRequest, Problem
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
    JobRequest,
    validate,
    validate_attempts,
)

SECOND: Final = timedelta(seconds=1)
MOMENT: Final = timedelta.resolution
DAY: Final = timedelta(hours=24) - MOMENT
NAIVE: Final = datetime(2030, 1, 1)  # noqa: DTZ001  the mistake under test


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"type": "greet"} | fields)


def problems(**fields: Any) -> tuple[Problem, ...]:
    with pytest.raises(InvalidRequest) as caught:
        validate(request(**fields))
    return caught.value.problems


class Undecided(tzinfo):
    """A time zone without an offset; a time in it counts as naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> None:
        return None


TYPES: Final = "must match [A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}"
QUEUES: Final = "must match [A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
SECONDS: Final = "must be a timedelta or a number of seconds, such as 30 or 0.5"
SCHEDULES: Final = "must be from 1970 to before 9000"
KEYS: Final = "must have 1 to 255 characters, not"
STORABLE: Final = "must not contain NUL or a lone surrogate"

# The field, its value, the value as shown, and the rule.
REFUSED: Final[dict[str, tuple[str, Any, str, str]]] = {
    "blank type": ("type", "", "''", TYPES),
    "type of blanks": ("type", "  ", "'  '", TYPES),
    "type with a line break": ("type", "greet\n", r"'greet\n'", TYPES),
    "type beyond ASCII": ("type", "grüßen", "'grüßen'", TYPES),
    "type that begins with a dot": ("type", ".greet", "'.greet'", TYPES),
    "long type": ("type", "t" * 201, f"'{'t' * 57}...'", TYPES),
    "type that is no text": ("type", None, "None", "must be a str"),
    "type in bytes": ("type", b"greet", "b'greet'", "must be a str"),
    "blank queue": ("queue", "", "''", QUEUES),
    "queue with a blank": ("queue", "e mail", "'e mail'", QUEUES),
    "queue with a slash": ("queue", "e/mail", "'e/mail'", QUEUES),
    "queue with a quote": ("queue", "';drop", '"\';drop"', QUEUES),
    "queue with a NUL": ("queue", "q\x00", r"'q\x00'", QUEUES),
    "queue that begins with a dash": ("queue", "--help", "'--help'", QUEUES),
    "long queue": ("queue", "q" * 65, f"'{'q' * 57}...'", QUEUES),
    "queue that is no text": ("queue", 7, "7", "must be a str"),
    "no queue": ("queue", None, "None", "must be a str"),
    "negative timeout": ("timeout", -SECOND, "-1 day, 23:59:59", "must be above 0 and at most 366 days"),
    "timeout of zero": ("timeout", timedelta(0), "0:00:00", "must be above 0 and at most 366 days"),
    "timeout over a year": ("timeout", MAX_TIMEOUT + MOMENT, "366 days, 0:00:00.000001", "at most 366 days"),
    "negative timeout in seconds": ("timeout", -30, "-30", "must be above 0 and at most 366 days"),
    "timeout that is no number": ("timeout", float("nan"), "nan", SECONDS),
    "naive moment": ("scheduled_for", NAIVE, "datetime.datetime(2030, 1, 1, 0, 0)", "needs a time zone"),
    "moment in no known zone": (
        "scheduled_for",
        NAIVE.replace(tzinfo=Undecided()),
        "datetime.datetime(2030, 1, 1, 0, 0, tzinfo=<",
        "needs a time zone",
    ),
    "moment in text": ("scheduled_for", "2030-01-01", "'2030-01-01'", "must be a datetime"),
    "day without an hour": (
        "scheduled_for",
        NAIVE.date(),
        "datetime.date(2030, 1, 1)",
        "must be a datetime",
    ),
    "moment before time": ("scheduled_for", MIN_SCHEDULED_FOR - MOMENT, "datetime.datetime(1969, 12, 31", SCHEDULES),
    "moment after time": ("scheduled_for", MAX_SCHEDULED_FOR, "datetime.datetime(9000, 1, 1", SCHEDULES),
    "year 9999": ("scheduled_for", datetime.max.replace(tzinfo=UTC), "datetime.datetime(9999, 12, 31", SCHEDULES),
    "last moment of the calendar, far west": (
        "scheduled_for",
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        "datetime.datetime(9999, 12, 31",
        SCHEDULES,
    ),
    "first moment of the calendar, far east": (
        "scheduled_for",
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        "datetime.datetime(1, 1, 1",
        SCHEDULES,
    ),
    "negative delay": ("delay", -SECOND, "-1 day, 23:59:59", "must be at least 0 and at most 3,650 days"),
    "delay over ten years": ("delay", MAX_DELAY + MOMENT, "3650 days, 0:00:00.000001", "at most 3,650 days"),
    "delay in text": ("delay", "5m", "'5m'", SECONDS),
    "delay that is a truth": ("delay", True, "True", SECONDS),
    "delay without end": ("delay", float("inf"), "inf", SECONDS),
    "no attempts": ("max_attempts", 0, "0", "must be from 1 to 1,000,000"),
    "negative attempts": ("max_attempts", -1, "-1", "must be from 1 to 1,000,000"),
    "too many attempts": ("max_attempts", ATTEMPTS_RANGE[-1] + 1, "1000001", "must be from 1 to 1,000,000"),
    "half an attempt": ("max_attempts", 1.5, "1.5", "must be an int"),
    "attempts that are a truth": ("max_attempts", True, "True", "must be an int"),
    "priority that is a truth": ("priority", True, "True", "must be an int"),
    "priority in text": ("priority", "high", "'high'", "must be an int"),
    "no priority": ("priority", None, "None", "must be an int"),
    "low priority": ("priority", PRIORITY_RANGE[-1] + 1, "32768", "must be from -32,768 to 32,767"),
    "high priority": ("priority", PRIORITY_RANGE[0] - 1, "-32769", "must be from -32,768 to 32,767"),
    "gigantic priority": ("priority", 10**100, f"1{'0' * 56}...", "must be from -32,768 to 32,767"),
    "blank key": ("idempotency_key", "", "''", f"{KEYS} 0"),
    "key over the limit": ("idempotency_key", "k" * 256, f"'{'k' * 57}...'", f"{KEYS} 256"),
    "key of 10 KB": ("idempotency_key", "k" * 10_240, f"'{'k' * 57}...'", f"{KEYS} 10,240"),
    "key with a NUL": ("idempotency_key", "k\x00", r"'k\x00'", STORABLE),
    "key with a lone surrogate": ("idempotency_key", "k\ud800", r"'k\ud800'", STORABLE),
    "key that is no text": ("idempotency_key", 7, "7", "must be a str"),
    "no metadata": ("metadata", None, "None", "must be a mapping of str to str"),
    "metadata in text": ("metadata", "a=b", "'a=b'", "must be a mapping of str to str"),
    "metadata in a list": ("metadata", [("a", "b")], "[('a', 'b')]", "must be a mapping of str to str"),
    "metadata that is a class": ("metadata", dict, "<class 'dict'>", "must be a mapping of str to str"),
    "too much metadata": (
        "metadata",
        {f"k{number}": "" for number in range(MAX_METADATA + 1)},
        "33 entries",
        "must have at most 32",
    ),
}


@pytest.mark.parametrize(("field", "value", "shown", "rule"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_field_is_refused_with_its_value_and_rule(field: str, value: Any, shown: str, rule: str) -> None:
    [problem] = problems(**{field: value})

    assert problem.field == field
    assert shown in problem.value
    assert rule in problem.rule
    assert str(problem) == f"{field} is {problem.value}: {problem.rule}"


METADATA: Final[dict[str, tuple[Any, Any, str, str, str]]] = {
    "blank key": ("", "v", "metadata key", "''", "must have 1 to 64 characters, not 0"),
    "long key": ("k" * 65, "v", "metadata key", f"'{'k' * 57}...'", "must have 1 to 64 characters, not 65"),
    "key that is no text": (7, "v", "metadata key", "7", "must be a str"),
    "key with a NUL": ("\x00", "v", "metadata key", r"'\x00'", STORABLE),
    "long value": ("k", "v" * 1_025, "metadata['k']", f"'{'v' * 57}...'", "0 to 1,024 characters, not 1,025"),
    "value that is no text": ("k", 7, "metadata['k']", "7", "must be a str"),
    "value that is nothing": ("k", None, "metadata['k']", "None", "must be a str"),
    "value with a NUL": ("k", "\x00", "metadata['k']", r"'\x00'", STORABLE),
}


@pytest.mark.parametrize(("key", "value", "field", "shown", "rule"), METADATA.values(), ids=METADATA)
def test_invalid_metadata_is_refused_with_its_key(key: Any, value: Any, field: str, shown: str, rule: str) -> None:
    [problem] = problems(metadata={"fine": "too", key: value})

    assert (problem.field, problem.value) == (field, shown)
    assert rule in problem.rule


def test_scheduled_for_and_delay_exclude_each_other() -> None:
    [problem] = problems(scheduled_for=datetime(2030, 1, 1, tzinfo=UTC), delay=SECOND)

    assert str(problem) == "delay is 0:00:01: give scheduled_for or delay, not both"


def test_all_invalid_fields_are_reported_together() -> None:
    found = problems(type="", queue="e mail", timeout=-SECOND, scheduled_for=NAIVE, max_attempts=0, metadata={"": 7})

    assert [problem.field for problem in found] == [
        "type",
        "queue",
        "scheduled_for",
        "timeout",
        "max_attempts",
        "metadata key",
        "metadata['']",
    ]


def test_the_message_of_a_refusal_joins_its_problems() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate(request(max_attempts=0, priority="high"))

    assert str(caught.value) == ("max_attempts is 0: must be from 1 to 1,000,000; priority is 'high': must be an int")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"type": "t"},
        {"type": "t" * 200},
        {"type": "_a.b:c/d-e"},
        {"queue": "q" * 64},
        {"queue": "0.high_priority-mail"},
        {"scheduled_for": MIN_SCHEDULED_FOR},
        {"scheduled_for": MAX_SCHEDULED_FOR - MOMENT},
        {"scheduled_for": MAX_SCHEDULED_FOR.astimezone(timezone(timedelta(hours=14))) - MOMENT},
        {"delay": timedelta(0)},
        {"delay": MAX_DELAY},
        {"timeout": MOMENT},
        {"timeout": MAX_TIMEOUT},
        {"max_attempts": ATTEMPTS_RANGE[0]},
        {"max_attempts": ATTEMPTS_RANGE[-1]},
        {"priority": PRIORITY_RANGE[0]},
        {"priority": PRIORITY_RANGE[-1]},
        {"idempotency_key": "k"},
        {"idempotency_key": "ü" * MAX_KEY_CHARS},
        {"metadata": {}},
        {"metadata": MappingProxyType({"k" * MAX_METADATA_KEY_CHARS: "v" * MAX_METADATA_VALUE_CHARS, "empty": ""})},
        {"metadata": {f"k{number}": "" for number in range(MAX_METADATA)}},
    ],
)
def test_a_value_at_its_limit_is_accepted(fields: dict[str, Any]) -> None:
    validate(request(**fields))


def test_a_request_does_not_show_its_payload() -> None:
    assert "hunter2" not in repr(request(payload={"password": "hunter2"}))


@pytest.mark.parametrize("budget", [ATTEMPTS_RANGE[0], ATTEMPTS_RANGE[-1]])
def test_a_valid_requeue_budget_is_accepted(budget: int) -> None:
    validate_attempts(budget, field="budget")


@pytest.mark.parametrize("budget", [0, ATTEMPTS_RANGE[-1] + 1, True, "3", None])
def test_an_invalid_requeue_budget_is_refused(budget: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^budget is "):
        validate_attempts(budget, field="budget")


anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.datetimes()
    | st.datetimes(timezones=st.builds(timezone, st.timedeltas(-DAY, DAY)))
    | st.timedeltas()
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text() | st.integers(), st.text() | st.integers(), max_size=2)
)
names = [
    "type",
    "queue",
    "scheduled_for",
    "delay",
    "timeout",
    "max_attempts",
    "priority",
    "idempotency_key",
    "metadata",
]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(names), anything)
def test_any_field_value_is_accepted_or_reported(field: str, value: object) -> None:
    try:
        validate(request(**{field: value}))
    except InvalidRequest as refusal:
        named = {problem.field.split("[")[0].split(" ")[0] for problem in refusal.problems}
    else:
        named = {field}

    assert named == {field}
