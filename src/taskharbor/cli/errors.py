"""The errors of commands, and the table that maps exceptions to exit codes and stable error codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from dataclasses import KW_ONLY, dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from taskharbor.cli.main import ExitCode, NoSuchCommand
from taskharbor.cli.render import echo_status
from taskharbor.core import errors
from taskharbor.core.errors import StoreUnavailable, TaskHarborError, UsageError
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.drivers import connect
from taskharbor.installation import install_command
from taskharbor.settings import UrlMissing

if TYPE_CHECKING:
    from collections.abc import Mapping


class AppNotLoaded(TaskHarborError):
    """The app could not be found or imported, or its handlers could not be registered."""

    def __init__(self, app: str, reason: str, hint: str = "") -> None:
        super().__init__(app, reason, hint)
        self.app, self.reason, self.hint = app, reason, hint

    def __str__(self) -> str:
        return f"cannot load {self.app}: {self.reason}{self.hint and '; '}{self.hint}"


class NoSuchName(TaskHarborError):
    """No queue, key or other object of this kind has this name."""

    def __init__(self, kind: str, name: str, hint: str) -> None:
        super().__init__(kind, name, hint)
        self.kind, self.name, self.hint = kind, name, hint

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} not found; {self.hint}"


class NotAJobId(UsageError):
    """The given text is neither a job id nor the beginning of one."""

    def __init__(self, text: str, min_chars: int, hint: str) -> None:
        super().__init__(text, min_chars, hint)
        self.text, self.min_chars, self.hint = text, min_chars, hint

    def __str__(self) -> str:
        rule = f"give the UUID, or at least its first {self.min_chars} characters"
        return f"{self.text!r} is not a job id: {rule}; {self.hint}"


class AmbiguousJobId(UsageError):
    """Several job ids begin with the given text."""

    def __init__(self, text: str, candidates: tuple[str, ...], *, has_more: bool) -> None:
        super().__init__(text, candidates, has_more)
        self.text, self.candidates, self.has_more = text, candidates, has_more

    def __str__(self) -> str:
        found = ", ".join(self.candidates) + (" and others" if self.has_more else "")
        return f"several job ids begin with {self.text!r}: {found}; give more characters"


class NoJobBeginsWith(TaskHarborError):
    """No job id begins with the given text."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text, hint)
        self.text, self.hint = text, hint

    def __str__(self) -> str:
        return f"no job id begins with {self.text!r}; {self.hint}"


class NotConfirmed(TaskHarborError):
    """The operation was not confirmed. Nothing was changed."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what, hint)
        self.what, self.hint = what, hint

    def __str__(self) -> str:
        return f"not confirmed, nothing changed: {self.what}; {self.hint}"


class CodecNotRecorded(TaskHarborError):
    """Another process recorded a different codec, or the store's schema cannot record one yet."""

    def __init__(self, name: str, recorded: str | None) -> None:
        super().__init__(name, recorded)
        self.name, self.recorded = name, recorded

    def __str__(self) -> str:
        reason = (
            "this store has no table for it yet; run 'taskharbor migrate up'"
            if self.recorded is None
            else f"another process recorded {self.recorded!r} at the same time; try again"
        )
        return f"codec {self.name!r} was not recorded: {reason}"


class PartlyRefused(TaskHarborError):
    """Some of the named jobs could not be changed. The error of each was printed before."""

    def __init__(self, refused: int, total: int) -> None:
        super().__init__(refused, total)
        self.refused, self.total = refused, total

    def __str__(self) -> str:
        return f"{self.refused} of {self.total} jobs not changed; see errors above"


class NotInstalled(UsageError):
    """A command needs an optional extra that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} is not installed; run: {install_command(self.extra)}"


class StoreAway(StoreUnavailable):
    """The store is unavailable when a service starts, and `--wait` was not given."""


class StoreNotShared(UsageError):
    """The store is the memory of one process, so that a command cannot share it with any other process."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url = url

    def __str__(self) -> str:
        return (
            f"{self.url} is the memory of a single process: this command shares no jobs with any other; "
            "name a store that processes share, such as sqlite:///jobs.db or postgresql://localhost/app"
        )


class StoreNotFound(TaskHarborError):
    """The file of the store does not exist. Commands that read or change a store do not create it."""

    def __init__(self, file: str, url: str) -> None:
        super().__init__(file, url)
        self.file, self.url = file, url

    def __str__(self) -> str:
        return (
            f"there is no file {self.file}; check the URL, or create the store: "
            f"taskharbor migrate up --url {shlex.quote(self.url)}"
        )


