"""Options that several commands share, the parsers of their values, payload arguments, and confirmation."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from taskharbor.core.durations import DURATION_PATTERN, parse_duration
from taskharbor.core.sizes import parse_size
from taskharbor.core.states import Status
from taskharbor.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from taskharbor.core.results import JobFilter

MAX_DURATION: Final = timedelta(days=366)
_EXAMPLE: Final = "2026-11-15T02:00Z"
_LIMIT: Final = re.compile(r"[1-9]\d{0,8}", re.ASCII)
F = TypeVar("F", bound="Callable[..., Any]")
FilterValue: TypeAlias = Any
"""The value of a filter option; `job_filter` and `dead_filter` have the types."""
MAX_LIMIT: Final = 1_000
PAIR: Final = "KEY=VALUE"
PAYLOAD: Final = "--payload"
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


class InvalidValue(click.BadParameter):
    """A value that cannot be parsed."""

    def __init__(self, text: str, rule: str, *, parameter: str | None = None) -> None:
        super().__init__(f"{text!r}: {rule}", param_hint=None if parameter is None else repr(parameter))


class ConflictingOptions(click.UsageError):
    """Two options that exclude each other were given."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"give {one} or {other}, not both")


def duration(text: str) -> timedelta:
    """Parse a duration with its unit, such as 25s, up to 366 days."""
    try:
        value = parse_duration(text)
    except ValueError as error:
        raise InvalidValue(text, str(error)) from None
    if value > MAX_DURATION:
        raise InvalidValue(text, f"at most {MAX_DURATION.days}d")
    return value


def size(text: str) -> int:
    """Parse a size of memory with its unit, such as 512MB."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidValue(text, str(error)) from None


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


def time_or_ago(text: str) -> datetime:
    """Parse a time with its zone, or a duration before now, such as 2h."""
    if DURATION_PATTERN.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(text)
    return _time_with_zone(text, "2h for two hours ago")


def time_or_delay(text: str) -> datetime | timedelta:
    """Parse a time with its zone, or a duration from now, such as 2h; the store adds it to its own time."""
    return (
        duration(text)
        if DURATION_PATTERN.fullmatch(text.strip())
        else _time_with_zone(text, "2h for two hours from now")
    )


def _time_with_zone(text: str, relative: str) -> datetime:
    try:
        value = datetime.fromisoformat(text.strip())
        in_utc = value.astimezone(UTC)
    except (ValueError, OverflowError):  # the latter for the first and the last day that Python knows
        raise InvalidValue(text, f"write a time such as {_EXAMPLE}, or {relative}") from None
    if value.tzinfo is None:
        raise InvalidValue(text, f"add the time zone, as in {_EXAMPLE} or 2026-11-15T02:00+01:00")
    return in_utc


def rate(text: str) -> float:
    """Parse a number of jobs per second."""
    from taskharbor.operations import MAX_RATE, MIN_RATE

    with suppress(ValueError):
        if MIN_RATE <= (value := float(text)) <= MAX_RATE:  # never, if it is not a number
            return value
    raise InvalidValue(text, f"write a number of jobs per second, from {MIN_RATE:g} to {MAX_RATE:,.0f}")


def unknown_types(text: str) -> str:
    """Check what a worker does with jobs of unknown types, such as dead-letter:5m."""
    from taskharbor.core.errors import UsageError
    from taskharbor.worker.config import UNKNOWN_TYPES_RULE, unhandled_delay

    try:
        unhandled_delay(text)
    except UsageError:
        raise InvalidValue(text, UNKNOWN_TYPES_RULE) from None
    return text


def tag(text: str) -> tuple[str, str]:
    """Parse a key and its value, such as tenant=acme."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidValue(text, "write a key and its value, such as tenant=acme")
    return key, value


def read_payload(given: str) -> Any:
    """Return the payload: *given* is JSON, ``@file``, or ``-`` for stdin."""
    return _parsed(_text(given), given)


def payload_of(pairs: Sequence[str], takes: Callable[[str, object], bool] | None = None) -> dict[str, Any]:
    """Return the payload of KEY=VALUE pairs; without any, an empty object, which is a call without arguments.

    *takes* returns whether a task takes a value for a parameter: 4711 is text if the parameter is a str.
    """
    payload: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidValue(pair, "write a parameter and its value, such as name=Ada", parameter=PAIR)
        if key in payload:
            raise InvalidValue(pair, f"{key} is given twice", parameter=PAIR)
        parsed = _value(value)
        is_text = takes is not None and not takes(key, parsed) and takes(key, value)
        payload[key] = value if is_text else parsed
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
        raise InvalidValue(payload, f"cannot be read: {error}", parameter=PAYLOAD) from error


