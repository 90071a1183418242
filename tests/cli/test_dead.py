from __future__ import annotations

import io
import json
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from taskharbor import Status
from taskharbor.cli.main import ExitCode
from taskharbor.core.outcome import Outcome
from taskharbor.core.results import Published

if TYPE_CHECKING:
    from taskharbor.core.ids import JobId
    from tests.support.console import Console


def test_only_dead_letters_are_listed(any_console: Console) -> None:
    dead = any_console.dead()
    any_console.enqueue()
    any_console.done()

    assert [row[0] for row in any_console("dead", "list").rows] == [str(dead)]
    assert [job["id"] for job in any_console("dead", "list", "--json").data["jobs"]] == [str(dead)]


def test_groups_list_errors_of_dead_letters_the_most_frequent_first(any_console: Console) -> None:
    often = [any_console.dead("no such user", type="email.send") for _ in range(2)]
    any_console.dead(queue="mail")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    [first, second] = any_console("dead", "groups", "--json").data["groups"]

    assert (first["count"], first["type"], first["error"]) == (2, "email.send", "LookupError: no such user")
    assert first["sample"] in map(str, often)
    assert second["queue"] == "mail"
    assert any_console("dead", "groups", "--queue", "mail").rows[0][:4] == ["1", second["fingerprint"], "mail", "greet"]


def test_a_single_given_id_is_requeued_without_confirmation(any_console: Console) -> None:
    job_id, other = any_console.dead(), any_console.dead()

    said = any_console("dead", "requeue", str(job_id), "--budget", "2", "--why", "fixed")

    assert (said.code, said.out) == (ExitCode.OK, "requeued 1 of 1\n")
    assert (any_console.job(job_id).status, any_console.job(job_id).max_attempts) == (Status.PENDING, 3)
    assert any_console.job(other).status is Status.DEAD
    [entry] = any_console.audit()
    assert (entry.action, entry.target, entry.detail) == ("dead-letters.requeue", "1 jobs", {"why": "fixed"})


def test_dead_letters_requeued_without_a_budget_get_their_own_attempts_again(any_console: Console) -> None:
    one, three = any_console.dead(max_attempts=1), any_console.dead(max_attempts=3)

    any_console("dead", "requeue", "--all", "--yes")

    assert [any_console.job(job_id).max_attempts for job_id in (one, three)] == [1 + 1, 1 + 3]


@pytest.mark.parametrize("kind", ["queue", "type", "fingerprint", "all"])
def test_a_filtered_set_is_requeued_and_nothing_else(kind: str, any_console: Console) -> None:
    wanted = any_console.dead("no such user", queue="mail", type="email.send")
    other = any_console.dead("no such user")
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))
    groups = any_console("dead", "groups", "--json").data["groups"]
    [fingerprint] = [group["fingerprint"] for group in groups if group["queue"] == "mail"]
    words = {
        "queue": ["--queue", "mail"],
        "type": ["--type", "email.send"],
        "fingerprint": ["--fingerprint", fingerprint, "--queue", "mail"],
        "all": ["--all"],
    }[kind]

    data = any_console("dead", "requeue", "--yes", "--json", *words).data

    count = 2 if kind == "all" else 1
    assert data.pop("operation") == str(any_console.driver.operations.recent(limit=1)[0].id)
    assert data == {"matched": count, "requeued": count, "dry_run": False, "refused": []}
    assert any_console.job(wanted).status is Status.PENDING
    assert (any_console.job(other).status is Status.PENDING) == (kind == "all")


def test_a_dry_run_shows_what_it_found_and_changes_nothing(console: Console) -> None:
    ids = [console.dead() for _ in range(7)]

    said = console("dead", "requeue", "--all", "--dry-run")

    assert (said.code, said.out) == (ExitCode.OK, "requeued 0 of 7\n")
    assert f"  {ids[-1]}  default  greet  LookupError: no such user\n" in said.err
    assert "  and 2 more\n" in said.err
    assert {console.job(job_id).status for job_id in ids} == {Status.DEAD}
    assert console.audit() == []