class NoApp(UsageError):
    """No app was given, and none was found."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        super().__init__(folder, names)
        self.folder, self.names = folder, names

    def __str__(self) -> str:
        return (
            f"no app given, and none found in {self.folder} (tried {', '.join(self.names)}); name one, such as "
            "tasks.py, or put [tool.taskharbor] app = 'tasks.py' into pyproject.toml"
        )


@dataclass(frozen=True, slots=True)
class ErrorExit:
    """The exit code and the stable error code of an error."""

    exit: ExitCode
    code: str
    _: KW_ONLY
    hint: str = ""  # for errors whose own message does not have one


# fmt: off
ERROR_EXITS: Final[Mapping[type[BaseException], ErrorExit]] = MappingProxyType({
    Exception:                     ErrorExit(ExitCode.FAILURE, "unexpected",
                                             hint="'taskharbor --debug ...' shows where"),
    click.ClickException:          ErrorExit(ExitCode.FAILURE, "failure"),
    click.UsageError:              ErrorExit(ExitCode.USAGE, "usage"),
    errors.TaskHarborError:        ErrorExit(ExitCode.FAILURE, "failure"),
    errors.UsageError:             ErrorExit(ExitCode.USAGE, "usage"),
    errors.InvalidRequest:         ErrorExit(ExitCode.USAGE, "invalid-request"),
    errors.UnknownType:            ErrorExit(ExitCode.USAGE, "unknown-type",
                                             hint="--no-app enqueues it without the app"),
    errors.IdempotencyConflict:    ErrorExit(ExitCode.CONFLICT, "idempotency-conflict"),
    errors.OperationConflict:      ErrorExit(ExitCode.CONFLICT, "idempotency-conflict"),
    errors.IllegalTransition:      ErrorExit(ExitCode.CONFLICT, "illegal-transition"),
    errors.PayloadNotEncodable:    ErrorExit(ExitCode.USAGE, "payload-not-encodable"),
    errors.PayloadTooLarge:        ErrorExit(ExitCode.USAGE, "payload-too-large"),
    errors.OutcomeNotStorable:     ErrorExit(ExitCode.FAILURE, "outcome-not-storable"),
    errors.PayloadNotDecodable:    ErrorExit(ExitCode.FAILURE, "payload-not-decodable"),
    errors.CallNotReadable:        ErrorExit(ExitCode.FAILURE, "call-not-readable"),
    errors.CodecMismatch:          ErrorExit(ExitCode.CONFLICT, "codec-mismatch"),
    errors.ApiKeyRequired:         ErrorExit(ExitCode.REFUSED, "open-to-strangers"),
    errors.AddressUnavailable:     ErrorExit(ExitCode.FAILURE, "cannot-listen"),
    errors.EnqueueRefused:         ErrorExit(ExitCode.CONFLICT, "enqueue-refused"),
    errors.JobNotFound:            ErrorExit(ExitCode.NOT_FOUND, "job-not-found", hint="check the id"),
    errors.JobFailed:              ErrorExit(ExitCode.JOB_FAILED, "job-failed"),
    errors.ResultTimeout:          ErrorExit(ExitCode.TIMED_OUT_WAITING, "result-timeout"),
    errors.JobTimedOut:            ErrorExit(ExitCode.JOB_FAILED, "job-timed-out"),
    errors.LeaseLost:              ErrorExit(ExitCode.CONFLICT, "lease-lost"),
    errors.OperationNotFound:      ErrorExit(ExitCode.NOT_FOUND, "operation-not-found", hint="check the id"),
    errors.ScheduleNotFound:       ErrorExit(ExitCode.NOT_FOUND, "schedule-not-found",
                                             hint="'taskharbor schedules list' shows all"),
    errors.SchemaOutOfDate:        ErrorExit(ExitCode.SCHEMA_OUT_OF_DATE, "schema-out-of-date"),
    errors.StoreUnavailable:       ErrorExit(ExitCode.CANNOT_CONNECT, "store-unavailable",
                                             hint="'taskharbor doctor' examines it"),
    errors.StoreRefused:           ErrorExit(ExitCode.CANNOT_CONNECT, "store-refused"),
    connect.NotAUrl:               ErrorExit(ExitCode.USAGE, "not-a-url"),
    connect.UnknownStore:          ErrorExit(ExitCode.USAGE, "unknown-store"),
    connect.DriverNotInstalled:    ErrorExit(ExitCode.USAGE, "driver-not-installed"),
    TransportUnavailable:          ErrorExit(ExitCode.CANNOT_CONNECT, "transport-unavailable"),
    TransportRefused:              ErrorExit(ExitCode.USAGE, "transport-refused"),
    UrlMissing:                    ErrorExit(ExitCode.USAGE, "url-missing"),
    StoreAway:                     ErrorExit(ExitCode.CANNOT_CONNECT, "store-unavailable",
                                             hint="start it, or pass --wait to wait for it"),
    StoreNotShared:                ErrorExit(ExitCode.USAGE, "store-not-shared"),
    StoreNotFound:                 ErrorExit(ExitCode.CANNOT_CONNECT, "store-not-found"),
    AppNotLoaded:                  ErrorExit(ExitCode.APP_IMPORT_FAILED, "app-not-loaded"),
    PartlyRefused:                 ErrorExit(ExitCode.CONFLICT, "left-alone"),
    NoApp:                         ErrorExit(ExitCode.USAGE, "no-app"),
    NoSuchName:                    ErrorExit(ExitCode.NOT_FOUND, "no-such-name"),
    CodecNotRecorded:              ErrorExit(ExitCode.CONFLICT, "codec-not-recorded"),
    NotAJobId:                     ErrorExit(ExitCode.USAGE, "not-a-job-id"),
    AmbiguousJobId:                ErrorExit(ExitCode.USAGE, "ambiguous-job-id"),
    NoJobBeginsWith:               ErrorExit(ExitCode.NOT_FOUND, "job-not-found"),
    NotConfirmed:                  ErrorExit(ExitCode.REFUSED, "not-confirmed"),
    NotInstalled:                  ErrorExit(ExitCode.USAGE, "not-installed"),
})
# fmt: on

_LONE_SURROGATE: Final = "surrogates not allowed"
_MAX_SHOWN_CHARS: Final = 100
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def report(error: Exception, *, as_json: bool, debug: bool) -> ExitCode:
    """Print *error* to stderr, and return its exit code."""
    if isinstance(error, UnicodeEncodeError) and error.reason == _LONE_SURROGATE:
        # Python reads bytes of the command line that are not UTF-8 as such characters, and no store takes them.
        error = click.UsageError(f"{error.object[:_MAX_SHOWN_CHARS]!r} is not valid UTF-8")
    known = exit_for(error)
    description, hint = _describe(error), _hint(error) or known.hint
    separator = "" if not hint else " " if description.endswith("?") else "; "
    message = f"{description}{separator}{hint}"
    try:
        if debug and not isinstance(error, click.ClickException):
            echo_status(_without_secrets("".join(traceback.format_exception(error)).rstrip()))
        if as_json:
            echo_status(json.dumps({"error": {"code": known.code, "message": message}}))
        else:
            echo_status(f"{click.style('error:', fg='red', bold=True)} {message}")
    except BrokenPipeError:
        # The reader is gone. Python would try to flush again at exit, and then exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return known.exit


def exit_for(error: BaseException) -> ErrorExit:
    """Return the entry of the most specific class of *error* in `ERROR_EXITS`."""
    return next(ERROR_EXITS[kind] for kind in type(error).__mro__ if kind in ERROR_EXITS)


def _describe(error: Exception) -> str:
    match error:
        case errors.TaskHarborError():
            return str(error) or type(error).__name__
        case click.NoSuchOption():
            return f"no such option {error.option_name!r}"
        case click.ClickException():
            text = _without_secrets(" ".join(error.format_message().split()).rstrip("."))
            return text[:1].lower() + text[1:].replace(". Choose from", "; choose from")
        case _:
            return f"unexpected {type(error).__name__}: {_without_secrets(' '.join(str(error).split()))}"


def _hint(error: Exception) -> str:
    match error:
        case click.NoSuchOption(possibilities=[str() as near, *_]):
            return f"did you mean {near!r}?"
        case click.NoSuchOption(ctx=click.Context() as ctx) if owner := _owner(error.option_name, ctx):
            return f"put it before the command: '{owner} {error.option_name} ...'"
        case NoSuchCommand() if found := get_close_matches(error.name, error.known, n=1):
            return f"did you mean {found[0]!r}?"
        case UrlMissing():
            return _app_hint()
        case click.UsageError(ctx=click.Context() as ctx):
            return f"see '{ctx.command_path} --help'"
        case _:
            return ""


def _app_hint() -> str:
    """Return how to name an app, whose store commands use, if none is found."""
    from taskharbor.cli.app_loader import search_app  # that module imports this one

    how = "no app was found here either: name yours in TASKHARBOR_APP, or as app of [tool.taskharbor] in pyproject.toml"
    return how if search_app() is None else ""


def _owner(option: str, ctx: click.Context) -> str | None:
    """Return the command path of the nearest parent group that has this option."""
    parent = ctx.parent
    while parent is not None and not any(option in parameter.opts for parameter in parent.command.params):
        parent = parent.parent
    return None if parent is None else parent.command_path


def _without_secrets(text: str) -> str:
    """Mask the passwords of URLs in messages of other libraries, which may quote the input."""
    return _URL.sub(lambda url: connect.mask_url(url[0]), text)
