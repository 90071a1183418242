"""Errors of commands: message, stable code and exit code."""

from __future__ import annotations

import importlib
import json
import pkgutil
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import click
import pytest

import taskharbor
from taskharbor.cli.errors import (
    ERROR_EXITS,
    AmbiguousJobId,
    AppNotLoaded,
    CodecNotRecorded,
    NoApp,
    NoJobBeginsWith,
    NoSuchName,
    NotAJobId,
    NotConfirmed,
    NotInstalled,
    PartlyRefused,
    StoreAway,
    StoreNotFound,
    StoreNotShared,
    exit_for,
)
from taskharbor.cli.main import ExitCode, LazyGroup, cli, run
from taskharbor.cli.options import json_option
from taskharbor.core import errors
from taskharbor.core.ids import JobId
from taskharbor.core.typed_values import UnresolvedAnnotation
from taskharbor.delivery.transport import TransportRefused, TransportUnavailable
from taskharbor.drivers.connect import DriverNotInstalled, NotAUrl, UnknownStore
from taskharbor.drivers.postgres.server import ReplyLost
from taskharbor.settings import UrlMissing
from taskharbor.task_registry import DuplicateTask

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057"))
PROBLEM = errors.Problem(field="queue", value="'a b'", rule="letters only")

ENDINGS = [
    (errors.TaskHarborError("odd"), ExitCode.FAILURE, "failure"),
    (errors.UsageError("odd"), ExitCode.USAGE, "usage"),
    (errors.InvalidRequest([PROBLEM]), ExitCode.USAGE, "invalid-request"),
    (UnresolvedAnnotation(PROBLEM), ExitCode.USAGE, "usage"),
    (DuplicateTask("send", "send at mail.py:4", "send at mail.py:8", "rename one of them"), ExitCode.USAGE, "usage"),
    (errors.UnknownType("email.sned", ("email.send",)), ExitCode.USAGE, "unknown-type"),
    (errors.IdempotencyConflict("mail", "k", JOB), ExitCode.CONFLICT, "idempotency-conflict"),
    (errors.IllegalTransition(JOB, "DEAD", "cancel"), ExitCode.CONFLICT, "illegal-transition"),
    (errors.PayloadNotEncodable("$.a", "is a set"), ExitCode.USAGE, "payload-not-encodable"),
    (errors.PayloadTooLarge(2, 1), ExitCode.USAGE, "payload-too-large"),
    (errors.OutcomeNotStorable(JOB, "value too long"), ExitCode.FAILURE, "outcome-not-storable"),
    (errors.PayloadNotDecodable("not JSON"), ExitCode.FAILURE, "payload-not-decodable"),
    (errors.CallNotReadable("greet", "name: is missing"), ExitCode.FAILURE, "call-not-readable"),
    (errors.CodecMismatch("aes-gcm+json", "json"), ExitCode.CONFLICT, "codec-mismatch"),
    (CodecNotRecorded("zip", "json"), ExitCode.CONFLICT, "codec-not-recorded"),
    (errors.ApiKeyRequired("0.0.0.0"), ExitCode.REFUSED, "open-to-strangers"),
    (errors.AddressUnavailable("127.0.0.1", 80, "it is taken"), ExitCode.FAILURE, "cannot-listen"),
    (errors.EnqueueRefused([errors.IdempotencyConflict("mail", "k", JOB)]), ExitCode.CONFLICT, "enqueue-refused"),
    (errors.JobNotFound(JOB), ExitCode.NOT_FOUND, "job-not-found"),
    (errors.JobFailed(JOB, "DEAD", "boom"), ExitCode.JOB_FAILED, "job-failed"),
    (errors.ResultTimeout(JOB, timedelta(seconds=1)), ExitCode.TIMED_OUT_WAITING, "result-timeout"),
    (errors.JobTimedOut(JOB, timedelta(seconds=1)), ExitCode.JOB_FAILED, "job-timed-out"),
    (errors.LeaseLost(JOB), ExitCode.CONFLICT, "lease-lost"),
    (errors.JobNotInflight(JOB), ExitCode.CONFLICT, "lease-lost"),
    (errors.LeaseExpired(JOB), ExitCode.CONFLICT, "lease-lost"),
    (errors.LeaseMismatch(JOB), ExitCode.CONFLICT, "lease-lost"),
    (errors.OperationNotFound(UUID(int=7)), ExitCode.NOT_FOUND, "operation-not-found"),
    (errors.OperationConflict("k", UUID(int=7)), ExitCode.CONFLICT, "idempotency-conflict"),
    (errors.ScheduleNotFound("nightly"), ExitCode.NOT_FOUND, "schedule-not-found"),
    (errors.SchemaOutOfDate("1", "2", "migrate"), ExitCode.SCHEMA_OUT_OF_DATE, "schema-out-of-date"),
    (errors.StoreUnavailable("refused"), ExitCode.CANNOT_CONNECT, "store-unavailable"),
    (errors.StoreRefused("wrong user or password"), ExitCode.CANNOT_CONNECT, "store-refused"),
    (StoreNotShared("memory://"), ExitCode.USAGE, "store-not-shared"),
    (StoreNotFound("jobs.db", "sqlite:///jobs.db"), ExitCode.CANNOT_CONNECT, "store-not-found"),
    (StoreAway("connection refused"), ExitCode.CANNOT_CONNECT, "store-unavailable"),
    (ReplyLost("gone", 1), ExitCode.CANNOT_CONNECT, "store-unavailable"),
    (NotAUrl("jobs.db"), ExitCode.USAGE, "not-a-url"),
    (UnknownStore("redis"), ExitCode.USAGE, "unknown-store"),
    (DriverNotInstalled("postgres"), ExitCode.USAGE, "driver-not-installed"),
    (TransportUnavailable("throttled"), ExitCode.CANNOT_CONNECT, "transport-unavailable"),
    (TransportRefused("no queue mail", "make it"), ExitCode.USAGE, "transport-refused"),
    (UrlMissing(), ExitCode.USAGE, "url-missing"),
    (AppNotLoaded("tasks.py", "there is no such file", "name another"), ExitCode.APP_IMPORT_FAILED, "app-not-loaded"),
    (PartlyRefused(1, 2), ExitCode.CONFLICT, "left-alone"),
    (NoApp("shop", ("tasks.py",)), ExitCode.USAGE, "no-app"),
    (NoSuchName("queue", "mial", "did you mean 'mail'?"), ExitCode.NOT_FOUND, "no-such-name"),
    (NotAJobId("7", 4, "name another"), ExitCode.USAGE, "not-a-job-id"),
    (AmbiguousJobId("0197", ("0197-1", "0197-2"), has_more=False), ExitCode.USAGE, "ambiguous-job-id"),
    (NoJobBeginsWith("0197", "name another"), ExitCode.NOT_FOUND, "job-not-found"),
    (NotConfirmed("remove 7 jobs", "say --yes"), ExitCode.REFUSED, "not-confirmed"),
    (NotInstalled("the API", "api"), ExitCode.USAGE, "not-installed"),
    (click.UsageError("odd"), ExitCode.USAGE, "usage"),
    (click.FileError("jobs.json", "unreadable"), ExitCode.FAILURE, "failure"),
    (ZeroDivisionError("odd"), ExitCode.FAILURE, "unexpected"),
    (UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"), ExitCode.USAGE, "usage"),
    (UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range(128)"), ExitCode.FAILURE, "unexpected"),
]


def test_exit_codes_are_the_documented_ones() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILURE": 1,
        "USAGE": 2,
        "CANNOT_CONNECT": 3,
        "NOT_FOUND": 4,
        "CONFLICT": 5,
        "REFUSED": 6,
        "TIMED_OUT_WAITING": 7,
        "JOB_FAILED": 8,
        "SCHEMA_OUT_OF_DATE": 9,
        "APP_IMPORT_FAILED": 10,
        "PROBLEMS_FOUND": 11,
        "SLOTS_LOST": 12,
        "RECYCLED": 13,
        "INTERRUPTED": 130,
    }


@pytest.mark.parametrize("code", ExitCode)
def test_a_command_may_end_with_any_exit_code(code: ExitCode) -> None:
    group = LazyGroup()

    @group.command()
    @click.pass_context
    def end(ctx: click.Context) -> None:
        ctx.exit(code)

    assert run(group, ["end"]) == code


@pytest.mark.parametrize(("error", "code", "_"), ENDINGS, ids=repr)
def test_an_error_ends_the_command_with_its_exit_code_and_one_line(
    error: Exception, code: ExitCode, _: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(raising(error), ["fail"])

    out, err = capsys.readouterr()
    assert ended == code
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("error", "code", "stable"), ENDINGS, ids=repr)
def test_with_json_an_error_is_an_object_with_a_stable_code(
    error: Exception, code: ExitCode, stable: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(raising(error), ["fail"])
    text = capsys.readouterr().err.removeprefix("error: ").removesuffix("\n")

    ended = run(raising(error), ["fail", "--json"])

    out, err = capsys.readouterr()
    assert ended == code
    assert out == ""
    assert json.loads(err) == {"error": {"code": stable, "message": text}}


def test_every_error_with_an_exit_code_is_tested_here() -> None:
    tried = {type(error) for error, _, _ in ENDINGS}

    assert {kind for kind in ERROR_EXITS if not any(issubclass(error, kind) for error in tried)} == set()
    assert {kind for kind in our_errors() if kind not in tried} == set()


def test_every_error_has_an_exit_code_or_inherits_one() -> None:
    by_default = ERROR_EXITS[errors.TaskHarborError]

    undecided = [kind for kind in our_errors() if exit_for(kind.__new__(kind)) is by_default]

    assert undecided == [errors.TaskHarborError]


def test_codes_for_scripts_are_words_joined_by_hyphens() -> None:
    words = [word for each in ERROR_EXITS.values() for word in each.code.split("-")]

    assert [word for word in words if not (word.isascii() and word.isalpha() and word.islower())] == []


def test_a_subclass_elsewhere_inherits_the_exit_code() -> None:
    class ReplicaUnavailable(errors.StoreUnavailable): ...

    assert exit_for(ReplicaUnavailable("lagging")).exit == ExitCode.CANNOT_CONNECT


def test_an_error_message_is_followed_by_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(errors.StoreUnavailable("connection refused")), ["fail"])

    assert capsys.readouterr().err == "error: store unavailable: connection refused; 'taskharbor doctor' examines it\n"


def test_an_unexpected_error_is_one_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(ZeroDivisionError("over\nand over")), ["fail"])

    line = "error: unexpected ZeroDivisionError: over and over; 'taskharbor --debug ...' shows where\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), errors.JobNotFound(JOB)])
