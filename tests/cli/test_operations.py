"""`taskharbor operations`, and the commands that create bulk operations."""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from taskharbor import Status
from taskharbor.cli import operations_view
from taskharbor.cli.main import ExitCode
from taskharbor.core.hooks import JobCanceled
from taskharbor.core.model import WorkerRecord
from taskharbor.observability.hook_caller import HookCaller
from taskharbor.operations import OperationRunner
from taskharbor.operations import stop as stop_operation

if TYPE_CHECKING:
    from pathlib import Path

    from taskharbor.core.hooks import HookEvent
    from tests.support.console import Console


def test_operations_are_listed_and_shown(any_console: Console) -> None:
    any_console.dead(queue="mail")
    any_console("dead", "requeue", "--queue", "mail", "--yes", "--rate", "50", "--reason", "the server is back")
    [stored] = any_console.driver.operations.recent(limit=1)

    [row] = any_console("operations", "list").rows
    [listed] = any_console("operations", "list", "--json").data["operations"]
    shown = any_console("operations", "show", str(stored.id)[:8])
    data = any_console("operations", "show", str(stored.id), "--json").data

    assert row[:6] == [str(stored.id), "requeue", "done", "1", "0", "1"]
    assert row[-1] == "the server is back"
    assert listed == data
    assert (data["state"], data["filter"]) == ("done", {"queue": "mail", "statuses": ["DEAD"]})
    assert "queue mail, statuses DEAD" in shown.out
    assert "the server is back" in shown.out


def test_older_operations_are_listed_below_an_id(console: Console) -> None:
    for _ in range(3):
        console.dead()
        console("dead", "requeue", "--all", "--yes")
    ids = [row[0] for row in console("operations", "list").rows]

    assert [row[0] for row in console("operations", "list", "--limit", "1", "--before", ids[0]).rows] == ids[1:2]


def test_an_operation_that_has_not_started_is_undone(any_console: Console) -> None:
    job_id = any_console.dead()
    created = any_console("dead", "requeue", "--all", "--yes", "--no-wait", "--start-in", "1h")
    operation_id = created.out.strip()

    stopped = any_console("operations", "stop", operation_id)
    again = any_console("operations", "stop", operation_id)

    assert f"operation {operation_id} created" in created.err
    assert (stopped.code, stopped.out) == (ExitCode.OK, "stopped: 0 jobs changed\n")
    assert again.out == stopped.out
    assert any_console.job(job_id).status is Status.DEAD
    assert [entry.action for entry in any_console.audit()] == ["operations.stop", "operations.create"]


@pytest.mark.parametrize("words", [["show"], ["stop"]])
@pytest.mark.parametrize("text", ["0a1b2c3d-1111-4222-8333-444455556666", "0a1b", "nothing"])
def test_an_unknown_operation_is_reported(words: list[str], text: str, console: Console) -> None:
    said = console("operations", *words, text)

    assert (said.code, said.out) == (ExitCode.NOT_FOUND, "")
    assert f"operation {text} not found" in said.err


def test_jobs_are_canceled_by_a_filter(any_console: Console) -> None:
    wanted, other = any_console.enqueue(queue="mail"), any_console.enqueue()
    done = any_console.done(queue="mail")

    preview = any_console("jobs", "cancel", "--queue", "mail", "--dry-run", "--json").data
    said = any_console("jobs", "cancel", "--queue", "mail", "--yes", "--json").data

    assert preview == {"matched": 1, "canceled": 0, "dry_run": True, "refused": [], "operation": None}
    assert (said["matched"], said["canceled"], said["refused"]) == (1, 1, [])
    found = [any_console.job(job_id).status for job_id in (wanted, other, done)]
    assert found == [Status.CANCELED, Status.PENDING, Status.SUCCEEDED]


def test_waiting_jobs_are_rescheduled_by_a_filter(any_console: Console) -> None:
    wanted, other = any_console.enqueue(type="report"), any_console.enqueue()

    said = any_console("jobs", "reschedule", "--type", "report", "--delay", "1h", "--priority", "-5", "--yes")

    assert said.out == "rescheduled 1 of 1\n"
    moved, kept = any_console.job(wanted), any_console.job(other)
    assert (moved.priority, kept.priority) == (-5, 0)
    assert moved.scheduled_for - kept.scheduled_for > timedelta(minutes=59)


