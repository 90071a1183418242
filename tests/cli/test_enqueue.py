from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from taskharbor import Status
from taskharbor.cli.main import ExitCode
from taskharbor.core.errors import StoreUnavailable
from taskharbor.core.ids import JobId
from taskharbor.core.states import FINAL
from taskharbor.drivers.sqlite.control import SqliteControl
from tests.support.waiting import wait_until
from tests.support.worker_rig import running_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.console import Console


def test_a_job_is_stored_and_its_id_is_all_that_is_printed(any_console: Console) -> None:
    said = any_console("enqueue", "email.send", "to=ada@example.org", "copies=2")

    job = any_console.job(id_of(said.out))
    assert (said.code, said.err) == (ExitCode.OK, "")
    assert said.out == f"{job.id}\n"
    assert (job.type, job.queue, job.data) == ("email.send", "default", {"to": "ada@example.org", "copies": 2})


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("2", 2),
        ("2.5", 2.5),
        ("true", True),
        ("null", None),
        ('"2"', "2"),
        ("[1, 2]", [1, 2]),
        ("two words", "two words"),
        ("", ""),
        ("a=b", "a=b"),
        ("NaN", "NaN"),
        ("01", "01"),
    ],
)
def test_a_value_is_json_where_it_can_be_read_as_json_and_else_text(
    typed: str, value: object, console: Console
) -> None:
    said = console("enqueue", "t", f"key={typed}")

    assert console.job(id_of(said.out)).data == {"key": value}


def test_without_a_payload_it_is_a_call_without_arguments(console: Console) -> None:
    said = console("enqueue", "t")

    assert console.job(id_of(said.out)).data == {}


def test_the_payload_may_come_as_json_from_a_file_or_from_stdin(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "body.json").write_text('["ä", 1]', encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"from": "stdin"}'))

    said = [console("enqueue", "t", "--payload", text) for text in ('{"a": [1]}', f"@{tmp_path}/body.json", "-")]

    assert [console.job(id_of(each.out)).data for each in said] == [{"a": [1]}, ["ä", 1], {"from": "stdin"}]


def test_every_option_reaches_the_job(console: Console) -> None:
    said = console(
        *("enqueue", "t", "--queue", "mail", "--at", "2100-01-01T02:00+01:00", "--max-attempts", "3"),
        *("--priority", "-5", "--timeout", "90s", "--idempotency-key", "k", "--tag", "tenant=acme", "--tag", "a=b"),
    )

    job = console.job(id_of(said.out))
    assert (job.queue, job.max_attempts, job.priority) == ("mail", 3, -5)
    assert job.scheduled_for == datetime(2100, 1, 1, 1, tzinfo=UTC)
    assert (job.timeout, job.idempotency_key) == (timedelta(seconds=90), "k")
    assert job.metadata == {"tenant": "acme", "a": "b"}


@pytest.mark.parametrize("option", ["--delay", "--at"])
def test_a_delay_counts_from_the_stores_now(option: str, console: Console) -> None:
    before = console.driver.inspector.now()

    said = console("enqueue", "t", option, "1h")

    due = console.job(id_of(said.out)).scheduled_for
    assert before + timedelta(hours=1) <= due <= console.driver.inspector.now() + timedelta(hours=1)


def test_the_same_job_under_the_same_key_is_the_first_one(console: Console) -> None:
    first = console("enqueue", "t", "a=1", "--idempotency-key", "k")

    second = console("enqueue", "t", "a=1", "--idempotency-key", "k")

    assert (second.code, second.out) == (ExitCode.OK, first.out)
    assert "nothing new was stored" in second.err