def test_debug_shows_the_traceback_before_the_line(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    run(raising(error), ["--debug", "fail"])

    first, *_, last = capsys.readouterr().err.splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.startswith("error: ")


def test_a_wrong_command_line_has_no_traceback_to_show(capsys: pytest.CaptureFixture[str]) -> None:
    run(cli, ["--debug", "no-such-thing"])

    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--debug"]])
def test_urls_in_foreign_error_messages_are_shown_without_password(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run(raising(OSError("cannot reach postgresql://app:hunter2@db/app")), [*flags, "fail"])

    err = capsys.readouterr().err
    assert "postgresql://app:***@db/app" in err
    assert "hunter2" not in err


@pytest.mark.parametrize("place", [["migrate"], ["version"], []])
def test_a_url_typed_in_the_wrong_place_is_shown_without_its_password(
    place: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(cli, [*place, "postgresql://app:hunter2@db/app"])

    err = capsys.readouterr().err
    assert ended == ExitCode.USAGE
    assert "postgresql://" in err
    assert "hunter2" not in err


def test_json_after_a_double_dash_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    run(cli, ["version", "--", "--json"])

    assert capsys.readouterr().err.startswith("error: got unexpected extra argument (--json)")


def raising(error: Exception) -> LazyGroup:
    group = LazyGroup(params=[click.Option(["--debug"], is_flag=True, expose_value=False)])

    @group.command()
    @json_option
    def fail(*, as_json: bool) -> None:
        del as_json
        raise error

    return group


def our_errors() -> list[type[errors.TaskHarborError]]:
    import_everything()
    return [kind for kind in family(errors.TaskHarborError) if reaches_a_command(kind.__module__)]


def import_everything() -> None:
    for module in pkgutil.walk_packages(taskharbor.__path__, "taskharbor."):
        # Modules of frameworks need a project; they define no errors of ours.
        if reaches_a_command(module.name) and not module.name.startswith("taskharbor.integrations."):
            importlib.import_module(module.name)


def reaches_a_command(module: str) -> bool:
    """Return whether errors of *module* can end a command; other tests may have imported further modules.

    Those of isolation end an attempt.
    """
    others = ("taskharbor.testing", "taskharbor.worker.isolation")
    return f"{module}.".startswith("taskharbor.") and not module.startswith(others)


def family(kind: type[errors.TaskHarborError]) -> Iterator[type[errors.TaskHarborError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)
