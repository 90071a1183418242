"""What the SQL drivers share."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest

from taskharbor.core.errors import JobNotFound, JobNotInflight, LeaseExpired, LeaseMismatch
from taskharbor.core.failure import Failure
from taskharbor.core.ids import JobId, new_token
from taskharbor.core.model import (
    ApiKey,
    Attempt,
    AttemptOutcome,
    AuditEntry,
    DeadTaskEvent,
    Lease,
    OutboxRow,
    Progress,
    Schedule,
    WorkerRecord,
    job_from_values,
    stored_summary,
)
from taskharbor.core.outcome import ATTEMPTS_EXHAUSTED, Outcome
from taskharbor.core.results import DeadLetterGroup, Death, FinishedCount, QueueStats
from taskharbor.core.schedule_runs import ScheduleRun, SkipReason
from taskharbor.core.states import SETTLE_EVENTS, Event, Status, status_after
from taskharbor.drivers import records
from taskharbor.drivers.postgres import rows as postgres_rows
from taskharbor.drivers.records import fence_error, landing_case, outcome_params, row_mapper
from taskharbor.drivers.sqlite import rows as sqlite_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NOW: Final = datetime(2026, 3, 1, 12, 30, 0, 17, tzinfo=UTC)
MICROS: Final = sqlite_rows.micros(NOW)
JOB: Final = JobId(new_token())
TOKEN: Final = new_token()
BOOM: Final = Failure(type="ValueError", message="boom", traceback="Traceback …", fingerprint="f1")

FLAGS: Final = ("cancel_requested", "exhausted", "sent")
JOBS: Final = "CREATE TABLE jobs (cancel_requested_at, attempt_count, max_attempts, sent_at)"
OTHERS: Final = (
    "CREATE TABLE others AS SELECT 1 AS cancel_requested_at, 9 AS attempt_count, 9 AS max_attempts, 1 AS sent_at"
)


@pytest.mark.parametrize(
    "events", [SETTLE_EVENTS - {Event.ACK}, SETTLE_EVENTS, {Event.EXPIRE}, SETTLE_EVENTS | {Event.EXPIRE}]
)
def test_the_landing_case_agrees_with_the_state_machine(events: frozenset[Event]) -> None:
    case = landing_case(events, event=":event", job="jobs.", attempts="jobs.attempt_count")
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(JOBS)
        db.execute(OTHERS)  # a column without a prefix is ambiguous
        for event, values in product(events, product((False, True), repeat=len(FLAGS))):
            cancel_requested, exhausted, sent = values
            row = (1 if cancel_requested else None, 3, 3 if exhausted else 4, 1 if sent else None)
            db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?)", row)

            [(status,)] = db.execute(
                f"SELECT {case} FROM jobs, others ORDER BY jobs.rowid DESC LIMIT 1", {"event": event.value}
            )

            assert status == status_after(event, **dict(zip(FLAGS, values, strict=True))), (event, values)


def test_the_landing_case_of_one_event_does_not_name_it() -> None:
    assert landing_case({Event.EXPIRE}, attempts="attempt_count") == (
        "CASE WHEN cancel_requested_at IS NOT NULL THEN 'CANCELED'"
        " WHEN attempt_count >= max_attempts THEN 'DEAD'"
        " WHEN sent_at IS NOT NULL THEN 'ENQUEUED'"
        " ELSE 'FAILED' END"
    )


@pytest.mark.parametrize(
    ("columns", "record"), [(records.JOB_COLUMNS, job_from_values), (records.SUMMARY_COLUMNS, stored_summary)]
)
def test_the_columns_of_a_job_have_the_order_of_its_fields(
    columns: records.Columns, record: Callable[[Sequence[Any]], Any]
) -> None:
    job = record(columns)

    assert [getattr(job, name) for name in columns] == [*columns]


def test_a_row_mapper_decodes_by_column_keeps_null_and_ignores_extra_columns() -> None:
    mapper = row_mapper(("name", "count", "status"), tuple, {"name": str.upper, "count": int})

    assert mapper(("a", None, "DEAD", "extra")) == ("A", None, Status.DEAD)


def test_progress_survives_a_round_trip() -> None:
    progress = Progress(3, 10, "…")

    assert records.progress_from_json(records.progress_to_json(progress)) == progress


@pytest.mark.parametrize("value", [{}, {"a": "1"}])
def test_a_text_map_survives_a_round_trip(value: dict[str, str]) -> None:
    assert records.text_map(json.dumps(value)) == value


ATTEMPT: Final = Attempt(
    job_id=JOB,
    token=TOKEN,
    life=2,
    attempt=3,
    worker_id="w",
    started_at=None,
    ended_at=NOW,
    event=Event.RETRY,
    status=Status.FAILED,
    outcome=AttemptOutcome.TIMED_OUT,
    failure=BOOM,
)
EVENT: Final = DeadTaskEvent(
    job_id=JOB,
    life=1,
    type="t",
    queue="q",
    worker_id=None,
    attempt_count=3,
    max_attempts=4,
    error="e",
    dead_at=NOW,
)
# Each record, with its row as PostgreSQL returns it and as SQLite does.
ROWS: Final[dict[str, tuple[object, tuple[Any, ...], tuple[Any, ...]]]] = {
    "attempt": (
        ATTEMPT,
        (JOB, TOKEN, 2, 3, "w", None, NOW, "retry", "FAILED", "TIMED_OUT", "ValueError", "boom", "Traceback …", "f1"),
        (
            *(JOB.bytes, TOKEN.bytes, 2, 3, "w", None, MICROS, "retry", "FAILED", "TIMED_OUT"),
            *("ValueError", "boom", "Traceback …", "f1"),
        ),
    ),
    "outbox_row": (
        OutboxRow(event=EVENT, next_at=NOW, attempts=5, last_error="x", published_at=NOW),
        (JOB, 1, "t", "q", None, 3, 4, "e", NOW, NOW, 5, "x", NOW, None),
        (JOB.bytes, 1, "t", "q", None, 3, 4, "e", MICROS, MICROS, 5, "x", MICROS, None),
    ),
    "schedule": (
        Schedule(
            name="n",
            cron="* * * * *",
            timezone="UTC",
            type="t",
            queue="q",
            payload=b"p",
            options={"a": "1"},
            next_at=NOW,
            last_job_id=JOB,
            declared_at=NOW,
        ),
        ("n", "* * * * *", "UTC", "t", "q", b"p", '{"a": "1"}', NOW, None, None, JOB, NOW),
        ("n", "* * * * *", "UTC", "t", "q", b"p", '{"a": "1"}', MICROS, None, None, JOB.bytes, MICROS),
    ),
    "worker": (
        WorkerRecord(
            id="w",
            host="h",
            pid=1,
            queues=("a", "b"),
            types=(),
            concurrency=2,
            started_at=NOW,
            seen_at=NOW,
            lost_slots=1,
            schedules=("nightly",),
            busy_slots=2,
            version="4f2c",
            library="0.1.0",
            stopped_at=NOW,
        ),
        ("w", "h", 1, ["a", "b"], [], 2, NOW, NOW, 1, ["nightly"], 2, "4f2c", "0.1.0", NOW),
        ("w", "h", 1, '["a", "b"]', "[]", 2, MICROS, MICROS, 1, '["nightly"]', 2, "4f2c", "0.1.0", MICROS),
    ),
    "api_key": (
        ApiKey(id="k", name="n", digest=b"d", scopes=("read",), created_at=NOW, used_at=NOW, parent="p"),
        ("k", "n", b"d", ["read"], NOW, None, None, NOW, "p"),
        ("k", "n", b"d", '["read"]', MICROS, None, None, MICROS, "p"),
    ),
    "schedule_run": (
        ScheduleRun(schedule="s", fire_time=NOW, job_id=None, skipped=SkipReason.MISSED, at=NOW),
        ("s", NOW, None, "missed", NOW),
        ("s", MICROS, None, "missed", MICROS),
    ),
    "audit_entry": (
        AuditEntry(id=TOKEN, at=NOW, actor="a", action="b", target="c", detail={"d": "e"}),
        (TOKEN, NOW, "a", "b", "c", '{"d": "e"}'),
        (TOKEN.bytes, MICROS, "a", "b", "c", '{"d": "e"}'),
    ),
    "finished_count": (
        FinishedCount(minute=NOW, queue="q", status=Status.DEAD, count=7),
        (NOW, "q", "DEAD", 7),
        (MICROS, "q", "DEAD", 7),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_both_stores_make_the_same_record(name: str) -> None:
    record, postgres_row, sqlite_row = ROWS[name]

    assert getattr(postgres_rows, name)(postgres_row) == record
    assert getattr(sqlite_rows, name)(sqlite_row) == record


def test_an_attempt_without_an_error_type_has_no_failure() -> None:
    values = (JOB, TOKEN, 1, 1, "w", NOW, NOW, Event.RELEASE, Status.PENDING, AttemptOutcome.RELEASED, *[None] * 4)

    assert records.attempt_from_values(values).failure is None


def test_a_death_is_read_from_its_row() -> None:
    death = Death(
        job_id=JOB, type="t", queue="q", life=1, attempt_count=3, reason="r", worker_id="w", traceparent="00-parent"
    )
    values = ("t", "q", 1, 3, "r", "w", "00-parent")

    assert records.death_from_values((JOB, *values)) == death
    assert sqlite_rows.death((JOB.bytes, *values)) == death


def test_a_dead_letter_group_without_an_error_has_an_empty_one() -> None:
    group = DeadLetterGroup(
        queue="q", type="t", fingerprint="f", count=2, error="", first_at=NOW, last_at=NOW, sample=JOB
    )

    assert records.dead_letter_group_from_values(("q", "t", "f", 2, None, NOW, NOW, JOB)) == group
    assert sqlite_rows.dead_letter_group(("q", "t", "f", 2, None, MICROS, MICROS, JOB.bytes)) == group


def test_queue_statistics_count_every_status() -> None:
    none = dict.fromkeys(Status, 0)
    stats = QueueStats(name="q", counts=none | {Status.DEAD: 2}, oldest_due=NOW, paused_at=None, paused_by=None)
    empty = QueueStats(name="q", counts=none, oldest_due=None, paused_at=NOW, paused_by="me")
    ends = replace(empty, paused_reason="why", paused_until=NOW)

    assert records.queue_stats_from_values(("q", {"DEAD": 2}, NOW, None, None, None, None)) == stats
    assert sqlite_rows.queue_stats(("q", '{"DEAD": 2}', MICROS, None, None, None, None)) == stats
    assert records.queue_stats_from_values(("q", None, None, NOW, "me", "", None)) == empty
    assert sqlite_rows.queue_stats(("q", "{}", None, MICROS, "me", "why", MICROS)) == ends


def test_the_parameters_of_an_outcome_name_its_failure() -> None:
    assert outcome_params(Outcome.fail("hopeless", failure=BOOM)) == {
        "event": "fail",
        "outcome": "FAILED",
        "bound": 0,
        "reason": "hopeless",
        "error": str(BOOM),
        "error_type": "ValueError",
        "message": "boom",
        "traceback": "Traceback …",
        "fingerprint": "f1",
        "traceparent": None,
    }


@pytest.mark.parametrize(
    "outcome", [Outcome.retry(after=timedelta(seconds=1)), Outcome.release(bound=2), Outcome.cancel("why")]
)
def test_an_outcome_that_may_exhaust_the_attempts_gives_that_as_the_reason(outcome: Outcome) -> None:
    params = outcome_params(outcome)

    assert (params["event"], params["bound"]) == (outcome.event, outcome.bound)
    assert params["reason"] == ATTEMPTS_EXHAUSTED


def test_an_outcome_without_a_failure_has_no_error() -> None:
    params = outcome_params(Outcome.snooze(after=timedelta(seconds=1)))

    assert [params[name] for name in ("error", "error_type", "message", "traceback", "fingerprint")] == [None] * 5


@pytest.mark.parametrize(
    ("status", "token", "error"),
    [
        (None, None, JobNotFound),
        ("SUCCEEDED", None, JobNotInflight),
        ("PROCESSING", new_token(), LeaseMismatch),
        ("PROCESSING", TOKEN, LeaseExpired),
    ],
)
def test_a_rejected_lease_is_answered_by_the_first_reason(status: str | None, token: Any, error: type) -> None:
    assert type(fence_error(Lease(JOB, TOKEN, NOW), status, token)) is error