def test_another_job_under_the_same_key_is_a_conflict(console: Console) -> None:
    console("enqueue", "t", "a=1", "--idempotency-key", "k")

    said = console("enqueue", "t", "a=2", "--idempotency-key", "k")

    assert (said.code, said.out) == (ExitCode.CONFLICT, "")
    assert "idempotency key 'k'" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["two words"], "type is 'two words'"),
        (["t", "--queue", "a b"], "queue is 'a b'"),
        (["t", "loose"], "'KEY=VALUE': 'loose': write a parameter and its value"),
        (["t", "a=1", "a=2"], "a is given twice"),
        (["t", "a=1", "--payload", "{}"], "not both"),
        (["t", "--payload", "{'a': 1}"], "not valid JSON"),
        (["t", "--payload", "NaN"], "'--payload': 'NaN': not valid JSON"),
        (["t", "--payload", "@none.json"], "cannot be read"),
        (["t", "--at", "tomorrow"], "write a time such as 2026-11-15T02:00Z, or 2h for two hours from now"),
        (["t", "--at", "2100-01-01T00:00"], "add the time zone"),
        (["t", "--delay", "5"], "write a duration with its unit"),
        (["t", "--delay", "1s", "--at", "2100-01-01T00:00Z"], "give --delay or --at, not both"),
        (["t", "--max-attempts", "0"], "max_attempts is 0"),
    ],
)
@pytest.mark.usefixtures("_in_a_folder")
def test_what_breaks_a_rule_is_refused_and_nothing_is_stored(words: list[str], message: str, console: Console) -> None:
    said = console("enqueue", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert message in said.err
    assert console("jobs", "list", "--json").data["jobs"] == []


def test_as_json_the_job_is_printed_as_the_api_shows_it(console: Console) -> None:
    view = console("enqueue", "t", "a=1", "--json").data

    assert (view["type"], view["status"], view["actions"]) == ("t", "PENDING", ["cancel", "reschedule"])
    assert "payload" not in view


@pytest.mark.parametrize(("result", "printed"), [("hellö", '"hellö"'), (None, "null"), ({"a": [1]}, '{"a": [1]}')])
def test_waiting_for_a_job_prints_its_result_and_ends_with_0(result: object, printed: str, console: Console) -> None:
    with running_worker(console.driver, {"greet": lambda _: result}):
        wait_until(lambda: len(console.driver.inspector.workers()) == 1)  # otherwise the line says that none is live
        said = console("enqueue", "greet", "--wait")

    assert (said.code, said.out) == (ExitCode.OK, f"{printed}\n")
    assert "is enqueued; waiting for its result\n" in said.err


def test_as_json_a_finished_job_is_printed_with_its_result(any_console: Console) -> None:
    with running_worker(any_console.driver, {"greet": lambda _: "hello"}):
        said = any_console("enqueue", "greet", "name=Ada", "--wait", "--json")

    assert (said.data["status"], said.data["result"], said.data["payload"]) == ("SUCCEEDED", "hello", {"name": "Ada"})
    assert said.err == ""


def test_waiting_for_a_job_that_dies_ends_with_8_and_why(any_console: Console) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such user")

    with running_worker(any_console.driver, {"greet": fail}):
        said = any_console("enqueue", "greet", "--max-attempts", "1", "--wait")

    [job] = any_console("jobs", "list", "--json").data["jobs"]
    assert (said.code, said.out, job["status"]) == (ExitCode.JOB_FAILED, "", Status.DEAD)
    assert f"job {job['id']} is DEAD: " in said.err
    assert "no such user" in said.err


def test_a_job_that_dies_is_printed_as_json_with_its_error(console: Console) -> None:
    def fail(_: object) -> None:
        raise ValueError("no such user")

    with running_worker(console.driver, {"greet": fail}):
        said = console("enqueue", "greet", "--max-attempts", "1", "--wait", "--json")

    job = json.loads(said.out)
    assert (said.code, job["status"], job["result"]) == (ExitCode.JOB_FAILED, "DEAD", None)
    assert job["error"]["message"] == "no such user"


def test_a_wait_that_times_out_ends_with_7_and_keeps_the_job(console: Console) -> None:
    said = console("enqueue", "greet", "--wait", "--wait-for", "10ms")

    assert said.code == ExitCode.TIMED_OUT_WAITING
    assert said.err.endswith(" 0.01 s; it is PENDING: no live worker serves queue 'default': start one\n"), said.err
    [job] = console("jobs", "list", "--json").data["jobs"]
    assert (job["status"] in FINAL, job["id"] in said.err) == (False, True)


@pytest.mark.parametrize(
    ("pauses", "obstacle"),
    [(False, "no live worker serves queue 'default': start one"), (True, "queue 'default' was paused by ")],
)
def test_a_wait_for_a_job_that_cannot_run_says_why(pauses: bool, obstacle: str, console: Console) -> None:
    if pauses:
        console("queues", "pause", "default", "--new")

    said = console("enqueue", "greet", "--wait", "--wait-for", "10ms")

    assert f"is enqueued; waiting for its result; {obstacle}" in said.err


def test_enqueue_adds_an_audit_entry_with_the_actor(console: Console) -> None:
    said = console("enqueue", "t", "--queue", "mail")

    [entry] = console.audit()
    assert (entry.action, entry.target, entry.detail) == (
        "jobs.enqueue",
        said.out.strip(),
        {"type": "t", "queue": "mail"},
    )
    assert "@" in entry.actor


def test_a_failed_audit_entry_does_not_fail_an_enqueue(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(SqliteControl, "record_audit", refuse)

    said = console("enqueue", "t")

    assert (said.code, console.job(id_of(said.out)).type) == (ExitCode.OK, "t")
    assert said.err == "done, but the audit entry failed: store unavailable: gone\n"


def id_of(out: str) -> JobId:
    return JobId(UUID(out.strip()))
