"""Options that many commands share, so that they have one name, one help and one meaning."""

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

LONGEST: Final = timedelta(days=366)
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
Asked: TypeAlias = Any
"""What the options of a filter hold; `job_filter` knows each."""
MAX_LIMIT: Final = 1_000


class InvalidValue(click.BadParameter):
    """What was typed cannot be read as what it should be."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(f"{text!r}: {rule}")


class ConflictingOptions(click.UsageError):
    """Two ways to say one thing were used at once."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"give {one} or {other}, not both")


def duration(text: str) -> timedelta:
    """Read a time with its unit, such as 25s, up to a year."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise InvalidValue(text, "write a duration with its unit, such as 500ms, 25s or 2m")
    value = float(parts[1]) * _UNITS[parts[2]]
    if value > LONGEST:
        raise InvalidValue(text, f"at most {LONGEST.days}d")
    return value


def duration_from(shortest: str) -> Callable[[str], timedelta]:
    """Return what reads a duration of at least *shortest*."""

    def read(text: str) -> timedelta:
        value = duration(text)
        if value < duration(shortest):
            raise InvalidValue(text, f"at least {shortest}")
        return value

    return read


def queues(text: str) -> dict[str, int | None]:
    """Read queues such as mail:10,default: each with how many of its jobs run at once, or None."""
    limits: dict[str, int | None] = {}
    for part in text.split(","):
        name, colon, limit = part.strip().partition(":")
        if not name or (colon and _LIMIT.fullmatch(limit) is None):
            raise InvalidValue(part, "write a queue's name, or its name and a limit, such as mail:10")
        if name in limits:
            raise InvalidValue(name, "a queue is named once")
        limits[name] = int(limit) if colon else None
    return limits


def moment(text: str) -> datetime:
    """Read a time with its zone, such as 2026-11-15T02:00Z."""
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidValue(text, f"write a time as {_EXAMPLE}") from None
    if value.tzinfo is None:
        raise InvalidValue(text, f"say in which zone, as in {_EXAMPLE} or 2026-11-15T02:00+01:00")
    return value.astimezone(UTC)


def time_or_ago(text: str) -> datetime:
    """Read a time with its zone, or how long ago it was, such as 2h."""
    if _DURATION.fullmatch(text.strip()):
        return datetime.now(UTC) - duration(text)
    return moment(text)


def tag(text: str) -> tuple[str, str]:
    """Read a key and its value, such as tenant=acme."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidValue(text, "write a key and its value, such as tenant=acme")
    return key, value


def read_payload(given: str) -> Any:
    """Return the payload that *given* is as JSON, or that is found in ``@file``, or for ``-`` on stdin."""
    return _parsed(_text(given), given)


def payload_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the object that the pairs make; without any, an empty one: a call without arguments."""
    made: dict[str, Any] = {}
    for pair in pairs:
        key, value = tag(pair)
        if key in made:
            raise InvalidValue(pair, f"{key} is given twice")
        made[key] = _value(value)
    return made


def _text(payload: str) -> str:
    """Return the JSON that *payload* is, or points at."""
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
        where = given if given.startswith("@") or given == "-" else text
        raise InvalidValue(where, f"this is no JSON: {error}; the shell wants it in single quotes") from error


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which no JSON has."""
    raise ValueError(constant)


def confirm_options(command: F) -> F:
    """Add `--yes` as ``yes`` and `--dry-run` as ``dry_run``."""
    yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    return yes(click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")(command))


def confirm(what: str, *, yes: bool) -> None:
    """Ask a person whether to do *what*, or raise `NotConfirmed`."""
    from taskharbor.cli.errors import NotConfirmed
    from taskharbor.cli.render import echo_status

    if yes:
        return
    if not sys.stdin.isatty():
        raise NotConfirmed(what, "nobody can be asked here: look with --dry-run, then say --yes")
    echo_status(f"{what}?")
    if not click.confirm("go on", err=True):
        raise NotConfirmed(what, "'y' would have done it")


def filter_options(command: F) -> F:
    """Add the filters of a list of jobs; `job_filter` takes what they give."""
    options = [
        click.option(
            "-s",
            "--status",
            "statuses",
            type=click.Choice([status.value for status in Status], case_sensitive=False),
            multiple=True,
            help="Only in this status; may be repeated.",
        ),
        click.option("-q", "--queue", help="Only of this queue."),
        click.option("-t", "--type", help="Only of this type."),
        click.option("--since", type=time_or_ago, metavar="TIME", help="Only made since this time, or since 2h ago."),
        click.option("--until", type=time_or_ago, metavar="TIME", help="Only made before this time."),
        click.option("--tag", type=tag, metavar="KEY=VALUE", help="Only with this in the metadata."),
    ]
    return _with(command, options)


def dead_options(command: F) -> F:
    """Add the filters of dead letters."""
    options = [
        click.option("-q", "--queue", help="Only of this queue."),
        click.option("-t", "--type", help="Only of this type."),
        click.option("-f", "--fingerprint", help="Only killed by this error; 'taskharbor dead groups' shows it."),
    ]
    return _with(command, options)


def page_options(command: F) -> F:
    """Add `--limit` and `--after`."""
    options = [
        click.option(
            "-n", "--limit", type=click.IntRange(1, MAX_LIMIT), default=50, show_default=True, help="How many to show."
        ),
        click.option("--after", metavar="ID", help="Go on below this job."),
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
    for option in reversed(options):  # click lists them in the order in which they were added last
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add `--json` as ``as_json``: for every command that prints data."""
    return click.option("--json", "as_json", is_flag=True, help="Print data, and errors, as JSON.")(command)


def url_option(command: F) -> F:
    """Add `--url` as ``url``, which is never missing: for every command that needs a store."""
    # Not click's envvar: the environment is read in settings.py only.
    text = "The store, such as memory://  [default: TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", callback=_given_or_set, help=text)(command)


def url_of_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None: for commands whose app may name its store itself."""
    text = "The store, such as sqlite:///jobs.db  [default: the app's own, else TASKHARBOR_URL]"
    return click.option("--url", metavar="URL", help=text)(command)


def url_or_app_option(command: F) -> F:
    """Add `--url` as ``url``, which may be None: for operating commands that take an app."""
    text = "The store, such as sqlite:///jobs.db  [default: TASKHARBOR_URL, else the app's own]"
    return click.option("--url", metavar="URL", callback=_given_or_set_or_none, help=text)(command)


def app_option(command: F) -> F:
    """Add `--app` as ``app``, which may be None: for commands that write payloads."""
    text = "The app whose codec writes the payload, as for 'worker'.  [default: found as 'worker' finds it]"
    return click.option("--app", metavar="APP", help=text)(command)


def _given_or_set_or_none(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return Settings.from_env().url if value is None else value


def _given_or_set(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    return Settings.from_env().require_url() if value is None else value
