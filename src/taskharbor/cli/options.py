"""Options that several commands share, the parsers of their values, payload arguments, and confirmation."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from taskharbor.core.states import Status
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.results import JobFilter

MAX_DURATION: Final = timedelta(days=366)
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_EXAMPLE: Final = "2026-11-15T02:00Z"
_LIMIT: Final = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_UNITS: Final[Mapping[str, timedelta]] = MappingProxyType(
    {
        "ms": timedelta(milliseconds=1),
        "s": timedelta(seconds=1),
        "m": timedelta(minutes=1),
        "h": timedelta(hours=1),
        "d": timedelta(days=1),
    }
)
F = TypeVar("F", bound="Callable[..., Any]")
FilterValue: TypeAlias = Any
"""The value of a filter option; `job_filter` and `dead_filter` have the types."""
MAX_LIMIT: Final = 1_000


class InvalidValue(click.BadParameter):
    """A value that cannot be parsed."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(f"{text!r}: {rule}")


class ConflictingOptions(click.UsageError):
    """Two options that exclude each other were given."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"give {one} or {other}, not both")


def duration(text: str) -> timedelta:
    """Parse a duration with its unit, such as 25s, up to 366 days."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise InvalidValue(text, "write a duration with its unit, such as 500ms, 25s or 2m")
    value = float(parts[1]) * _UNITS[parts[2]]
    if value > MAX_DURATION:
        raise InvalidValue(text, f"at most {MAX_DURATION.days}d")
    return value


def duration_from(minimum: str) -> Callable[[str], timedelta]:
    """Return a parser of durations of at least *minimum*."""

    def parse(text: str) -> timedelta:
        value = duration(text)
        if value < duration(minimum):
            raise InvalidValue(text, f"at least {minimum}")
        return value

    return parse


def queues(text: str) -> dict[str, int | None]:
    """Parse queues such as mail:10,default: each with the number of jobs that may run concurrently, or None."""
    limits: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        if not name or (colon and _LIMIT.fullmatch(limit) is None):
            raise InvalidValue(part, "write a queue's name, or its name and a limit, such as mail:10")
        if name in limits:
            raise InvalidValue(name, "a queue may be named only once")
        limits[name] = int(limit) if colon else None
    return limits


def time_with_zone(text: str) -> datetime:
    """Parse a time with its zone, such as 2026-11-15T02:00Z."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(text, f"write a time as {_EXAMPLE}") from None
    if value.tzinfo is None:
        raise InvalidValue(text, f"add the time zone, as in {_EXAMPLE} or 2026-11-15T02:00+01:00")
    return value.astimezone(UTC)


def time_or_ago(text: str) -> datetime:
    """Parse a time with its zone, or a duration before now, such as 2h."""
    if _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(text)
    return time_with_zone(text)


def tag(text: str) -> tuple[str, str]:
    """Parse a key and its value, such as tenant=acme."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidValue(text, "write a key and its value, such as tenant=acme")
    return key, value


def read_payload(given: str) -> Any:
    """Return the payload: *given* is JSON, ``@file``, or ``-`` for stdin."""
    return _parsed(_text(given), given)


