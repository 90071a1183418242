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

from taskharbor.cli import refusals
from taskharbor.cli.exits import ExitCode
from taskharbor.cli.lazy import NoSuchCommand
from taskharbor.cli.output import echo_status
from taskharbor.core import errors
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.drivers import connect
from taskharbor.settings import UrlMissing

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    refusals.AppNotLoaded:         ErrorExit(ExitCode.APP_IMPORT_FAILED, "app-not-loaded"),
    refusals.PartlyRefused:            ErrorExit(ExitCode.CONFLICT, "left-alone"),
    refusals.NoApp:                ErrorExit(ExitCode.USAGE, "no-app"),
    refusals.NoSuchName:           ErrorExit(ExitCode.NOT_FOUND, "no-such-name"),
    refusals.CodecNotRecorded:     ErrorExit(ExitCode.CONFLICT, "codec-not-recorded"),
    refusals.NotAJobId:            ErrorExit(ExitCode.USAGE, "not-a-job-id"),
    refusals.NotConfirmed:         ErrorExit(ExitCode.REFUSED, "not-confirmed"),
    refusals.NotInstalled:         ErrorExit(ExitCode.USAGE, "not-installed"),
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
