"""Constraints of the tables, which raw SQL must satisfy, too."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final

import psycopg
import pytest
from psycopg.errors import CheckViolation, UniqueViolation

from taskharbor.core.ids import new_job_id, new_token
from taskharbor.core.states import FINAL, TRANSITIONS, Event, Status
from tests.support.postgres import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

JOB: Final = new_job_id()
UNKNOWN: Final = "the transition table does not know"

# A reschedule keeps the status of each waiting job, so it allows only source == target.
KNOWN_TRANSITIONS: Final = {
    (source, target)
    for event, transition in TRANSITIONS.items()
    for source, target in product(transition.sources, transition.targets)
    if event is not Event.RESCHEDULE or source == target
}


@pytest.fixture(scope="module")
def url() -> str:
    return emptied()


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    """Yield a connection whose transaction is rolled back."""
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


COLUMNS: Final = {
    "id": ("uuid", False, None),
    "type": ("text", False, None),
    "queue": ("text", False, None),
    "payload": ("bytea", False, None),
    "status": ("text", False, "'PENDING'::text"),
    "scheduled_for": ("timestamp with time zone", False, None),
    "timeout": ("interval", True, None),
    "created_at": ("timestamp with time zone", False, None),
    "attempt_count": ("integer", False, "0"),
    "max_attempts": ("integer", False, None),
    "last_error": ("text", True, None),
    "failed_at": ("timestamp with time zone", True, None),
    "lease_token": ("uuid", True, None),
    "lease_expires_at": ("timestamp with time zone", True, None),
    "worker_id": ("text", True, None),
    "completed_at": ("timestamp with time zone", True, None),
    "dead_reason": ("text", True, None),
    "dead_at": ("timestamp with time zone", True, None),
    "idempotency_key": ("text", True, None),
    "result": ("bytea", True, None),
}
"""The columns that the original specification requires: type, whether the value may be NULL, and default."""


def test_every_column_of_the_jobs_table_has_its_type_and_its_default(db: psycopg.Connection) -> None:
    rows = db.execute("""
        SELECT column_name, data_type, is_nullable = 'YES', column_default
          FROM information_schema.columns
         WHERE table_schema = 'public'
           AND table_name = 'th_jobs'
    """).fetchall()

    assert {name: rest for name, *rest in rows if name in COLUMNS} == {name: [*rest] for name, rest in COLUMNS.items()}


def test_no_sequence_ends_within_the_life_of_a_store(db: psycopg.Connection) -> None:
    sequences = db.execute("SELECT sequencename, data_type::text, cycle FROM pg_sequences").fetchall()

    assert sequences
    assert {(kind, cycles) for _, kind, cycles in sequences} == {("bigint", False)}


@pytest.mark.parametrize(("source", "target"), [*product(Status, Status)])
def test_raw_sql_makes_exactly_the_moves_of_the_transition_table(
    source: Status, target: Status, db: psycopg.Connection
) -> None:
    insert(db)
    bring_to(db, source)

    if (source, target) in KNOWN_TRANSITIONS or source == target:
        move(db, target)
        assert statuses(db) == [target]
    else:
        with pytest.raises(CheckViolation, match=f"{UNKNOWN} {source} to {target}"):
            move(db, target)


def test_a_partition_rejects_an_illegal_transition(db: psycopg.Connection) -> None:
    insert(db)

    with pytest.raises(CheckViolation, match=f"{UNKNOWN} PENDING to FAILED"):
        db.execute("UPDATE th_jobs_waiting SET status = 'FAILED'")


def test_a_partition_created_later_rejects_an_illegal_transition(db: psycopg.Connection) -> None:
    db.execute("SELECT th_make_days('2031-05-01', 1)")
    insert(db)
    move(db, Status.PROCESSING)
    update(db, **{**columns_of(Status.CANCELED), "completed_at": "2031-05-01T12:00:00Z"})

    with pytest.raises(CheckViolation, match=f"{UNKNOWN} CANCELED to SUCCEEDED"):
        db.execute("UPDATE th_jobs_finished_20310501 SET status = 'SUCCEEDED'")


@pytest.mark.parametrize(
    ("status", "change"),
    [
        (Status.PENDING, "lease_token = gen_random_uuid(), lease_expires_at = now()"),
        (Status.SUCCEEDED, "lease_token = gen_random_uuid(), lease_expires_at = now()"),
        (Status.PENDING, "lease_expires_at = now()"),
        (Status.PROCESSING, "lease_token = NULL"),
        (Status.PROCESSING, "lease_expires_at = NULL"),
        (Status.PROCESSING, "lease_token = NULL, lease_expires_at = NULL"),
        (Status.PENDING, "status = 'PROCESSING'"),
        (Status.PROCESSING, "status = 'PENDING'"),
    ],
)
def test_a_lease_and_processing_come_and_go_together(status: Status, change: str, db: psycopg.Connection) -> None:
    insert(db)
    bring_to(db, status)

    with pytest.raises(CheckViolation, match="th_jobs_lease"):
        db.execute(f"UPDATE th_jobs SET {change}".encode())


@pytest.mark.parametrize("left_out", ["dead_at", "dead_reason"])
def test_a_dead_job_has_a_time_and_a_reason_of_death(left_out: str, db: psycopg.Connection) -> None:
    insert(db)

    with pytest.raises(CheckViolation, match="th_jobs_dead"):
        update(db, **{**columns_of(Status.DEAD), left_out: None})


def test_a_job_that_lives_has_no_time_of_death(db: psycopg.Connection) -> None:
    insert(db)

    with pytest.raises(CheckViolation, match="th_jobs_dead"):
        db.execute("UPDATE th_jobs SET dead_at = now(), dead_reason = 'none'")


@pytest.mark.parametrize("final", sorted(FINAL))
def test_a_final_job_has_the_time_of_its_end(final: Status, db: psycopg.Connection) -> None:
    insert(db)
    move(db, Status.PROCESSING)

    with pytest.raises(CheckViolation, match="th_jobs_completed"):
        update(db, **{**columns_of(final), "completed_at": None})


@pytest.mark.parametrize("living", [status for status in Status if not status.is_final])
def test_a_job_that_is_not_final_has_no_completed_at(living: Status, db: psycopg.Connection) -> None:
    insert(db)
    bring_to(db, living)

    with pytest.raises(CheckViolation, match="th_jobs_completed"):
        db.execute("UPDATE th_jobs SET completed_at = now()")


def test_an_unknown_status_is_refused(db: psycopg.Connection) -> None:
    insert(db)
    move(db, Status.PROCESSING)

    with pytest.raises(CheckViolation, match="no partition of relation"):
        db.execute("UPDATE th_jobs SET status = 'PAUSED', lease_token = NULL, lease_expires_at = NULL")


@pytest.mark.parametrize("change", ["timeout = interval '0'", "attempt_count = -1", "max_attempts = 0"])
def test_a_number_out_of_bounds_is_refused(change: str, db: psycopg.Connection) -> None:
    insert(db)

    with pytest.raises(CheckViolation):
        db.execute(f"UPDATE th_jobs SET {change}".encode())


def test_a_second_waiting_job_with_the_same_id_is_rejected(db: psycopg.Connection) -> None:
    insert(db)

    with pytest.raises(UniqueViolation):
        insert(db)


@pytest.mark.parametrize("source", sorted(source for source, target in KNOWN_TRANSITIONS if target is Status.DEAD))
def test_a_job_killed_by_raw_sql_has_an_event(source: Status, db: psycopg.Connection) -> None:
    insert(db)
    bring_to(db, source)

    move(db, Status.DEAD)

    assert events(db) == [(JOB, 1, "exhausted", died_at(db))]


def test_a_job_inserted_as_dead_has_an_event(db: psycopg.Connection) -> None:
    insert(db, **columns_of(Status.DEAD))

    assert events(db) == [(JOB, 1, "exhausted", died_at(db))]


def test_a_job_that_dies_again_has_an_event_for_each_life(db: psycopg.Connection) -> None:
    insert(db)
    move(db, Status.DEAD)
    update(db, **columns_of(Status.PENDING), life=2)

    move(db, Status.DEAD)

    assert [life for _, life, _, _ in events(db)] == [1, 2]


def test_a_job_that_never_died_has_no_event(db: psycopg.Connection) -> None:
    insert(db)
    for target in (Status.PROCESSING, Status.FAILED, Status.PROCESSING, Status.CANCELED, Status.PENDING):
        move(db, target)

    assert events(db) == []


def insert(db: psycopg.Connection, **columns: object) -> None:
    row = {
        "id": JOB,
        "type": "greet",
        "queue": "default",
        "priority": 0,
        "payload": b"",
        "status": "PENDING",
        "scheduled_for": "now",
        "created_at": "now",
        "attempt_count": 0,
        "max_attempts": 1,
        **columns,
    }
    names, placeholders = ", ".join(row), ", ".join(f"%({name})s" for name in row)
    db.execute(f"INSERT INTO th_jobs ({names}) VALUES ({placeholders})".encode(), row)


def update(db: psycopg.Connection, **columns: object) -> None:
    changes = ", ".join(f"{name} = %({name})s" for name in columns)
    db.execute(f"UPDATE th_jobs SET {changes}".encode(), columns)


def move(db: psycopg.Connection, target: Status) -> None:
    update(db, **columns_of(target))


def bring_to(db: psycopg.Connection, target: Status) -> None:
    """Move a PENDING job to *target* by allowed transitions."""
    if target is not Status.PENDING:
        move(db, Status.PROCESSING)
        move(db, target)


def columns_of(target: Status) -> dict[str, object]:
    """Return the values that *target* requires in each column that a constraint ties to the status."""
    is_held, is_dead = target is Status.PROCESSING, target is Status.DEAD
    return {
        "status": target.value,
        "lease_token": new_token() if is_held else None,
        "lease_expires_at": "now" if is_held else None,
        "completed_at": "now" if target in FINAL else None,
        "dead_at": "now" if is_dead else None,
        "dead_reason": "exhausted" if is_dead else None,
    }


def statuses(db: psycopg.Connection) -> list[str]:
    return [status for (status,) in db.execute("SELECT status FROM th_jobs").fetchall()]


def events(db: psycopg.Connection) -> list[tuple[object, int, str, datetime]]:
    return db.execute("SELECT job_id, life, error, dead_at FROM th_outbox ORDER BY life").fetchall()


def died_at(db: psycopg.Connection) -> datetime:
    [(dead_at,)] = db.execute("SELECT dead_at FROM th_jobs").fetchall()
    found: datetime = dead_at
    return found