@pytest.mark.parametrize(
    "words",
    [
        ["cancel"],
        ["cancel", "--all", "0a1b2c3d-1111-4222-8333-444455556666"],
        ["cancel", "--no-wait", "0a1b2c3d-1111-4222-8333-444455556666"],
        ["cancel", "--status", "succeeded", "--yes"],
        ["reschedule", "--all", "--yes"],
        ["reschedule", "--delay", "1h"],
        ["reschedule", "--all", "--yes", "--priority", "99999999999"],
        ["reschedule", "--all", "--yes", "--at", "9999-12-31T00:00Z"],
        ["reschedule", "--all", "--yes", "--at", "9999-12-31T23:59-23:00"],
        ["reschedule", "--all", "--yes", "--at", "0001-01-01T00:00+23:00"],
        *(["cancel", "--all", "--yes", "--rate", rate] for rate in ("0", "-1", "1e-300", "inf", "nan", "fast")),
    ],
)
def test_a_selection_that_makes_no_sense_is_a_usage_error(words: list[str], console: Console) -> None:
    job_id = console.enqueue()

    said = console("jobs", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert console.job(job_id).status is Status.PENDING


def test_an_unconfirmed_operation_is_not_created(console: Console) -> None:
    console.enqueue()

    said = console("jobs", "cancel", "--all")

    assert said.code == ExitCode.REFUSED
    assert "cancel 1 job;" in said.err
    assert console.driver.operations.recent(limit=1) == []


def test_ctrl_c_leaves_the_operation_and_says_how_to_stop_it(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_runner: OperationRunner) -> timedelta:
        raise KeyboardInterrupt

    monkeypatch.setattr(OperationRunner, "tick", interrupt)
    console.dead()

    said = console("dead", "requeue", "--all", "--yes")

    [operation] = console.driver.operations.recent(limit=1)
    assert said.code == ExitCode.INTERRUPTED
    assert f"stop it with 'taskharbor operations stop {operation.id}'" in said.err
    assert operation.state.is_open


def test_an_operation_stopped_by_another_person_ends_the_command(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.dead()

    def stop_first(_length: timedelta) -> None:
        [operation] = console.driver.operations.recent(limit=1)
        stop_operation(console.driver, operation.id, by="ana")

    monkeypatch.setattr(operations_view, "wait", stop_first)

    said = console("dead", "requeue", "--all", "--yes", "--start-in", "1h")

    assert (said.code, said.out) == (ExitCode.CONFLICT, "requeued 0 of 1\n")
    assert "was stopped by ana" in said.err


def test_an_operation_reports_what_it_left_unchanged(console: Console) -> None:
    console.driver.maintenance.claim_outbox(limit=1, lock=timedelta(minutes=1))  # so that the store has a publisher
    console.dead()

    said = console("dead", "purge", "--all", "--yes")
    gone = console("dead", "purge", "--all", "--yes", "--unpublished")

    assert (said.code, said.out) == (ExitCode.CONFLICT, "removed 0 of 1\n")
    assert "1 not changed: dead-letter event not published yet (a publisher was last seen at" in said.err
    assert (gone.code, gone.out) == (ExitCode.OK, "removed 1 of 1\n")


def test_the_error_of_its_own_operation_ends_the_command(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_operations: object, _step: object) -> None:
        raise RuntimeError("out of range")

    monkeypatch.setattr(type(console.driver.operations), "perform", fail)
    console.dead()

    said = console("dead", "requeue", "--all", "--yes")

    assert said.code == ExitCode.FAILURE
    assert "out of range" in said.err


def with_live_worker(console: Console) -> None:
    record = WorkerRecord(
        id="w-1",
        host="box",
        pid=7,
        queues=("default",),
        types=("greet",),
        concurrency=4,
        started_at=console.driver.inspector.now(),
    )
    console.driver.maintenance.record_worker(record)


def test_steps_are_left_to_live_workers_whose_hooks_report_them(
    any_console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_live_worker(any_console)
    job_id = any_console.enqueue()
    events: list[HookEvent] = []
    call_hooks = HookCaller([events.append], logging.getLogger("taskharbor"))
    other = OperationRunner(any_console.driver, time.monotonic, call_hooks=call_hooks)
    monkeypatch.setattr(operations_view, "wait", lambda _length: other.tick())

    said = any_console("jobs", "cancel", "--all", "--yes", "--start-in", "0s")

    assert (said.code, said.out) == (ExitCode.OK, "canceled 1 of 1\n")
    assert events == [JobCanceled(job_id=job_id, type="greet", queue="default")]


def test_steps_that_live_workers_do_not_perform_are_performed_by_the_command(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_live_worker(console)
    console.enqueue()
    monkeypatch.setattr(operations_view, "PATIENCE", timedelta(milliseconds=1))

    said = console("jobs", "cancel", "--all", "--yes", "--start-in", "0s")

    assert (said.code, said.out) == (ExitCode.OK, "canceled 1 of 1\n")


@pytest.mark.parametrize("by_filter", [False, True])
def test_the_hooks_of_a_named_app_get_the_jobs_that_a_command_cancels(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_filter: bool
) -> None:
    app = tmp_path / "hooked_app.py"
    app.write_text(HOOKED_APP)
    monkeypatch.chdir(tmp_path)
    job_id = console.enqueue()
    words = ["--all", "--yes", "--start-in", "0s"] if by_filter else [str(job_id)]

    without = console("jobs", "cancel", str(console.enqueue()))
    said = console("jobs", "cancel", *words, "--app", "hooked_app.py")

    assert "hook" not in without.err + without.out
    assert said.code == ExitCode.OK
    assert f"hook: {job_id}" in said.out + said.err


HOOKED_APP: Final = """
from taskharbor import Harbor

harbor = Harbor("memory://", hooks=[lambda event: print("hook:", event.job_id)])
"""
