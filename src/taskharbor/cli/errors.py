"""From an error to what people read, what scripts match, and the exit code."""

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
    """The handlers to run could not be found, or not imported, or not registered."""

    def __init__(self, app: str, reason: str, way_out: str) -> None:
        super().__init__(app, reason, way_out)
        self.app, self.reason, self.way_out = app, reason, way_out

    def __str__(self) -> str:
        return f"cannot load {self.app}: {self.reason}; {self.way_out}"


class NoSuchName(TaskHarborError):
    """Nothing of this kind has this name."""

    def __init__(self, kind: str, name: str, way_out: str) -> None:
        super().__init__(kind, name, way_out)
        self.kind, self.name, self.way_out = kind, name, way_out

    def __str__(self) -> str:
        return f"there is no {self.kind} {self.name!r}; {self.way_out}"


class NotAJobId(UsageError):
    """What was typed is not the id of any job."""

    def __init__(self, text: str, way_out: str) -> None:
        super().__init__(text, way_out)
        self.text, self.way_out = text, way_out

    def __str__(self) -> str:
        return f"{self.text!r} is no job id, which is a UUID; {self.way_out}"


class NotConfirmed(TaskHarborError):
    """A person, or nobody, was asked, and did not say yes. Nothing was changed."""

    def __init__(self, what: str, way_out: str) -> None:
        super().__init__(what, way_out)
        self.what, self.way_out = what, way_out

    def __str__(self) -> str:
        return f"nothing was changed: {self.what} was not confirmed; {self.way_out}"


class CodecNotRecorded(TaskHarborError):
    """The store has recorded another codec meanwhile, or cannot record any yet."""

    def __init__(self, name: str, recorded: str | None) -> None:
        super().__init__(name, recorded)
        self.name, self.recorded = name, recorded

    def __str__(self) -> str:
        why = (
            "this store has no table for it yet; run 'taskharbor migrate up'"
            if self.recorded is None
            else f"another process recorded {self.recorded!r} at the same time; try again"
        )
        return f"the codec {self.name!r} was not recorded: {why}"


class PartlyRefused(TaskHarborError):
    """Some of what was named could not be moved; each was told of by itself."""

    def __init__(self, left: int, asked: int) -> None:
        super().__init__(left, asked)
        self.left, self.asked = left, asked

    def __str__(self) -> str:
        return f"{self.left} of {self.asked} were left alone; the lines above say why"