def _parsed(text: str, given: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        source = given if given.startswith("@") or given == "-" else text
        rule = f"not valid JSON: {error}; in a shell, put it in single quotes"
        raise InvalidValue(source, rule, parameter=PAYLOAD) from error


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


def bulk_options(command: F) -> F:
    """Add the options of bulk operations: `--rate`, `--reason`, `--start-in`, `--no-wait`, `--yes` and `--dry-run`."""
    options = [
        click.option(
            "--rate",
            type=rate,
            metavar="N",
            help="How many jobs are changed per second.  [default: as many as possible]",
        ),
        click.option("--reason", "--why", "reason", default="", help="The reason, for the history and the audit log."),
        click.option(
            "--start-in",
            type=duration,
            metavar="TIME",
            default="0s",
            help="When a bulk operation starts; until then, stopping it undoes it.  [default: now]",
        ),
        click.option("--no-wait", is_flag=True, help="Print the id of the bulk operation and do not wait for its end."),
    ]
    return confirm_options(_with(command, options))


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
            help=f"Only jobs created since this time, such as {_EXAMPLE}, or 2h for two hours ago.",
        ),
        click.option(
            "--until", type=time_or_ago, metavar="TIME", help="Only jobs created before this time, in the same form."
        ),
        click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only jobs with this in the metadata."),
        click.option("--worker", metavar="ID", help="Only jobs that this worker holds or ran last."),
        click.option("--schedule", metavar="NAME", help="Only jobs that this schedule created."),
        click.option("-f", "--fingerprint", help="Only dead letters with this error; see 'taskharbor dead groups'."),
    ]
    return _with(command, options)


def due_options(command: F) -> F:
    """Add `--delay` and `--at`; `due_fields` takes their values."""
    options = [
        click.option("--delay", type=duration, metavar="TIME", help="How long to wait before it is due, such as 5m."),
        click.option(
            "--at",
            type=time_or_delay,
            metavar="TIME",
            help=f"When it is due, such as {_EXAMPLE}, or 2h as with --delay.",
        ),
    ]
    return _with(command, options)


def due_fields(delay: timedelta | None, at: datetime | timedelta | None) -> dict[str, Any]:
    """Return the fields ``delay`` and ``scheduled_for``, of which at most one is not None."""
    if delay is not None and at is not None:
        raise ConflictingOptions("--delay", "--at")
    if isinstance(at, datetime):
        return {"delay": None, "scheduled_for": at}
    return {"delay": delay if at is None else at, "scheduled_for": None}


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
    worker: str | None = None,
    schedule: str | None = None,
    fingerprint: str | None = None,
) -> JobFilter:
    from taskharbor.core.results import JobFilter

    wanted = frozenset(map(Status, statuses)) or None
    return JobFilter(
        statuses=wanted,
        queue=queue,
        type=type,
        since=since,
        until=until,
        tag=tag,
        worker=worker,
        schedule=schedule,
        fingerprint=fingerprint,
    )


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


def log_options(command: F) -> F:
    """Add `--log-level` and `--quiet` as ``log_level``, which may be None, for every command that logs to stderr."""
    levels = click.Choice(LOG_LEVELS, case_sensitive=False)
    level = "The lowest level to log.  [default: TASKHARBOR_LOG_LEVEL, else info]"
    quiet = "Log warnings and errors only: --log-level warning."
    options = [
        click.option("--log-level", type=levels, callback=_level_or_set, help=level),
        click.option("--quiet", "log_level", flag_value="warning", type=levels, callback=_level_or_set, help=quiet),
    ]
    return _with(command, options)


def _level_or_set(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    level = Settings.from_env().log_level if value is None else value
    if level is not None and level.lower() not in LOG_LEVELS:
        raise InvalidValue(level, f"TASKHARBOR_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}")
    return level


def retention_options(command: F) -> F:
    """Add `--keep` and `--keep-dead`, which are None unless given."""
    keep = "How long finished jobs are kept.  [default: as the app says, else TASKHARBOR_KEEP, else 7d]"
    keep_dead = (
        "How long dead letters are kept.  [default: as the app says, else TASKHARBOR_KEEP_DEAD, else until "
        "'taskharbor dead purge']"
    )
    options = [
        click.option("--keep", type=duration_from("1s"), metavar="TIME", help=keep),
        click.option("--keep-dead", type=duration_from("1s"), metavar="TIME", help=keep_dead),
    ]
    return _with(command, options)


def url_option(command: F) -> F:
    """Add `--url` as ``url``, which is never None, for every command that needs a store."""
    # Not click's envvar: only settings.py reads the environment.
    text = "The store, such as sqlite:///jobs.db  [default: TASKHARBOR_URL, else the store of the app in this folder]"
    return click.option("--url", metavar="URL", callback=_given_or_found, help=text)(command)


def url_of_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None, for commands whose app may name its store."""
    text = "The store, such as sqlite:///jobs.db  [default: the app's store, else TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", help=text)(command)


def startup_options(command: F) -> F:
    """Add `--migrate` as ``migrate`` and `--wait` as ``wait``; `taskharbor.cli.startup` uses their values."""
    migrate = click.option("--migrate", is_flag=True, help="Apply pending migrations of the store at start.")
    wait = click.option("--wait", is_flag=True, help="Wait for a store that is unavailable at start.")
    return migrate(wait(command))


def app_option(command: F) -> F:
    """Add `--app` as ``app``, which may be None, for commands that write payloads."""
    text = "The app with the task and its codec, as for 'worker'.  [default: found as 'worker' finds it]"
    return click.option("--app", metavar="APP", help=text)(command)


def _given_or_found(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    if value is not None:
        return value
    settings = Settings.from_env()
    return settings.url or _url_of_app() or settings.require_url()


def _url_of_app() -> str | None:
    """Return the URL of the store of the app that a worker would find, or None."""
    from taskharbor.cli.app_loader import harbor_for
    from taskharbor.cli.store import url_of

    return url_of(harbor_for(None))


def given_options(options: Mapping[str, timedelta | None]) -> Any:
    """Return the options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}