def test_without_a_terminal_an_unconfirmed_requeue_changes_nothing(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    ids = [console.dead() for _ in range(2)]

    said = console("dead", "requeue", "--all")

    assert (said.code, said.out) == (ExitCode.REFUSED, "")
    assert "not a terminal; preview with --dry-run" in said.err
    assert {console.job(job_id).status for job_id in ids} == {Status.DEAD}


@pytest.mark.parametrize(("typed", "code"), [("y\n", ExitCode.OK), ("n\n", ExitCode.REFUSED), ("\n", ExitCode.REFUSED)])
def test_a_requeue_asks_for_confirmation_on_a_terminal(
    typed: str, code: ExitCode, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO(typed)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    ids = [console.dead() for _ in range(2)]

    said = console("dead", "requeue", "--all")

    assert said.code == code
    assert "requeue 2 dead letters?" in said.err
    assert {console.job(job_id).status for job_id in ids} == {Status.PENDING if code is ExitCode.OK else Status.DEAD}


def test_a_job_that_is_not_dead_is_not_requeued(console: Console) -> None:
    dead, waiting_job = console.dead(), console.enqueue()

    said = console("dead", "requeue", str(dead), str(waiting_job), "--yes")

    assert (said.code, said.out) == (ExitCode.CONFLICT, "requeued 1 of 2\n")
    assert f"cannot requeue job {waiting_job}: it is PENDING" in said.err


def test_a_rate_lets_so_many_become_due_in_a_second(console: Console) -> None:
    ids = [console.dead() for _ in range(6)]

    assert console("dead", "requeue", *map(str, ids), "--yes", "--rate", "2").out == "requeued 6 of 6\n"

    due = [console.job(job_id).scheduled_for for job_id in ids]
    waits = [round((each - due[0]).total_seconds()) for each in due]
    assert waits == [0, 0, 1, 1, 2, 2]


def test_an_operation_changes_so_many_jobs_in_a_second(console: Console) -> None:
    for _ in range(6):
        console.dead()

    assert console("dead", "requeue", "--all", "--yes", "--rate", "8").out == "requeued 6 of 6\n"

    [operation] = console.driver.operations.recent(limit=1)
    assert operation.started_at is not None
    assert operation.ended_at is not None
    assert operation.ended_at - operation.started_at >= timedelta(seconds=0.4)


@pytest.mark.parametrize(
    "words",
    [
        ["requeue"],
        ["requeue", str(uuid4()), "--all"],
        ["requeue", str(uuid4()), "--queue", "mail"],
        ["requeue", "--all", "--rate", "0"],
        ["requeue", "--all", "--budget", "0"],
        ["requeue", "seven"],
        ["purge"],
        ["purge", "--older-than", "7"],
        ["purge", str(uuid4()), "--all"],
        ["list", "--after", "7"],
    ],
    ids=" ".join,
)
def test_a_wrong_line_is_a_usage_error_and_changes_nothing(words: list[str], console: Console) -> None:
    job_id = console.dead()

    said = console("dead", *words)

    assert (said.code, said.out) == (ExitCode.USAGE, "")
    assert console.job(job_id).status is Status.DEAD


def test_requeueing_nothing_is_no_failure(console: Console) -> None:
    said = console("dead", "requeue", "--queue", "mail")

    assert (said.code, said.out, said.err) == (ExitCode.OK, "requeued 0 of 0\n", "no matching dead letters\n")


@pytest.mark.parametrize("kind", ["id", "queue", "older than", "all"])
def test_dead_letters_are_purged_for_good_and_no_others(kind: str, any_console: Console) -> None:
    wanted, other = any_console.dead(queue="mail"), any_console.dead()
    done = any_console.done()
    publish_all(any_console)
    words = {
        "id": [str(wanted)],
        "queue": ["--queue", "mail"],
        "older than": ["--queue", "mail", "--older-than", "0s"],
        "all": ["--all"],
    }[kind]

    preview = any_console("dead", "purge", "--dry-run", "--json", *words).data
    said = any_console("dead", "purge", "--yes", "--json", *words).data

    count = 2 if kind == "all" else 1
    assert preview == {"matched": count, "removed": 0, "dry_run": True, "kept": {}, "operation": None}
    assert (said.pop("operation") is None) == (kind == "id")
    assert said == {"matched": count, "removed": count, "dry_run": False, "kept": {}}
    left = {*any_console.driver.inspector.get([wanted, other, done])}
    assert left == ({done} if kind == "all" else {other, done})
    actions = [entry.action for entry in any_console.audit()]
    assert sorted(actions) == (["dead-letters.purge"] if kind == "id" else ["operations.create", "operations.end"])


def test_dead_letters_that_are_younger_than_that_stay(console: Console) -> None:
    job_id = console.dead()
    publish_all(console)

    by_age = console("dead", "purge", "--older-than", "1h", "--yes")
    by_name = console("dead", "purge", str(job_id), "--older-than", "1h", "--yes")

    assert (by_age.code, by_age.out) == (ExitCode.OK, "removed 0 of 0\n")
    assert (by_name.code, by_name.out) == (ExitCode.CONFLICT, "removed 0 of 1\n")
    assert job_id in console.driver.inspector.get([job_id])


def test_a_dead_letter_with_an_unpublished_event_stays_unless_the_event_is_given_up(any_console: Console) -> None:
    publish_all(any_console)  # so that the store has seen a publisher
    job_id = any_console.dead()

    kept = any_console("dead", "purge", str(job_id), "--yes")
    gone = any_console("dead", "purge", str(job_id), "--yes", "--unpublished")

    assert (kept.code, kept.out) == (ExitCode.CONFLICT, "removed 0 of 1\n")
    assert "1 kept: dead-letter event not published yet (a publisher was last seen at " in kept.err
    assert "pass --unpublished to give the events up)" in kept.err
    assert (gone.code, gone.out) == (ExitCode.OK, "removed 1 of 1\n")
    assert any_console.driver.inspector.get([job_id]) == {}


def test_an_unconfirmed_purge_removes_nothing(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    job_id = console.dead()
    publish_all(console)

    said = console("dead", "purge", str(job_id))

    assert said.code == ExitCode.REFUSED
    assert job_id in console.driver.inspector.get([job_id])


def test_finished_jobs_are_pruned_and_dead_ones_stay(any_console: Console) -> None:
    any_console.done()
    dead, waiting_job = any_console.dead(), any_console.enqueue()
    any_console.driver.maintenance.roll_up(keep=timedelta(days=1))

    preview = any_console("prune", "--older-than", "0s", "--dry-run")
    said = any_console("prune", "--older-than", "0s", "--yes")

    assert "would remove about " in preview.err
    assert said.code == ExitCode.OK
    assert {*any_console.driver.inspector.get([dead, waiting_job])} == {dead, waiting_job}


def test_prune_keeps_jobs_younger_than_a_week_by_default(console: Console) -> None:
    job_id = console.done()

    said = console("prune", "--yes", "--json")

    assert said.data == {"found": 0, "removed": 0, "dry_run": False, "kept": {}}
    assert job_id in console.driver.inspector.get([job_id])


def test_without_a_publisher_all_dead_letters_are_purged(any_console: Console) -> None:
    ids = [any_console.dead() for _ in range(8)]

    said = any_console("dead", "purge", "--all", "--yes", "--json").data

    assert (said["matched"], said["removed"], said["kept"]) == (8, 8, {})
    assert any_console.driver.inspector.get(ids) == {}


def test_purge_counts_what_it_kept_by_reason(console: Console) -> None:
    removed = console.dead()
    publish_all(console)
    unpublished, revived = console.dead(), console.dead()
    console("dead", "requeue", str(revived))

    ids = map(str, (removed, unpublished, revived, uuid4()))
    said = console("dead", "purge", *ids, "--yes", "--json")

    kept = {"not_found": 1, "not_dead": 1, "unpublished": 1}
    assert said.code == ExitCode.CONFLICT
    assert json.loads(said.out) == {"matched": 4, "removed": 1, "dry_run": False, "kept": kept, "operation": None}
    assert "1 kept: not found; 1 kept: no longer dead; 1 kept: dead-letter event not published yet" in said.err


def test_purge_says_what_died_too_recently(console: Console) -> None:
    job_id = console.dead()
    publish_all(console)

    said = console("dead", "purge", str(job_id), "--older-than", "1h", "--yes", "--json")

    assert (said.code, json.loads(said.out)["kept"]) == (ExitCode.CONFLICT, {"too_young": 1})


def test_prune_says_that_an_event_keeps_a_job_and_how_to_give_it_up(console: Console) -> None:
    publish_all(console)
    job_id = revived_job(console)

    kept = console("prune", "--older-than", "0s", "--yes")
    as_data = console("prune", "--older-than", "0s", "--yes", "--json").data
    gone = console("prune", "--older-than", "0s", "--yes", "--unpublished")

    assert (kept.code, as_data["removed"], as_data["kept"]) == (ExitCode.OK, 0, {"unpublished": 1})
    assert kept.out.startswith("removed 0; 1 kept: dead-letter event not published yet (a publisher was last seen at ")
    assert kept.out.endswith("wait for it, or pass --unpublished to give the events up)\n")
    assert gone.out == "removed 1\n"
    assert console.driver.inspector.get([job_id]) == {}


def test_without_a_publisher_prune_removes_a_job_that_died_once(console: Console) -> None:
    job_id = revived_job(console, idempotency_key="once")
    dead = console.dead()

    said = console("prune", "--older-than", "0s", "--yes")

    assert said.out == "removed 1\n"
    assert {*console.driver.inspector.get([job_id, dead])} == {dead}
    assert console.driver.inspector.find_by_key("once") == []
    assert [row.is_done for row in console.driver.inspector.outbox([dead])] == [False]


def test_prune_says_that_jobs_of_a_day_that_is_not_over_are_kept(any_console: Console) -> None:
    any_console.done()
    is_by_day = any_console.url.startswith("postgresql")

    said = any_console("prune", "--older-than", "0s", "--yes")

    assert said.out == (
        "removed 0; 1 kept: ended too recently (finished jobs may be kept for up to a day longer)\n"
        if is_by_day
        else "removed 1\n"
    )


def revived_job(console: Console, **fields: Any) -> JobId:
    """Return a job that died, was requeued, and succeeded."""
    job_id = console.dead(**fields)
    console("dead", "requeue", str(job_id))
    console.settle(job_id, Outcome.ack())
    return job_id


def publish_all(console: Console) -> None:
    rows = console.driver.maintenance.claim_outbox(limit=100, lock=timedelta(seconds=1))
    console.driver.maintenance.settle_outbox([Published(row.event.event_id) for row in rows])