def payload_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the payload of KEY=VALUE pairs; without any, an empty object, which is a call without arguments."""
    payload: dict[str, Any] = {}
    for pair in pairs:
        key, value = tag(pair)
        if key in payload:
            raise InvalidValue(pair, f"{key} is given twice")
        payload[key] = _value(value)
    return payload


def _text(payload: str) -> str:
    """Return the JSON text of *payload*, read from a file or stdin if necessary."""
    if payload != "-" and not payload.startswith("@"):
        return payload
    try:
        if payload == "-":
            return sys.stdin.read()
        with click.open_file(payload[1:], encoding="utf-8") as file:
            text: str = file.read()
            return text
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(payload, f"cannot be read: {error}") from error


def _parsed(text: str, given: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        source = given if given.startswith("@") or given == "-" else text
        raise InvalidValue(source, f"not valid JSON: {error}; in a shell, put it in single quotes") from error


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> None:
    """Reject NaN and Infinity, which are not valid JSON."""
    raise ValueError(constant)


def confirm_options(command: F) -> F:
    """Add `--yes` as ``yes`` and `--dry-run` as ``dry_run``."""
    yes = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
    return yes(click.option("--dry-run", is_flag=True, help="Show what would be done, without doing it.")(command))


def confirm(what: str, *, yes: bool) -> None:
    """Ask for confirmation of *what*; raise `NotConfirmed` if it is refused or cannot be asked."""
    from taskharbor.cli.errors import NotConfirmed
    from taskharbor.cli.render import echo_status

    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(what, "not a terminal; preview with --dry-run, then pass --yes")
    echo_status(f"{what}?")
    if not click.confirm("continue", err=True):
        raise NotConfirmed(what, "answer 'y' to continue")


def filter_options(command: F) -> F:
    """Add the filter options of jobs; `job_filter` takes their values."""
    options = [
        click.option(
            "-s",
            "--status",
            "statuses",
            type=click.Choice([status.value for status in Status], case_sensitive=False),
            multiple=True,
            help="Only jobs in this status; may be repeated.",
        ),
        click.option("-q", "--queue", help="Only jobs of this queue."),
        click.option("-t", "--type", help="Only jobs of this type."),
        click.option(
            "--since",
            type=time_or_ago,
            metavar="TIME",
            help="Only jobs created since this time, or 2h for 2 hours ago.",
        ),
        click.option("--until", type=time_or_ago, metavar="TIME", help="Only jobs created before this time."),
        click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only jobs with this in the metadata."),
    ]
    return _with(command, options)


def dead_options(command: F) -> F:
    """Add the filter options of dead letters; `dead_filter` takes their values."""
    options = [
        click.option("-q", "--queue", help="Only jobs of this queue."),
        click.option("-t", "--type", help="Only jobs of this type."),
        click.option("-f", "--fingerprint", help="Only jobs with this error; 'taskharbor dead groups' lists them."),
    ]
    return _with(command, options)


def page_options(command: F) -> F:
    """Add `--limit` and `--after`."""
    options = [
        click.option(
            "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to show."
        ),
        click.option("--after", metavar="ID", help="Continue after this job."),
    ]
    return _with(command, options)


def job_filter(
    *,
    statuses: tuple[str, ...] = (),
    queue: str | None,
    type: str | None,
    since: datetime | None = None,
    until: datetime | None = None,
    tag: tuple[str, str] | None = None,
) -> JobFilter:
    from taskharbor.core.results import JobFilter

    wanted = frozenset(map(Status, statuses)) or None
    return JobFilter(statuses=wanted, queue=queue, type=type, since=since, until=until, tag=tag)


def dead_filter(*, queue: str | None, type: str | None, fingerprint: str | None) -> JobFilter:
    from taskharbor.core.results import JobFilter

    return JobFilter(statuses=frozenset({Status.DEAD}), queue=queue, type=type, fingerprint=fingerprint)


def _with(command: F, options: Sequence[Callable[[F], F]]) -> F:
    for option in reversed(options):  # click lists the option that was added last first
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add `--json` as ``as_json``, for every command that prints data."""
    return click.option("--json", "as_json", is_flag=True, help="Print data and errors as JSON.")(command)


def url_option(command: F) -> F:
    """Add `--url` as ``url``, which is never None, for every command that needs a store."""
    # Not click's envvar: only settings.py reads the environment.
    text = "The store, such as memory://  [default: TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", callback=_given_or_set, help=text)(command)


def url_of_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None, for commands whose app may name its store."""
    text = "The store, such as sqlite:///jobs.db  [default: the app's store, else TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", help=text)(command)


def url_or_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None, for operating commands that take an app."""
    text = "The store, such as sqlite:///jobs.db  [default: TASKHARBOR_URL, else the app's store]"
    return click.option("--url", metavar="URL", callback=_given_or_set_or_none, help=text)(command)


def app_option(command: F) -> F:
    """Add `--app` as ``app``, which may be None, for commands that write payloads."""
    text = "The app whose codec encodes the payload, as for 'worker'.  [default: found as 'worker' finds it]"
    return click.option("--app", metavar="APP", help=text)(command)


def _given_or_set_or_none(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return Settings.from_env().url if value is None else value


def _given_or_set(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    return Settings.from_env().require_url() if value is None else value
