"""The errors of commands, and the table that maps exceptions to exit codes and stable error codes."""

from __future__ import annotations

import json
import os
import re
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
from taskharbor.core.errors import TaskHarborError, UsageError
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.drivers import connect
from taskharbor.settings import UrlMissing

if TYPE_CHECKING:
    from collections.abc import Mapping


class AppNotLoaded(TaskHarborError):
    """The app could not be found or imported, or its handlers could not be registered."""

    def __init__(self, app: str, reason: str, hint: str) -> None:
        super().__init__(app, reason, hint)
        self.app, self.reason, self.hint = app, reason, hint

    def __str__(self) -> str:
        return f"cannot load {self.app}: {self.reason}; {self.hint}"


class NoSuchName(TaskHarborError):
    """No queue, key or other object of this kind has this name."""

    def __init__(self, kind: str, name: str, hint: str) -> None:
        super().__init__(kind, name, hint)
        self.kind, self.name, self.hint = kind, name, hint

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} not found; {self.hint}"


class NotAJobId(UsageError):
    """The given text is not a job id."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text, hint)
        self.text, self.hint = text, hint

    def __str__(self) -> str:
        return f"{self.text!r} is not a job id (a UUID); {self.hint}"


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
        return f"{self.what} is not installed; pip install 'taskharbor[{self.extra}]'"


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
    errors.IdempotencyConflict:    ErrorExit(ExitCode.CONFLICT, "idempotency-conflict"),
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
    errors.ScheduleNotFound:       ErrorExit(ExitCode.NOT_FOUND, "schedule-not-found"),
    errors.SchemaOutOfDate:        ErrorExit(ExitCode.SCHEMA_OUT_OF_DATE, "schema-out-of-date"),
    errors.StoreUnavailable:       ErrorExit(ExitCode.CANNOT_CONNECT, "store-unavailable", hint="check its URL"),
    connect.NotAUrl:               ErrorExit(ExitCode.USAGE, "not-a-url"),
    connect.UnknownStore:          ErrorExit(ExitCode.USAGE, "unknown-store"),
    connect.DriverNotInstalled:    ErrorExit(ExitCode.USAGE, "driver-not-installed"),
    TransportUnavailable:          ErrorExit(ExitCode.CANNOT_CONNECT, "transport-unavailable"),
    TransportRefused:              ErrorExit(ExitCode.USAGE, "transport-refused"),
    UrlMissing:                    ErrorExit(ExitCode.USAGE, "url-missing"),
    AppNotLoaded:                  ErrorExit(ExitCode.APP_IMPORT_FAILED, "app-not-loaded"),
    PartlyRefused:                 ErrorExit(ExitCode.CONFLICT, "left-alone"),
    NoApp:                         ErrorExit(ExitCode.USAGE, "no-app"),
    NoSuchName:                    ErrorExit(ExitCode.NOT_FOUND, "no-such-name"),
    CodecNotRecorded:              ErrorExit(ExitCode.CONFLICT, "codec-not-recorded"),
    NotAJobId:                     ErrorExit(ExitCode.USAGE, "not-a-job-id"),
    NotConfirmed:                  ErrorExit(ExitCode.REFUSED, "not-confirmed"),
    NotInstalled:                  ErrorExit(ExitCode.USAGE, "not-installed"),
})
# fmt: on

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def report(error: Exception, *, as_json: bool, debug: bool) -> ExitCode:
    """Print *error* to stderr, and return its exit code."""
    known = exit_for(error)
    message = "; ".join(filter(None, [_describe(error), _hint(error) or known.hint]))
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
            text = _without_secrets(error.format_message().rstrip("."))
            return text[:1].lower() + text[1:]
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
        case click.UsageError(ctx=click.Context() as ctx):
            return f"see '{ctx.command_path} --help'"
        case _:
            return ""


def _owner(option: str, ctx: click.Context) -> str | None:
    """Return the command path of the nearest parent group that has this option."""
    parent = ctx.parent
    while parent is not None and not any(option in parameter.opts for parameter in parent.command.params):
        parent = parent.parent
    return None if parent is None else parent.command_path


def _without_secrets(text: str) -> str:
    """Mask the passwords of URLs in messages of other libraries, which may quote the input."""
    return _URL.sub(lambda url: connect.mask_url(url[0]), text)