class NotInstalled(UsageError):
    """A command needs a part that is an extra, and is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(what, extra)
        self.what, self.extra = what, extra

    def __str__(self) -> str:
        return f"{self.what} is not installed; pip install 'taskharbor[{self.extra}]'"


class NoApp(UsageError):
    """Nobody said what to run, and it could not be found."""

    def __init__(self, folder: str, names: tuple[str, ...]) -> None:
        super().__init__(folder, names)
        self.folder, self.names = folder, names

    def __str__(self) -> str:
        return (
            f"no app was named, and none found in {self.folder}; name one, such as tasks.py, or put "
            f"[tool.taskharbor] app = 'tasks.py' into pyproject.toml (looked for {', '.join(self.names)})"
        )


@dataclass(frozen=True, slots=True)
class ErrorExit:
    """How an error ends a command. ``code`` is for scripts and never changes."""

    exit: ExitCode
    code: str
    _: KW_ONLY
    way_out: str = ""  # where the error's own words do not name one


# fmt: off
VERDICTS: Final[Mapping[type[BaseException], ErrorExit]] = MappingProxyType({
    Exception:                     ErrorExit(ExitCode.FAILURE, "unexpected",
                                             way_out="'taskharbor --debug ...' shows where"),
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
    errors.ApiKeyRequired:        ErrorExit(ExitCode.REFUSED, "open-to-strangers"),
    errors.AddressUnavailable:           ErrorExit(ExitCode.FAILURE, "cannot-listen"),
    errors.EnqueueRefused:         ErrorExit(ExitCode.CONFLICT, "enqueue-refused"),
    errors.JobNotFound:            ErrorExit(ExitCode.NOT_FOUND, "job-not-found", way_out="check the id"),
    errors.JobFailed:              ErrorExit(ExitCode.JOB_FAILED, "job-failed"),
    errors.ResultTimeout:          ErrorExit(ExitCode.TIMED_OUT_WAITING, "result-timeout"),
    errors.JobTimedOut:            ErrorExit(ExitCode.JOB_FAILED, "job-timed-out"),
    errors.LeaseLost:              ErrorExit(ExitCode.CONFLICT, "lease-lost"),
    errors.ScheduleNotFound:       ErrorExit(ExitCode.NOT_FOUND, "schedule-not-found"),
    errors.SchemaOutOfDate:        ErrorExit(ExitCode.SCHEMA_OUT_OF_DATE, "schema-out-of-date"),
    errors.StoreUnavailable:       ErrorExit(ExitCode.CANNOT_CONNECT, "store-unavailable", way_out="check its URL"),
    connect.NotAUrl:               ErrorExit(ExitCode.USAGE, "not-a-url"),
    connect.UnknownStore:          ErrorExit(ExitCode.USAGE, "unknown-store"),
    connect.DriverNotInstalled:    ErrorExit(ExitCode.USAGE, "driver-not-installed"),
    TransportUnavailable:          ErrorExit(ExitCode.CANNOT_CONNECT, "transport-unavailable"),
    TransportRefused:              ErrorExit(ExitCode.USAGE, "transport-refused"),
    UrlMissing:                    ErrorExit(ExitCode.USAGE, "url-missing"),
    AppNotLoaded:         ErrorExit(ExitCode.APP_IMPORT_FAILED, "app-not-loaded"),
    PartlyRefused:            ErrorExit(ExitCode.CONFLICT, "left-alone"),
    NoApp:                ErrorExit(ExitCode.USAGE, "no-app"),
    NoSuchName:           ErrorExit(ExitCode.NOT_FOUND, "no-such-name"),
    CodecNotRecorded:     ErrorExit(ExitCode.CONFLICT, "codec-not-recorded"),
    NotAJobId:            ErrorExit(ExitCode.USAGE, "not-a-job-id"),
    NotConfirmed:         ErrorExit(ExitCode.REFUSED, "not-confirmed"),
    NotInstalled:         ErrorExit(ExitCode.USAGE, "not-installed"),
})
# fmt: on

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)


def report(error: Exception, *, as_json: bool, debug: bool) -> ExitCode:
    """Tell on stderr what went wrong, and return the exit code it deserves."""
    verdict = verdict_on(error)
    message = "; ".join(filter(None, [_what(error), _way_out(error) or verdict.way_out]))
    try:
        if debug and not isinstance(error, click.ClickException):
            echo_status(_without_secrets("".join(traceback.format_exception(error)).rstrip()))
        if as_json:
            echo_status(json.dumps({"error": {"code": verdict.code, "message": message}}))
        else:
            echo_status(f"{click.style('error:', fg='red', bold=True)} {message}")
    except BrokenPipeError:
        # Nobody reads it. Python would try once more at its end, and then exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    return verdict.exit


def verdict_on(error: BaseException) -> ErrorExit:
    """Return the verdict on the most specific class of *error* that has one."""
    return next(VERDICTS[kind] for kind in type(error).__mro__ if kind in VERDICTS)


def _what(error: Exception) -> str:
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


def _way_out(error: Exception) -> str:
    match error:
        case click.NoSuchOption(possibilities=[str() as near, *_]):
            return f"did you mean {near!r}?"
        case click.NoSuchOption(ctx=click.Context() as ctx) if owner := _owner(error.option_name, ctx):
            return f"it goes before the command: '{owner} {error.option_name} ...'"
        case NoSuchCommand() if found := get_close_matches(error.name, error.known, n=1):
            return f"did you mean {found[0]!r}?"
        case click.UsageError(ctx=click.Context() as ctx):
            return f"see '{ctx.command_path} --help'"
        case _:
            return ""


def _owner(option: str, ctx: click.Context) -> str | None:
    """Return the path of the group above that has this option."""
    above = ctx.parent
    while above is not None and not any(option in parameter.opts for parameter in above.command.params):
        above = above.parent
    return None if above is None else above.command_path


def _without_secrets(text: str) -> str:
    """Mask URLs in words that are not ours: they may quote what was typed."""
    return _URL.sub(lambda url: connect.mask_url(url[0]), text)
